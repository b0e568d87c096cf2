//! Opening a data directory: serve only what is proven, change no old file.
//!
//! ```text
//! Opening::begin   lock → STORE → newest valid snapshot → scan and decide per shard
//!                  → copy what is kept but not proven into the first file of a new generation
//! Opening::replay  every kept frame, generation by generation, lsn by lsn, from where it now lies
//! Opening::finish  Gap frames of what was lost → sync → CURRENT → (new layout) → a live Wal
//! ```
//!
//! Recovery changes no old WAL file, so a crash during it leaves the same input, and recovering again
//! gives the same state.

mod copy;
pub(crate) mod decide;
pub(crate) mod file_ranges;
pub(crate) mod folder;
pub(crate) mod identity;
mod losses;
mod new_generation;
mod progress;
pub mod quarantine;
mod read;
mod replay;
pub(crate) mod shard_plan;
pub(crate) mod survey;
mod tail_proof;
#[cfg(test)]
mod tests;
mod verify;

use std::collections::BTreeSet;

use topics_env::Env;

use self::copy::NewFile;
use self::folder::Folder;
pub use self::progress::RecoveryProgress;
pub use self::replay::Opened;
use self::shard_plan::ShardPlan;
pub use self::verify::{Problem, Progress, Report, verify};
use crate::dir::{DirLock, Lineage, Paths, Store, create_dir, show};
use crate::format::wal_file::WalFileHeader;
use crate::snapshot::{self, LoadedSnapshots, SnapshotBody, Table};
use crate::wal::{BeginLog, FileKey, WalOptions};
use crate::{Result, StorageError};

/// How an open treats damage.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Refuse the open, naming file, offset and lsn.
    #[default]
    Strict,
    /// Declare the damaged range lost, report it, continue behind it.
    Salvage,
}

/// A range of lsns that was lost to damage, inclusive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Loss {
    pub shard: u32,
    /// The first and the last layout in which the lost frames may have been logged. They determine
    /// the topics of the shard and how to compare a position with the range.
    pub layouts: (u64, u64),
    /// The file, relative to the data directory.
    pub file: String,
    /// Where the damage begins in it.
    pub offset: u64,
    /// The lost bytes: from the start of the damaged batch to where the log continues, or to the end
    /// of the file.
    pub bytes: (u64, u64),
    /// First lost lsn: the start of the damaged batch.
    pub from_lsn: u64,
    /// Last lost lsn.
    pub to_lsn: u64,
    /// An earlier recovery declared it lost and logged the gaps.
    pub announced: bool,
}

/// The state of one shard after its log was read.
#[derive(Clone, Copy, Debug)]
pub struct ShardReport {
    pub shard: u32,
    /// The last kept lsn.
    pub end_lsn: u64,
    /// The log ends with a clean close.
    pub clean: bool,
    /// It is proven that every write that returned is on disk or in the page cache: the machine and
    /// the mount stayed up since the log was written, and no write-back failed.
    pub tail_intact: bool,
}

struct Shard {
    folder: Folder,
    plan: ShardPlan,
    /// See [`ShardReport::tail_intact`].
    tail_intact: bool,
    /// Keys of the folder's files, in order.
    keys: Vec<FileKey>,
    /// Unreadable files that were copied to `damaged/`.
    quarantined: Vec<String>,
    /// The file that this generation begins.
    new: Option<(FileKey, NewFile)>,
    /// Its header, if the disk has no space for it: the live log creates it.
    begin_later: Option<WalFileHeader>,
    /// How the live log creates it.
    begin: Option<BeginLog>,
    /// The file that a new layout begins.
    next: Option<(FileKey, NewFile)>,
}

/// What an open may do to the directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// Recover and change it.
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
    /// Of a restored directory.
    lineage: Option<Lineage>,
    loaded: LoadedSnapshots,
    shards: Vec<Shard>,
    options: WalOptions,
    /// The layout on disk: the generation that began with its shard count, and the count.
    layout: (u64, u32),
    generation: u64,
    boot: ([u8; 16], u64),
    next_key: u32,
    /// Nothing is changed.
    read_only: bool,
    /// The damage of `meta/STORE`, when nothing may be changed.
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
        // Before the first write, so that a later `sync_fs` reports the errors of every write of this
        // open.
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
        let lineage = Lineage::read(&env, &paths)?;
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
            lineage,
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

    /// Whether the directory was closed cleanly and shows no damage. Then every file that the newest
    /// snapshot names was durable, and no other file was left.
    #[must_use]
    pub fn closed(&self) -> bool {
        let clean = |s: &Shard| s.report().clean && s.plan.losses.is_empty();
        self.loaded.newest.is_some()
            && self.loaded.rejected.is_empty()
            && self.layout.1 == self.options.shards
            && self.snapshot().is_some_and(|b| b.layout == self.layout.0)
            && self.shards.iter().all(clean)
    }

    /// The snapshots on disk.
    #[must_use]
    pub fn snapshots(&self) -> &LoadedSnapshots {
        &self.loaded
    }

    /// The store's identity.
    #[must_use]
    pub fn store(&self) -> Store {
        self.store
    }

    /// How a restored directory differs from its origin; `None`: it was not restored.
    #[must_use]
    pub fn lineage(&self) -> Option<Lineage> {
        self.lineage
    }

    /// The damage of `meta/STORE`, which an open with `salvage` would restore.
    #[must_use]
    pub fn store_damage(&self) -> Option<&StorageError> {
        self.store_damage.as_ref()
    }

    /// The generation of this open; a new layout takes the next one too.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// The state of each shard.
    #[must_use]
    pub fn reports(&self) -> Vec<ShardReport> {
        self.shards.iter().map(Shard::report).collect()
    }

    /// The shard count of the layout on disk, which determines the shard of a topic.
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

    /// The ranges declared lost, now or by an earlier recovery.
    pub fn losses(&self) -> impl Iterator<Item = &Loss> {
        self.shards.iter().flat_map(|s| &s.plan.losses)
    }

    fn key(&mut self) -> FileKey {
        self.next_key += 1;
        FileKey(self.next_key - 1)
    }

    /// Sets the layout, the newest that any file carries, and the generation of this open, which is
    /// above that of every file, including those of an open that crashed half-way.
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
            clean: self.plan.file_ranges.is_empty() && self.folder.lost_end.is_none()
                || self.plan.clean,
            tail_intact: self.tail_intact,
        }
    }

    /// The newest generation of the folder's log. Unpublished files of this open do not count.
    fn log_generation(&self) -> u64 {
        self.folder.files.last().map_or(0, |f| f.header.generation)
    }

    /// The last assigned lsn, including those of this open.
    fn last_lsn(&self) -> u64 {
        self.new.as_ref().map_or(self.plan.end_lsn, |(_, f)| f.next_lsn - 1)
    }
}
