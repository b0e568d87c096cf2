//! Opening a data directory: prove what is served, change nothing old.
//!
//! ```text
//! Opening::begin   lock → STORE → newest valid snapshot → scan and decide per shard
//!                  → copy what is kept but not proven into the first file of a new generation
//! Opening::replay  every kept frame, generation by generation, lsn by lsn, from where it now lies
//! Opening::finish  Gap frames of what was lost → sync → CURRENT → (new layout) → a live Wal
//! ```
//!
//! No old WAL file is changed, so a crash anywhere in here leaves the same input; recovering again
//! gives the same state.

pub(crate) mod chain;
mod copy;
pub(crate) mod decide;
pub(crate) mod identity;
pub(crate) mod links;
pub(crate) mod plan;
mod progress;
pub mod quarantine;
mod replay;
pub(crate) mod survey;
mod tail;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::BTreeSet;
use std::path::Path;

use topics_env::Env;

use self::chain::Folder;
use self::copy::NewFile;
use self::decide::decide;
use self::plan::{NoObserver, Reflected, ShardPlan};
pub use self::progress::RecoveryProgress;
pub use self::replay::Opened;
pub use self::verify::{Problem, Progress, Report, verify};
use crate::checkpoint::Checkpoints;
use crate::dir::{DirLock, Paths, Store, create_dir, reserve, show};
use crate::format::wal_file::{self, WalFileHeader};
use crate::segment::{SegmentOptions, Segments};
use crate::snapshot::{self, LoadedSnapshots, SnapshotBody, Table};
use crate::wal::{FileKey, WalOptions};
use crate::{Result, StorageError};

/// What is done about damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuse the open, naming file, offset and lsn.
    #[default]
    Strict,
    /// Give the damaged range up, report it, go on behind it.
    Salvage,
}

/// A range of lsns that damage took, inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    /// The shard.
    pub shard: u32,
    /// The first and the last layout in which what is lost may have been logged: they say which
    /// topics the shard had, and what a position means beside the range.
    pub layouts: (u64, u64),
    /// The file, relative to the data directory.
    pub file: String,
    /// Where the damage begins in it.
    pub offset: u64,
    /// The bytes given up: from where the batch that the damage touches begins to where the log
    /// goes on, or the file ends.
    pub bytes: (u64, u64),
    /// First lsn given up (the start of the batch that the damage touches).
    pub from_lsn: u64,
    /// Last lsn given up.
    pub to_lsn: u64,
    /// An earlier recovery gave it up and logged the gaps.
    pub announced: bool,
}

/// What is known about one shard after its log was read.
#[derive(Clone, Copy, Debug)]
pub struct ShardReport {
    /// The shard.
    pub shard: u32,
    /// The last kept lsn.
    pub end_lsn: u64,
    /// The log ends with a clean close.
    pub clean: bool,
    /// The machine and the mount did not go down since the log was written, and no write-back
    /// failed: every write that returned is there. False where that is not proven.
    pub tail_intact: bool,
}

struct Shard {
    folder: Folder,
    plan: ShardPlan,
    /// See [`ShardReport::tail_intact`].
    tail_intact: bool,
    /// Keys of the folder's files, in order.
    keys: Vec<FileKey>,
    /// Files that cannot be read, of which a copy was set aside.
    quarantined: Vec<String>,
    /// The file that this generation begins.
    new: Option<(FileKey, NewFile)>,
    /// The file that a new layout begins.
    next: Option<(FileKey, NewFile)>,
}

/// What an opening may do to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Change it.
    ReadWrite(Mode),
    /// Read it as `salvage` would, and change nothing.
    ReadOnly,
}

/// A directory being opened.
pub struct Opening {
    env: Env,
    paths: Paths,
    lock: DirLock,
    store: Store,
    loaded: LoadedSnapshots,
    shards: Vec<Shard>,
    options: WalOptions,
    /// The layout on disk: the generation that began with its shard count, and the count.
    layout: (u64, u32),
    generation: u64,
    boot: ([u8; 16], u64),
    next_key: u32,
    /// Nothing may be changed.
    read_only: bool,
    /// What is wrong with `meta/STORE`, where nothing may be changed.
    store_damage: Option<StorageError>,
}

