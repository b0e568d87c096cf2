//! The content of a disk: sparse files, a tree of names, and images of both.
//!
//! Everything is shared by `Arc` and copied on write, so an image costs only its difference from
//! the previous image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock, OnceLock};

use xxhash_rust::xxh3::{Xxh3, xxh3_64};

use super::clock::mix;
use super::journal::{DiskState, Fate};

pub(super) type Ino = u64;
pub(super) type Name = Arc<str>;
pub(super) const ROOT: Ino = 0;
pub(super) const PAGE: usize = 4096;

type Page = [u8; PAGE];
static ZEROS: LazyLock<Arc<Page>> = LazyLock::new(|| Arc::new([0; PAGE]));

/// The bytes of one file. An absent page reads as zero and uses no space; bytes of a page at or
/// beyond `len` are zero.
#[derive(Debug, Default)]
pub(super) struct Content {
    len: u64,
    pages: BTreeMap<u64, Arc<Page>>,
    hash: OnceLock<u64>,
}

impl Clone for Content {
    fn clone(&self) -> Self {
        Self { len: self.len, pages: self.pages.clone(), hash: OnceLock::new() }
    }
}

impl Content {
    pub(super) fn of(bytes: &[u8]) -> Self {
        let mut content = Self::default();
        content.write(0, bytes);
        content
    }

    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// The number of pages that use space.
    pub(super) fn blocks(&self) -> u64 {
        self.pages.len() as u64
    }

    /// The number of pages that a write of `len` bytes at `offset` adds.
    pub(super) fn missing_blocks(&self, offset: u64, len: u64) -> u64 {
        if len == 0 {
            return 0;
        }
        let (first, last) = (offset / PAGE as u64, (offset + len - 1) / PAGE as u64);
        last - first + 1 - self.pages.range(first..=last).count() as u64
    }

    pub(super) fn read(&self, buf: &mut [u8], offset: u64) -> usize {
        let n = self.len.saturating_sub(offset).min(buf.len() as u64) as usize;
        let mut done = 0;
        while done < n {
            let (page, at) = split(offset + done as u64);
            let step = (PAGE - at).min(n - done);
            let to = &mut buf[done..done + step];
            match self.pages.get(&page) {
                Some(p) => to.copy_from_slice(&p[at..at + step]),
                None => to.fill(0),
            }
            done += step;
        }
        n
    }

    pub(super) fn bytes(&self) -> Vec<u8> {
        let mut out = vec![0; self.len as usize];
        self.read(&mut out, 0);
        out
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.extend(offset + bytes.len() as u64);
        self.write_within(offset, bytes);
    }

    /// Writes only the bytes below the current length.
    pub(super) fn write_within(&mut self, offset: u64, bytes: &[u8]) {
        let n = self.len.saturating_sub(offset).min(bytes.len() as u64) as usize;
        self.hash = OnceLock::new();
        let mut done = 0;
        while done < n {
            let (page, at) = split(offset + done as u64);
            let step = (PAGE - at).min(n - done);
            let p = self.pages.entry(page).or_insert_with(|| ZEROS.clone());
            Arc::make_mut(p)[at..at + step].copy_from_slice(&bytes[done..done + step]);
            done += step;
        }
    }

    /// Makes the length at least `len`.
    pub(super) fn extend(&mut self, len: u64) {
        self.hash = OnceLock::new();
        self.len = self.len.max(len);
    }

    pub(super) fn set_len(&mut self, len: u64) {
        self.hash = OnceLock::new();
        if len < self.len {
            let (page, at) = split(len);
            self.pages.split_off(&(if at == 0 { page } else { page + 1 }));
            if at > 0
                && let Some(p) = self.pages.get_mut(&page)
            {
                Arc::make_mut(p)[at..].fill(0);
            }
        }
        self.len = len;
    }

    /// Reserves the pages of the first `len` bytes and extends the file to `len`.
    pub(super) fn allocate(&mut self, len: u64) {
        self.extend(len);
        for page in 0..len.div_ceil(PAGE as u64) {
            self.pages.entry(page).or_insert_with(|| ZEROS.clone());
        }
    }

    /// Whether `len` bytes at `offset` are within both contents and equal.
    pub(super) fn same_range(&self, other: &Self, offset: u64, len: u64) -> bool {
        if offset + len > self.len.min(other.len) {
            return false;
        }
        let (mut a, mut b) = (vec![0; len as usize], vec![0; len as usize]);
        self.read(&mut a, offset);
        other.read(&mut b, offset);
        a == b
    }

    fn hash(&self) -> u64 {
        *self.hash.get_or_init(|| {
            let mut h = Xxh3::new();
            h.update(&self.len.to_le_bytes());
            for (index, page) in &self.pages {
                if !Arc::ptr_eq(page, &ZEROS) && **page != **ZEROS {
                    h.update(&index.to_le_bytes());
                    h.update(&page[..]);
                }
            }
            h.digest()
        })
    }
}

