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

pub mod aside;
pub(crate) mod chain;
mod copy;
pub(crate) mod decide;
pub(crate) mod links;
pub(crate) mod plan;
mod progress;
mod replay;
pub(crate) mod survey;
mod tail;
#[cfg(test)]
mod tests;
mod verify;

use topics_env::Env;

use self::chain::Folder;
use self::copy::NewFile;
use self::decide::decide;
use self::plan::{NoWatch, ShardPlan};
pub use self::progress::RecoveryProgress;
pub use self::replay::Opened;
pub use self::verify::{Problem, Progress, Report, verify};
use crate::dir::{DirLock, Paths, Store, create_dir, show};
use crate::format::wal_file::{self, WalFileHeader};
use crate::snapshot::{self, Loaded, SnapshotBody, Table};
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
    copied_aside: Vec<String>,
    /// The file that this generation begins.
    new: Option<(FileKey, NewFile)>,
    /// The file that a new layout begins.
    next: Option<(FileKey, NewFile)>,
}

/// A directory being opened.
pub struct Opening {
    env: Env,
    paths: Paths,
    lock: DirLock,
    store: Store,
    loaded: Loaded,
    shards: Vec<Shard>,
    options: WalOptions,
    /// The layout on disk: the generation that began with its shard count, and the count.
    layout: (u64, u32),
    generation: u64,
    boot: ([u8; 16], u64),
    next_key: u32,
    /// Nothing may be changed.
    dry: bool,
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
        let mut opening = Self::new(env, paths, lock, options)?;
        opening.read_shards(mode)?;
        opening.find_layout();
        opening.copy_tails()?;
        Ok(opening)
    }

    /// Reads a directory as `salvage` would and changes nothing but the lock file: for
    /// [`Self::replay`], [`Self::losses`] and [`Self::reports`]. [`Self::finish`] refuses.
    pub fn look(env: Env, paths: Paths, pid: u32, options: WalOptions) -> Result<Self> {
        let meta = paths.meta();
        let there = env.fs.exists(&meta).map_err(|e| StorageError::io(show(&meta), e))?;
        if !there || Store::read(&env, &paths)?.is_none() {
            return Err(StorageError::Missing { what: show(&meta.join("STORE")) });
        }
        let lock = DirLock::acquire(&env, &paths, pid)?;
        let mut opening = Self { dry: true, ..Self::new(env, paths, lock, options)? };
        opening.read_shards(Mode::Salvage)?;
        opening.find_layout();
        Ok(opening)
    }

    fn new(env: Env, paths: Paths, mut lock: DirLock, options: WalOptions) -> Result<Self> {
        // The mount is looked at before the first write, so that a later `sync_fs` reports errors
        // of every write of this open.
        let mount = env.fs.mount_id(paths.root());
        let boot = (
            env.fs.boot_id().map_err(|e| StorageError::io("read the boot id", e))?,
            mount.map_err(|e| StorageError::io("read the mount id", e))?,
        );
        let (store, _) = Store::open_or_create(&env, &paths)?;
        lock.lock_store(&env, &paths)?;
        for dir in [paths.wal(), paths.topics(), paths.txn()] {
            create_dir(&env, "dir.names", &dir)?;
        }
        let loaded = snapshot::load_newest(&env, &paths, store.id)?;
        for (n, e) in &loaded.rejected {
            log::warn!("snapshot {n} is invalid, an older one is used: {e}");
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
            dry: false,
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
    pub fn snapshots(&self) -> &Loaded {
        &self.loaded
    }

    /// The store's identity.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store
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

    /// The damage that was given up, now or by an earlier recovery.
    pub fn losses(&self) -> impl Iterator<Item = &Loss> {
        self.shards.iter().flat_map(|s| &s.plan.losses)
    }

    fn read_shards(&mut self, mode: Mode) -> Result<()> {
        let (env, paths) = (self.env.clone(), self.paths.clone());
        let (boot, dry) = (self.boot, self.dry);
        let mut proof = tail::TailProof { env, paths, boot, dry, fs_synced: None };
        for wanted in survey::shards(&self.env, &self.paths, self.snapshot())? {
            if self.retire(wanted.shard)? {
                continue;
            }
            let (env, paths) = (&self.env, &self.paths);
            let folder =
                Folder::read(env, paths, wanted.shard, &self.store.id, wanted.known, mode)?;
            let Some(folder) = folder else { continue };
            // First: what a failed write-back takes must not be read before.
            let tail_intact = proof.is_intact(&folder);
            let plan = decide(env, &folder, wanted.reflected, mode, &mut NoWatch);
            let plan = plan.map_err(|e| self.blame(e))?;
            let copied_aside = match mode {
                _ if self.dry => Vec::new(),
                Mode::Strict => Vec::new(),
                Mode::Salvage => aside::set_aside(env, paths, &folder, &plan),
            };
            let keys = folder.files.iter().map(|_| self.key()).collect();
            let (new, next) = (None, None);
            self.shards.push(Shard { folder, plan, tail_intact, keys, copied_aside, new, next });
        }
        let folders: Vec<&Folder> = self.shards.iter().map(|s| &s.folder).collect();
        survey::check_layout(&self.env, &folders)
    }

    /// What is missing from a log that was trimmed is what the snapshots said: where none is valid,
    /// the newest is to blame.
    fn blame(&self, e: StorageError) -> StorageError {
        match (&e, self.loaded.rejected.first()) {
            (StorageError::Missing { .. }, Some((_, why))) if self.loaded.newest.is_none() => {
                why.clone()
            }
            _ => e,
        }
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
        if !self.dry && env.fs.exists(&dir).map_err(io)? {
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
    fn find_layout(&mut self) {
        let headers = || self.shards.iter().flat_map(|s| &s.folder.files).map(|f| &f.header);
        let named = self.shards.iter().map(|s| s.folder.generation).max().unwrap_or(0);
        let snap = self.snapshot().map_or(0, |b| b.generation);
        let layout = headers().map(|h| (h.layout, h.shards)).max();
        self.generation = named.max(snap) + 1;
        self.layout = layout.unwrap_or((self.generation, self.options.shards));
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
            let new = match NewFile::begin(env, paths, options, header.clone(), folder, plan) {
                Err(StorageError::Full { .. }) => {
                    self.give_space_up();
                    NewFile::begin_from_reserve(env, paths, options, header, folder, plan)?
                }
                other => other?,
            };
            self.shards[i].new = Some((key, new));
        }
        Ok(())
    }

    /// The files that were made ready and hold nothing are the reserve of a full disk: they keep
    /// their names, because `CURRENT` names one of them, and their headers.
    fn give_space_up(&self) {
        for shard in &self.shards {
            let holds = |i: usize| shard.plan.links.iter().any(|l| l.file == i);
            let files = shard.folder.files.iter().enumerate();
            for (_, log) in files.filter(|(i, log)| !holds(*i) && log.found.is_none()) {
                let path = self.paths.shard(shard.folder.shard).join(&log.name);
                let cut = self.env.fs.open(&path, topics_env::OpenMode::Write);
                if let Err(e) = cut.and_then(|f| f.set_len(wal_file::WAL_HEADER as u64)) {
                    log::warn!("{} cannot be cut: {e}", path.display());
                }
            }
        }
    }

    /// Makes sure that shards `0..shards` have a folder.
    fn add_shards(&mut self, shards: u32) -> Result<()> {
        for id in 0..shards {
            if self.shards.iter().any(|s| s.folder.shard == id) {
                continue;
            }
            create_dir(&self.env, "dir.shard", &self.paths.shard(id))?;
            let last = survey::snap_of(self.snapshot(), id).map_or(0, |s| s.last_lsn);
            self.shards.push(Shard {
                folder: Folder::empty(id),
                plan: ShardPlan::first(last),
                tail_intact: false,
                keys: Vec::new(),
                copied_aside: Vec::new(),
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
            clean: self.plan.links.is_empty() || self.plan.clean,
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