impl Opening {
    /// Locks and reads a directory, creating it when it is missing.
    pub fn begin(
        env: Env,
        paths: Paths,
        pid: u32,
        options: WalOptions,
        mode: Mode,
    ) -> Result<Self> {
        let lock = DirLock::acquire(&env, &paths, pid)?;
        let mut opening = Self::new(env, paths, lock, options, Access::ReadWrite(mode))?;
        opening.read_shards(mode)?;
        opening.find_layout()?;
        opening.copy_tails()?;
        Ok(opening)
    }

    /// Reads a directory as `salvage` would and changes nothing but the lock file: for
    /// [`Self::replay`], [`Self::losses`] and [`Self::reports`]. [`Self::finish`] refuses.
    pub fn inspect(env: Env, paths: Paths, pid: u32, options: WalOptions) -> Result<Self> {
        let meta = paths.meta();
        if identity::find(&env, &paths)?.is_none() {
            return Err(StorageError::Missing { what: show(&meta.join("STORE")) });
        }
        let lock = DirLock::acquire(&env, &paths, pid)?;
        let mut opening = Self::new(env, paths, lock, options, Access::ReadOnly)?;
        opening.read_shards(Mode::Salvage)?;
        opening.find_layout()?;
        Ok(opening)
    }

    fn new(
        env: Env,
        paths: Paths,
        mut lock: DirLock,
        options: WalOptions,
        access: Access,
    ) -> Result<Self> {
        // The mount is looked at before the first write, so that a later `sync_fs` reports errors
        // of every write of this open.
        let mount = env.fs.mount_id(paths.root());
        let boot = (
            env.fs.boot_id().map_err(|e| StorageError::io("read the boot id", e))?,
            mount.map_err(|e| StorageError::io("read the mount id", e))?,
        );
        let mut store_damage = None;
        let store = match access {
            Access::ReadWrite(Mode::Strict) => Store::open_or_create(&env, &paths)?.0,
            Access::ReadWrite(Mode::Salvage) => {
                // An engine that lost its lock file still has the lock of a damaged STORE.
                lock.lock_store_if_there(&env, &paths)?;
                identity::open_or_restore(&env, &paths)?
            }
            Access::ReadOnly => {
                lock.lock_store_if_there(&env, &paths)?;
                let found = identity::find(&env, &paths)?;
                let found = found.ok_or_else(|| Store::missing(&paths))?;
                store_damage = found.damage;
                found.store
            }
        };
        if access != Access::ReadOnly {
            lock.lock_store(&env, &paths)?;
            for dir in [paths.wal(), paths.topics(), paths.txn()] {
                create_dir(&env, "dir.names", &dir)?;
            }
        }
        let keep = |n: u64| {
            quarantine::quarantine_file(
                &env,
                &paths,
                &paths.snapshot(n),
                &format!("meta/snapshot.{n}.bin"),
            )
        };
        let mut view = env.clone();
        match access {
            Access::ReadWrite(Mode::Strict) => {}
            Access::ReadWrite(Mode::Salvage) => {
                snapshot::restore_names(&view, &paths, store.id, keep)?;
            }
            Access::ReadOnly => {
                view = view.read_only();
                snapshot::restore_names(&view, &paths, store.id, |_| Ok(()))?;
            }
        }
        let loaded = snapshot::load_newest(&view, &paths, store.id)?;
        for (n, e) in &loaded.rejected {
            log::warn!("snapshot {n} is invalid, an older one is used: {e}");
            if access == Access::ReadWrite(Mode::Salvage) {
                keep(*n)?;
            }
        }
        Ok(Self {
            env,
            paths,
            lock,
            store,
            loaded,
            shards: Vec::new(),
            options,
            layout: (0, 0),
            generation: 0,
            boot,
            next_key: 0,
            read_only: access == Access::ReadOnly,
            store_damage,
        })
    }

    /// The newest valid snapshot, without its topics.
    #[must_use]
    pub fn snapshot(&self) -> Option<&SnapshotBody> {
        self.loaded.newest.as_ref().map(|(_, found)| &found.body)
    }