fn split(offset: u64) -> (u64, usize) {
    (offset / PAGE as u64, (offset % PAGE as u64) as usize)
}

#[derive(Clone, Debug)]
pub(super) enum Node {
    File(Arc<Content>),
    Dir(Arc<BTreeMap<Name, Ino>>),
}

impl Node {
    pub(super) fn empty(is_dir: bool) -> Self {
        if is_dir { Self::Dir(Arc::default()) } else { Self::File(Arc::default()) }
    }
}

/// Inodes, and the names that point to them. An inode can exist without a name.
#[derive(Clone, Debug)]
pub(super) struct Tree {
    nodes: Arc<BTreeMap<Ino, Node>>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { nodes: Arc::new(BTreeMap::from([(ROOT, Node::empty(true))])) }
    }

    pub(super) fn next_ino(&self) -> Ino {
        self.nodes.last_key_value().map_or(ROOT, |(&ino, _)| ino) + 1
    }

    pub(super) fn insert(&mut self, ino: Ino, node: Node) {
        Arc::make_mut(&mut self.nodes).insert(ino, node);
    }

    pub(super) fn remove(&mut self, ino: Ino) {
        if self.nodes.contains_key(&ino) {
            Arc::make_mut(&mut self.nodes).remove(&ino);
        }
    }

    pub(super) fn retain(&mut self, keep: impl Fn(Ino) -> bool) {
        if self.nodes.keys().any(|&ino| !keep(ino)) {
            Arc::make_mut(&mut self.nodes).retain(|&ino, _| keep(ino));
        }
    }

    pub(super) fn file(&self, ino: Ino) -> Option<&Arc<Content>> {
        match self.nodes.get(&ino) {
            Some(Node::File(content)) => Some(content),
            _ => None,
        }
    }

    pub(super) fn file_mut(&mut self, ino: Ino) -> Option<&mut Content> {
        match Arc::make_mut(&mut self.nodes).get_mut(&ino) {
            Some(Node::File(content)) => Some(Arc::make_mut(content)),
            _ => None,
        }
    }

    pub(super) fn dir(&self, ino: Ino) -> Option<&BTreeMap<Name, Ino>> {
        match self.nodes.get(&ino) {
            Some(Node::Dir(names)) => Some(names),
            _ => None,
        }
    }

    pub(super) fn bind(&mut self, dir: Ino, name: &Name, ino: Ino) {
        if let Some(names) = self.dir_mut(dir) {
            names.insert(name.clone(), ino);
        }
    }

    pub(super) fn unbind(&mut self, dir: Ino, name: &str) {
        if let Some(names) = self.dir_mut(dir) {
            names.remove(name);
        }
    }

    fn dir_mut(&mut self, ino: Ino) -> Option<&mut BTreeMap<Name, Ino>> {
        match Arc::make_mut(&mut self.nodes).get_mut(&ino) {
            Some(Node::Dir(names)) => Some(Arc::make_mut(names)),
            _ => None,
        }
    }

    pub(super) fn lookup(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.dir(dir)?.get(name).copied()
    }

    pub(super) fn resolve(&self, path: &str) -> Option<Ino> {
        path.split('/').filter(|n| !n.is_empty()).try_fold(ROOT, |dir, name| self.lookup(dir, name))
    }

    /// Every inode that some directory names, reachable or not.
    pub(super) fn named(&self) -> BTreeSet<Ino> {
        let names = |node: &Node| match node {
            Node::Dir(names) => names.values().copied().collect(),
            Node::File(_) => Vec::new(),
        };
        self.nodes.values().flat_map(names).collect()
    }

    pub(super) fn links(&self, ino: Ino) -> u64 {
        let in_dir = |node: &Node| match node {
            Node::Dir(names) => names.values().filter(|&&i| i == ino).count() as u64,
            Node::File(_) => 0,
        };
        self.nodes.values().map(in_dir).sum()
    }

    /// Visits every reachable name, parents first, in order.
    fn walk(&self, visit: &mut dyn FnMut(&str, &Node)) {
        let mut stack = vec![(String::new(), ROOT)];
        while let Some((path, ino)) = stack.pop() {
            let Some(node) = self.nodes.get(&ino) else { continue };
            // Directory renames that survive in part can form a cycle; no real path is this long.
            if path.len() > 4096 {
                continue;
            }
            visit(&path, node);
            if let Node::Dir(names) = node {
                stack
                    .extend(names.iter().rev().map(|(name, &ino)| (format!("{path}/{name}"), ino)));
            }
        }
    }

    pub(super) fn hash(&self) -> u64 {
        let mut h = Xxh3::new();
        self.walk(&mut |path, node| {
            h.update(&xxh3_64(path.as_bytes()).to_le_bytes());
            match node {
                Node::File(content) => h.update(&content.hash().to_le_bytes()),
                Node::Dir(_) => h.update(b"dir"),
            }
        });
        h.digest()
    }
}

