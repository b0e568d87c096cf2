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

mod chain;
mod copy;
mod decide;
mod replay;

use std::sync::Arc;

use topics_env::Env;

use self::chain::Folder;
use self::copy::NewFile;
use self::decide::{Reflected, ShardPlan, decide};
use crate::dir::{DirLock, Paths, Store};
use crate::snapshot::{self, Loaded, SnapshotBody};
use crate::wal::{Wal, WalOptions};
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
    /// The machine and the mount did not go down since the log was written and no sync failed:
    /// every write that returned is there.
    pub same_boot: bool,
}

struct Shard {
    folder: Folder,
    plan: ShardPlan,
    new: Option<NewFile>,
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
}

/// What an open leaves to run on.
pub struct Opened {
    /// Held while open.
    pub lock: DirLock,
    /// The log.
    pub wal: Arc<Wal>,
    /// The directory's identity.
    pub store: Store,
    /// The generation of this open.
    pub generation: u64,
    /// The layout in force.
    pub layout: u64,
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
        let (store, _) = Store::open_or_create(&env, &paths)?;
        for (site, dir) in
            [("dir.wal", paths.wal()), ("dir.topics", paths.topics()), ("dir.txn", paths.txn())]
        {
            crate::dir::create_dir(&env, site, &dir)?;
        }
        let loaded = snapshot::load_newest(&env, &paths, store.id)?;
        for (n, e) in &loaded.rejected {
            log::warn!("snapshot {n} is invalid, an older one is used: {e}");
        }
        let boot = (
            env.fs.boot_id().map_err(|e| StorageError::io("read the boot id", e))?,
            env.fs.mount_id(paths.root()).map_err(|e| StorageError::io("read the mount id", e))?,
        );
        let mut opening = Self {
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
        };
        opening.read_shards(mode)?;
        opening.copy_tails()?;
        Ok(opening)
    }

    /// The newest valid snapshot and its number.
    pub fn snapshot(&self) -> Option<&(u64, SnapshotBody)> {
        self.loaded.newest.as_ref()
    }

    /// Everything known about the snapshots on disk.
    pub fn snapshots(&self) -> &Loaded {
        &self.loaded
    }

    /// The store's identity.
    pub fn store(&self) -> Store {
        self.store
    }

    /// The generation of this open (the one before, while a new layout is begun).
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// What is known about the shards of the directory.
    pub fn reports(&self) -> Vec<ShardReport> {
        self.shards
            .iter()
            .map(|s| {
                let last = s.folder.files.iter().rev().find(|f| f.first_lsn.is_some());
                ShardReport {
                    shard: s.folder.shard,
                    end_lsn: s.plan.end_lsn,
                    clean: last.is_none() || s.plan.clean,
                    same_boot: !s.folder.poisoned
                        && last.is_some_and(|f| (f.header.boot_id, f.header.mount_id) == self.boot),
                }
            })
            .collect()
    }

    /// The damage that was given up.
    pub fn losses(&self) -> impl Iterator<Item = &Loss> {
        self.shards.iter().flat_map(|s| &s.plan.losses)
    }

    fn read_shards(&mut self, mode: Mode) -> Result<()> {
        let (env, paths) = (&self.env, &self.paths);
        let mut ids: Vec<u32> = env
            .fs
            .list(&paths.wal())
            .map_err(|e| StorageError::io("list wal", e))?
            .iter()
            .filter_map(|e| e.name.strip_prefix("shard-")?.parse().ok())
            .collect();
        let snap = self.loaded.newest.as_ref().map(|(_, b)| b);
        let known: Vec<u32> = snap.iter().flat_map(|b| &b.shards).map(|s| s.shard).collect();
        ids.extend(&known);
        ids.sort_unstable();
        ids.dedup();
        for shard in ids {
            let in_layout = known.contains(&shard);
            let Some(folder) = Folder::read(env, paths, shard, &self.store.id, in_layout)? else {
                continue;
            };
            let entry = snap
                .iter()
                .flat_map(|b| b.shards.iter().chain(&b.retired))
                .find(|s| s.shard == shard);
            let reflected = entry.map_or(Reflected::default(), |s| Reflected {
                replay_lsn: s.replay_lsn,
                durable_lsn: s.synced_lsn,
            });
            let plan = decide(env, &folder, reflected, mode)?;
            self.shards.push(Shard { folder, plan, new: None });
        }
        self.find_layout();
        Ok(())
    }

    /// The newest layout that any file carries, and the newest generation.
    fn find_layout(&mut self) {
        let headers = || self.shards.iter().flat_map(|s| &s.folder.files).map(|f| &f.header);
        let snap = self.loaded.newest.as_ref().map(|(_, b)| b);
        let newest = headers().map(|h| h.generation).max().unwrap_or(0);
        self.generation = newest.max(snap.map_or(0, |b| b.generation)) + 1;
        self.layout = headers()
            .map(|h| (h.layout, h.shards))
            .max()
            .unwrap_or((self.generation, self.options.shards));
    }

    /// Begins the new generation's file of every shard of the layout on disk.
    fn copy_tails(&mut self) -> Result<()> {
        let (layout, shards) = self.layout;
        for id in 0..shards {
            if self.shards.iter().all(|s| s.folder.shard != id) {
                crate::dir::create_dir(&self.env, "dir.shard", &self.paths.shard(id))?;
                let folder = Folder::empty(id);
                self.shards.push(Shard { folder, plan: ShardPlan::first(), new: None });
            }
        }
        self.shards.sort_by_key(|s| s.folder.shard);
        for shard in self.shards.iter_mut().filter(|s| s.folder.shard < shards) {
            let header = copy::header(
                &self.env,
                self.store.id,
                (shard.folder.shard, shards),
                layout,
                self.generation,
                self.boot,
            );
            shard.new = Some(NewFile::begin(
                &self.env,
                &self.paths,
                &self.options,
                header,
                &shard.folder,
                &shard.plan,
            )?);
        }
        Ok(())
    }
}