    /// The topics of that snapshot.
    #[must_use]
    pub fn topics(&self) -> Option<&Table> {
        self.loaded.newest.as_ref().map(|(_, found)| &found.topics)
    }

    /// The same, to be kept.
    pub fn take_topics(&mut self) -> Table {
        let newest = self.loaded.newest.as_mut();
        newest.map(|(_, found)| std::mem::take(&mut found.topics)).unwrap_or_default()
    }

    /// Whether the log says that the directory was closed cleanly, and nothing speaks against it:
    /// then every file that the newest snapshot names was durable, and nothing else was left.
    #[must_use]
    pub fn closed(&self) -> bool {
        let clean = |s: &Shard| s.report().clean && s.plan.losses.is_empty();
        self.loaded.newest.is_some()
            && self.loaded.rejected.is_empty()
            && self.layout.1 == self.options.shards
            && self.snapshot().is_some_and(|b| b.layout == self.layout.0)
            && self.shards.iter().all(clean)
    }

    /// Everything known about the snapshots on disk.
    #[must_use]
    pub fn snapshots(&self) -> &LoadedSnapshots {
        &self.loaded
    }

    /// The store's identity.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store
    }

    /// What is wrong with `meta/STORE`, which an open with `salvage` would make again.
    #[must_use]
    pub fn store_damage(&self) -> Option<&StorageError> {
        self.store_damage.as_ref()
    }

    /// The generation of this open; a new layout takes the next one too.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What is known about the shards of the directory.
    #[must_use]
    pub fn reports(&self) -> Vec<ShardReport> {
        self.shards.iter().map(Shard::report).collect()
    }

    /// The shard count of the layout on disk: where a topic's frames lie.
    #[must_use]
    pub fn shard_count(&self) -> u32 {
        self.layout.1
    }

    /// The layout on disk.
    #[must_use]
    pub fn layout(&self) -> u64 {
        self.layout.0
    }

    /// Every layout that the log and the snapshot know, with its shard count, ascending.
    #[must_use]
    pub fn layouts(&self) -> Vec<(u64, u32)> {
        let logs = self.shards.iter().flat_map(|s| &s.folder.files);
        let logs = logs.map(|f| (f.header.layout, f.header.shards));
        let snapshot = self.snapshot().map(|b| (b.layout, b.shards.len() as u32));
        let all: BTreeSet<_> = logs.chain(snapshot).chain([self.layout]).collect();
        all.into_iter().collect()
    }

    /// The damage that was given up, now or by an earlier recovery.
    pub fn losses(&self) -> impl Iterator<Item = &Loss> {
        self.shards.iter().flat_map(|s| &s.plan.losses)
    }

    fn read_shards(&mut self, mode: Mode) -> Result<()> {
        let mut found: Vec<(Folder, Reflected)> = Vec::new();
        let (env, paths) = (self.env.clone(), self.paths.clone());
        let (boot, read_only) = (self.boot, self.read_only);
        let mut proof = tail::TailProof { env, paths, boot, read_only, fs_synced: None };
        for wanted in survey::shards(&self.env, &self.paths, self.snapshot())? {
            if self.retire(wanted.shard)? {
                continue;
            }
            let (env, paths) = (&self.env, &self.paths);
            let (shard, known) = (wanted.shard, wanted.known);
            let folder = Folder::read(env, paths, shard, &self.store.id, known, mode)?;
            found.extend(folder.map(|f| (f, wanted.reflected)));
        }
        if mode == Mode::Salvage {
            self.find_lost_shards(&mut found)?;
        }
        for (folder, reflected) in found {
            let (env, paths) = (&self.env, &self.paths);
            // First: what a failed write-back takes must not be read before.
            let tail_intact = proof.is_intact(&folder);
            let plan = decide(env, &folder, reflected, mode, &mut NoObserver);
            let plan = plan.map_err(|e| self.root_cause(e))?;
            let quarantined = match mode {
                _ if self.read_only => Vec::new(),
                Mode::Strict => Vec::new(),
                Mode::Salvage => quarantine::quarantine_losses(env, paths, &folder, &plan),
            };
            let keys = folder.files.iter().map(|_| self.key()).collect();
            let (new, next) = (None, None);
            self.shards.push(Shard { folder, plan, tail_intact, keys, quarantined, new, next });
        }
        self.check_topics_known()?;
        if mode == Mode::Strict {
            let folders: Vec<&Folder> = self.shards.iter().map(|s| &s.folder).collect();
            if let Some(shard) = survey::missing_shards(&self.env, &folders)?.first() {
                return Err(survey::no_current(*shard));
            }
        }
        Ok(())
    }

    /// Counts the shards that lack the newest layout's file as lost.
    fn find_lost_shards(&self, found: &mut Vec<(Folder, Reflected)>) -> Result<()> {
        let folders: Vec<&Folder> = found.iter().map(|(f, _)| f).collect();
        for shard in survey::missing_shards(&self.env, &folders)? {
            match found.iter_mut().find(|(f, _)| f.shard == shard) {
                Some((folder, _)) => {
                    folder.lost_end.get_or_insert_with(|| survey::no_current(shard));
                }
                None => {
                    let reflected = survey::reflected(self.snapshot(), shard);
                    found.push((Folder::lost(shard, "CURRENT"), reflected));
                }
            }
        }
        found.sort_by_key(|(f, _)| f.shard);
        Ok(())
    }

    /// Without a snapshot and a log nothing says which topics there were: an empty directory would
    /// be served, and the segments of the topics removed.
    fn check_topics_known(&self) -> Result<()> {
        let logged = self.shards.iter().any(|s| !s.plan.links.is_empty());
        if logged || self.loaded.newest.is_some() {
            return Ok(());
        }
        let topics = self.paths.topics();
        let there = !crate::dir::list_dir(&self.env, &topics)?.is_empty();
        let lost = self.shards.iter().any(|s| !s.plan.losses.is_empty());
        if !there && !lost && self.loaded.numbers.is_empty() {
            return Ok(());
        }
        Err(self.root_cause(StorageError::Missing { what: show(&self.paths.wal()) }))
    }

    /// What is missing from a log that was trimmed is what the snapshots said: where none is valid,
    /// nothing can be given up by its range.
    fn root_cause(&self, e: StorageError) -> StorageError {
        let StorageError::Missing { what } = &e else { return e };
        if self.loaded.newest.is_some() {
            return e;
        }
        let (file, offset, why) = match self.loaded.rejected.first() {
            Some((_, StorageError::Corrupt { file, offset, detail })) => (file, *offset, &**detail),
            _ => (what, 0, "it is missing"),
        };
        let detail = format!(
            "{why}; no snapshot is left, and without {what} nothing says which topics there were: \
             restore a backup, or move the directory away and begin with an empty one"
        );
        StorageError::corrupt(file.clone(), offset, detail)
    }

    /// Removes the folder of a shard that both kept snapshots no longer need. Nothing waits for that
    /// to be durable: later snapshots go on naming the shard ([`Opened::outside`]), so that a folder
    /// which comes back after a crash, in part or whole, goes again.
    fn retire(&mut self, shard: u32) -> Result<bool> {
        let done = |b: &SnapshotBody| survey::is_done(b, shard);
        let (env, paths) = (&self.env, &self.paths);
        // A third one is a removal that a crash undid.
        let (true, [newest, older, ..]) =
            (self.snapshot().is_some_and(done), &self.loaded.numbers[..])
        else {
            return Ok(false);
        };
        let load = |n: &u64| snapshot::load(env, paths, *n, self.store.id);
        let (Ok(newest), Ok(older)) = (load(newest), load(older)) else { return Ok(false) };
        if !survey::may_go(env, paths, [&newest.body, &older.body], shard)? {
            return Ok(false);
        }
        let dir = paths.shard(shard);
        let io = |e| StorageError::io(format!("remove {}", dir.display()), e);
        if !self.read_only && env.fs.exists(&dir).map_err(io)? {
            for e in crate::dir::list_dir(env, &dir)? {
                env.fs.remove_file(&dir.join(e.name)).map_err(io)?;
            }
            env.fs.remove_dir(&dir).map_err(io)?;
        }
        Ok(true)
    }

    fn key(&mut self) -> FileKey {
        self.next_key += 1;
        FileKey(self.next_key - 1)
    }

    /// The newest layout that any file carries, and the generation of this open: above that of every
    /// file, an open that crashed half-way included.
    fn find_layout(&mut self) -> Result<()> {
        let headers = || self.shards.iter().flat_map(|s| &s.folder.files).map(|f| &f.header);
        let named = self.shards.iter().map(|s| s.folder.generation).max().unwrap_or(0);
        let snap = self.snapshot().map_or(0, |b| b.generation);
        let mut layout = headers().map(|h| (h.layout, h.shards)).max();
        self.generation = named.max(snap) + 1;
        if self.shards.iter().any(|s| s.folder.lost_end.is_some()) {
            let shards = |b: &SnapshotBody| u32::try_from(b.shards.len()).unwrap_or(u32::MAX);
            layout = layout.max(self.snapshot().map(|b| (b.layout, shards(b))));
            let files = survey::newest_file_generation(&self.env, &self.paths)?;
            self.generation = self.generation.max(files + 1);
        }
        self.layout = layout.unwrap_or((self.generation, self.options.shards));
        Ok(())
    }

    /// Begins the new generation's file of every shard of the layout on disk.
    fn copy_tails(&mut self) -> Result<()> {
        let (layout, shards) = self.layout;
        self.add_shards(shards)?;
        for i in 0..self.shards.len() {
            let shard = &self.shards[i];
            let id = shard.folder.shard;
            // A shard outside the layout is only read, unless its damage must be stated.
            let (layout, shards) = match shard.folder.files.last() {
                _ if id < shards => (layout, shards),
                Some(last) if shard.plan.fresh().next().is_some() => {
                    (last.header.layout, last.header.shards)
                }
                _ => continue,
            };
            let key = self.key();
            let shard = &self.shards[i];
            let header = self.header(id, shards, layout);
            let (folder, plan) = (&shard.folder, &shard.plan);
            let (env, paths, options) = (&self.env, &self.paths, &self.options);
            let begin = || NewFile::begin(env, paths, options, header.clone(), folder, plan);
            let new = match self.has_space_to_copy(i).then(begin) {
                None | Some(Err(StorageError::Full { .. })) => {
                    self.begin_on_full_disk(i, header)?
                }
                Some(other) => other?,
            };
            self.shards[i].new = Some((key, new));
        }
        Ok(())
    }

    /// Whether a copy of a shard's tail leaves what the rest of the open needs.
    fn has_space_to_copy(&self, i: usize) -> bool {
        let Shard { folder, plan, .. } = &self.shards[i];
        let copied = plan.copied.map_or(0, |extent| {
            let end = match &plan.tail {
                Some((file, stop)) if *file == extent.file => stop.offset,
                _ => folder.files[extent.file].file.len().unwrap_or(0),
            };
            end.saturating_sub(extent.offset)
        });
        if copied == 0 {
            return true;
        }
        // What cannot be told is found out by the copy.
        let free = self.env.fs.free_space(self.paths.root()).unwrap_or(u64::MAX);
        free >= copied + self.options.file_initial + reserve::SLACK
    }

    /// Begins a shard's file where a copy of its tail finds no room: behind the tail, which is made
    /// durable where it is.
    fn begin_on_full_disk(&mut self, i: usize, header: WalFileHeader) -> Result<NewFile> {
        self.release_space();
        let shard = &mut self.shards[i];
        if let Some(extent) = shard.plan.copied {
            copy::rewrite(&self.env, &self.paths, &shard.folder, extent)?;
            shard.plan.keep_in_place();
        }
        let (folder, plan) = (&shard.folder, &shard.plan);
        let (env, paths, options) = (&self.env, &self.paths, &self.options);
        NewFile::begin_from_reserve(env, paths, options, header, folder, plan)
    }

    /// Frees what nothing needs: files that were made ready and hold nothing, those of an unfinished
    /// preparation, the space behind the end of the log, and segments of an unfinished checkpoint,
    /// for which the reserve may have been given up. The files of the log keep their names, because
    /// `CURRENT` names one of them and no name is given twice, and their headers.
    fn release_space(&self) {
        let header = wal_file::WAL_HEADER as u64;
        for Shard { folder, plan, .. } in &self.shards {
            let holds = |i: usize| plan.links.iter().any(|l| l.file == i);
            let files = folder.files.iter().enumerate();
            let unused = files.filter(|(i, log)| !holds(*i) && log.found.is_none());
            let unused = unused.map(|(_, log)| (&log.name, header));
            let orphans = folder.orphans.iter().map(|name| (name, header));
            let last = plan.tail.as_ref().map(|(i, stop)| (&folder.files[*i].name, stop.offset));
            for (name, len) in unused.chain(orphans).chain(last) {
                let path = self.paths.shard(folder.shard).join(name);
                if let Err(e) = self.truncate(&path, len) {
                    log::warn!("{} cannot be cut: {e}", path.display());
                }
            }
        }
        if let Err(e) = self.sweep_segments() {
            log::warn!("what a checkpoint did not finish stays: {e}");
        }
    }

    /// Cuts a file that is longer.
    fn truncate(&self, path: &Path, len: u64) -> std::io::Result<()> {
        let file = self.env.fs.open(path, topics_env::OpenMode::Write)?;
        if file.len()? > len { file.set_len(len) } else { Ok(()) }
    }

    /// Removes segment files that no kept snapshot names. Where a newer snapshot is invalid they
    /// stay, because that one may be repaired.
    fn sweep_segments(&self) -> Result<()> {
        if !self.loaded.rejected.is_empty() {
            return Ok(());
        }
        let (env, paths, id) = (&self.env, &self.paths, self.store.id);
        let options = SegmentOptions::default();
        let segments = Segments::new(env.clone(), paths.clone(), id, self.generation, options);
        let topics = segments.list_topics()?.into_iter().collect();
        let checkpoints = Checkpoints::new(env.clone(), paths.clone(), id, segments, &self.loaded);
        checkpoints.sweep(&topics).map(drop)
    }

    /// Makes sure that shards `0..shards` have a folder.
    fn add_shards(&mut self, shards: u32) -> Result<()> {
        for id in 0..shards {
            let known = self.shards.iter().find(|s| s.folder.shard == id);
            if known.is_some_and(|s| s.folder.lost_end.is_none()) {
                continue;
            }
            create_dir(&self.env, "dir.shard", &self.paths.shard(id))?;
            if known.is_some() {
                continue;
            }
            let last = survey::snap_of(self.snapshot(), id).map_or(0, |s| s.last_lsn);
            self.shards.push(Shard {
                folder: Folder::empty(id),
                plan: ShardPlan::first(last),
                tail_intact: false,
                keys: Vec::new(),
                quarantined: Vec::new(),
                new: None,
                next: None,
            });
        }
        self.shards.sort_by_key(|s| s.folder.shard);
        Ok(())
    }

    fn header(&self, shard: u32, shards: u32, layout: u64) -> WalFileHeader {
        WalFileHeader {
            store_id: self.store.id,
            shard,
            shards,
            layout,
            generation: self.generation,
            ordinal: 1,
            salt: self.env.rng.next_u64(),
            boot_id: self.boot.0,
            mount_id: self.boot.1,
            prior: 0,
        }
    }
}

impl Shard {
    fn report(&self) -> ShardReport {
        ShardReport {
            shard: self.folder.shard,
            end_lsn: self.plan.end_lsn,
            clean: self.plan.links.is_empty() && self.folder.lost_end.is_none() || self.plan.clean,
            tail_intact: self.tail_intact,
        }
    }

    /// The newest generation of the folder's log, without the files of this open that are not
    /// published.
    fn log_generation(&self) -> u64 {
        self.folder.files.last().map_or(0, |f| f.header.generation)
    }

    /// The last lsn that has been given, this open's own frames included.
    fn last_lsn(&self) -> u64 {
        self.new.as_ref().map_or(self.plan.end_lsn, |(_, f)| f.next_lsn - 1)
    }
}