/// The content of a disk after a crash, or as the next process sees it after a kill. Cheap to
/// clone; mounted by [`SimFs::from_image`](super::SimFs::from_image).
#[derive(Clone, Debug)]
pub struct DiskImage {
    pub(super) tree: Tree,
    /// After a kill the page cache survives: the visible bytes can differ from the durable ones.
    pub(super) cache: Option<Arc<DiskState>>,
    pub(super) boot: u64,
    pub(super) mount: u64,
    pub(super) lost: bool,
    /// Files with a failed write-back that no sync has reported yet.
    pub(super) unreported: Arc<BTreeSet<Ino>>,
    /// The same for the whole file system; it is reported independently of the files.
    pub(super) unreported_fs: bool,
}

impl DiskImage {
    /// An empty disk.
    pub fn empty() -> Self {
        Self {
            tree: Tree::new(),
            cache: None,
            boot: 1,
            mount: 1,
            lost: false,
            unreported: Arc::default(),
            unreported_fs: false,
        }
    }

    /// XXH3-64 over the names and the surviving bytes.
    pub fn hash(&self) -> u64 {
        self.tree.hash()
    }

    /// The boot and mount numbers that the next process sees.
    pub fn boot(&self) -> (u64, u64) {
        (self.boot, self.mount)
    }

    /// Whether an un-synced change did not survive.
    pub fn lost_something(&self) -> bool {
        self.lost
    }

    /// Whether the next sync of some file, or of the file system, reports an earlier failed
    /// write-back.
    pub fn failed_write_back(&self) -> bool {
        self.unreported_fs || !self.unreported.is_empty()
    }

    /// Paths and bytes of all files, in order of path components.
    pub fn files(&self) -> Vec<(String, Vec<u8>)> {
        let mut out = Vec::new();
        self.tree.walk(&mut |path, node| {
            if let Node::File(content) = node {
                out.push((path.to_owned(), content.bytes()));
            }
        });
        out
    }

    /// Paths of all directories below the root, in order of path components.
    pub fn dirs(&self) -> Vec<String> {
        let mut out = Vec::new();
        self.tree.walk(&mut |path, node| {
            if matches!(node, Node::Dir(_)) && !path.is_empty() {
                out.push(path.to_owned());
            }
        });
        out
    }

    /// The bytes of one file.
    pub fn read(&self, path: &str) -> Option<Vec<u8>> {
        Some(self.tree.file(self.tree.resolve(path)?)?.bytes())
    }

    /// Replaces the bytes of one file, or creates the file in an existing directory, durably.
    /// `false` if the directory does not exist.
    pub fn put(&mut self, path: &str, bytes: &[u8]) -> bool {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let Some(dir) = self.tree.resolve(dir).filter(|&d| self.tree.dir(d).is_some()) else {
            return false;
        };
        let ino = self.tree.lookup(dir, name).unwrap_or_else(|| self.tree.next_ino());
        self.cache = None;
        self.tree.insert(ino, Node::File(Arc::new(Content::of(bytes))));
        self.tree.bind(dir, &Name::from(name), ino);
        true
    }

    /// Removes a name, durably; `false` if it does not exist. A directory is removed with its
    /// content.
    pub fn remove(&mut self, path: &str) -> bool {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        let found = self.tree.resolve(dir).filter(|&d| self.tree.lookup(d, name).is_some());
        if let Some(dir) = found {
            self.cache = None;
            self.tree.unbind(dir, name);
        }
        found.is_some()
    }

    /// The same image on a machine with boot number `boot`, after an orderly shutdown.
    pub fn with_boot(self, boot: u64) -> Self {
        Self { boot, ..self.written_back() }
    }

    /// The image after the write-back of some un-synced pages failed after a kill: of all pages if
    /// `seed` is 0, otherwise of about half. `None` if no page is un-synced.
    pub(super) fn with_failed_write_back(
        disk: &DiskState,
        seed: u64,
        (boot, mount): (u64, u64),
    ) -> Option<Self> {
        let drops = |ino: Ino, page| seed == 0 || mix(seed ^ mix(ino ^ mix(page))) & 1 == 1;
        let (disk, failed) = disk.fail_write_back(drops);
        if failed.is_empty() {
            return None;
        }
        let tree = disk.tree_after_crash(&vec![Fate::Keep; disk.pending.len()]);
        let (cache, unreported) = (Some(Arc::new(disk)), Arc::new(failed));
        Some(Self { tree, cache, boot, mount, lost: true, unreported, unreported_fs: true })
    }

    /// The same image with mount number `mount`. An unmount writes everything back; pages that a
    /// failed sync dropped stay lost.
    pub fn with_mount(self, mount: u64) -> Self {
        Self { mount, ..self.written_back() }
    }

    fn written_back(mut self) -> Self {
        (self.unreported, self.unreported_fs) = (Arc::default(), false);
        if let Some(cache) = self.cache.take() {
            self.tree = cache.tree_after_crash(&vec![Fate::Keep; cache.pending.len()]);
        }
        self
    }
}
