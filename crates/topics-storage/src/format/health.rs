//! `HEALTH`: the write-back state of a shard's log, as the current or last process knew it.
//!
//! ```text
//! two slots, at offsets 0 and 512, each
//! off size  field
//!   0   4  magic "TWHF"
//!   4   4  version u32
//!   8  16  store id
//!  24   4  shard u32
//!  28   4  health u32     1 running, 2 suspect, 3 closed, 4 checking
//!  32   8  generation u64 of the log that it describes
//!  40   8  XXH3-64 of bytes 0…39
//! ```
//!
//! Recovery reads it only on the boot and the mount that wrote the log. It must survive the
//! process, which the page cache does, but not the machine: no write of it waits for a sync.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use topics_env::{Env, File, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use super::frame::u32_at;
use super::wal_file::WalFileHeader;

/// The file name in a shard's directory.
pub const HEALTH: &str = "HEALTH";
const MAGIC: [u8; 4] = *b"TWHF";
const VERSION: u32 = 1;
const SLOT: usize = 48;
/// Each slot has its own sector.
const SLOTS: [u64; 2] = [0, 512];
const LEN: usize = 1024;

/// The known state of a log's write-back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The engine is running, and no sync or write has failed.
    Running,
    /// A sync or a write failed, or may have failed.
    Suspect,
    /// The engine closed the log cleanly.
    Closed,
    /// An engine was killed in the state `running`, and an open syncs the files that it left.
    Checking,
}

impl Health {
    fn code(self) -> u32 {
        match self {
            Self::Running => 1,
            Self::Suspect => 2,
            Self::Closed => 3,
            Self::Checking => 4,
        }
    }

    fn from_code(code: u32) -> Option<Self> {
        let all = [Self::Running, Self::Suspect, Self::Closed, Self::Checking];
        all.into_iter().find(|h| h.code() == code)
    }
}

/// The log that a slot describes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owner {
    store_id: [u8; 16],
    shard: u32,
    generation: u64,
}

impl Owner {
    fn of(log: &WalFileHeader) -> Self {
        Self { store_id: log.store_id, shard: log.shard, generation: log.generation }
    }

    fn encode(&self, health: Health) -> [u8; SLOT] {
        let mut b = [0; SLOT];
        b[..4].copy_from_slice(&MAGIC);
        b[4..8].copy_from_slice(&VERSION.to_le_bytes());
        b[8..24].copy_from_slice(&self.store_id);
        b[24..28].copy_from_slice(&self.shard.to_le_bytes());
        b[28..32].copy_from_slice(&health.code().to_le_bytes());
        b[32..40].copy_from_slice(&self.generation.to_le_bytes());
        let sum = xxh3_64(&b[..40]);
        b[40..].copy_from_slice(&sum.to_le_bytes());
        b
    }

    /// The health in a slot; `None` if the slot is damaged or describes another log.
    fn health_in(&self, b: &[u8]) -> Option<Health> {
        let health = Health::from_code(u32_at(b, 28))?;
        (b == self.encode(health)).then_some(health)
    }
}

/// The health of one generation of a shard's log. Keeps the file open, so that a change needs no
/// new descriptor and no new block.
#[derive(Debug)]
pub struct HealthFile {
    file: Arc<dyn File>,
    path: PathBuf,
    owner: Owner,
    offset: u64,
}

impl HealthFile {
    /// Records that the engine starts to run on the log of this header. Keeps the slot of
    /// generation `keep`, which stays valid until `CURRENT` names the new log.
    pub fn begin(env: &Env, dir: &Path, log: &WalFileHeader, keep: u64) -> io::Result<Self> {
        let path = dir.join(HEALTH);
        let made = match env.fs.open(&path, OpenMode::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            file => Some(Self::running(file?, path.clone(), log, keep)?),
        };
        // Without this sync the next open could see an older error and attribute it to this
        // generation.
        if let Some(health) = made {
            match health.check() {
                Ok(()) => return Ok(health),
                Err(e) => log::warn!("{} is made anew: {e}", path.display()),
            }
            env.fs.remove_file(&path)?;
        }
        let file = env.fs.open(&path, OpenMode::CreateNew)?;
        file.write_all_at(&[0; LEN], 0)?;
        Self::running(file, path, log, keep)
    }

    fn running(
        file: Arc<dyn File>,
        path: PathBuf,
        log: &WalFileHeader,
        keep: u64,
    ) -> io::Result<Self> {
        let owner = Owner::of(log);
        let kept = Owner { generation: keep, ..owner };
        let taken = kept.health_in(&slot(&*file, SLOTS[0])?).is_some();
        let health = Self { file, path, owner, offset: SLOTS[usize::from(taken)] };
        health.set(Health::Running)?;
        Ok(health)
    }

    /// The recorded health of the log of this header; `None` if there is no record.
    pub fn find(env: &Env, dir: &Path, log: &WalFileHeader) -> io::Result<Option<(Self, Health)>> {
        let (path, owner) = (dir.join(HEALTH), Owner::of(log));
        let file = match env.fs.open(&path, OpenMode::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            other => other?,
        };
        for offset in SLOTS {
            if let Some(health) = owner.health_in(&slot(&*file, offset)?) {
                return Ok(Some((Self { file, path, owner, offset }, health)));
            }
        }
        Ok(None)
    }

    /// Overwrites the recorded health in place.
    pub fn set(&self, health: Health) -> io::Result<()> {
        self.file.write_all_at(&self.owner.encode(health), self.offset)
    }

    /// Checks that every earlier [`Self::set`] is still present and was written back. The caller
    /// needs only the error of the sync, not its durability.
    pub fn check(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Records a failed sync or write. If that fails too, removes the file: it must not keep saying
    /// `running`.
    pub fn fail(&self, env: &Env) {
        let said = self.set(Health::Suspect).and_then(|()| self.check());
        let Err(e) = said else { return };
        log::error!("{} cannot be changed and is removed: {e}", self.path.display());
        if let Err(e) = env.fs.remove_file(&self.path) {
            log::error!("{} cannot be removed: {e}", self.path.display());
        }
    }
}

/// The bytes of a slot; zeros beyond the end of the file.
fn slot(file: &dyn File, offset: u64) -> io::Result<[u8; SLOT]> {
    let mut bytes = [0; SLOT];
    match file.read_exact_at(&mut bytes, offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok([0; SLOT]),
        other => other.map(|()| bytes),
    }
}

#[cfg(test)]
mod tests {
    use topics_sim::sim_env;

    use super::*;

    fn log(generation: u64) -> WalFileHeader {
        WalFileHeader {
            store_id: [7; 16],
            shard: 3,
            shards: 4,
            layout: 1,
            generation,
            ordinal: 1,
            salt: 5,
            boot_id: [1; 16],
            mount_id: 2,
            prior: 0,
        }
    }

    fn found(env: &Env, generation: u64) -> Option<Health> {
        HealthFile::find(env, Path::new("/"), &log(generation)).unwrap().map(|f| f.1)
    }

    #[test]
    fn a_new_generation_keeps_the_slot_of_the_previous_one() {
        let (env, fs, _) = sim_env(1);
        let dir = Path::new("/");
        let begin = |generation, keep| HealthFile::begin(&env, dir, &log(generation), keep);
        assert_eq!(found(&env, 1), None);
        begin(1, 0).unwrap().fail(&env);
        // Two opens that failed early: the second replaces the slot of the first, and keeps the
        // slot of the log before them.
        for generation in [2, 3] {
            begin(generation, 1).unwrap();
            assert_eq!(
                (found(&env, 1), found(&env, generation)),
                (Some(Health::Suspect), Some(Health::Running))
            );
        }
        assert_eq!(found(&env, 2), None);
        begin(4, 3).unwrap().set(Health::Closed).unwrap();
        let all: Vec<_> = (1..=4).map(|g| found(&env, g)).collect();
        assert_eq!(all, [None, None, Some(Health::Running), Some(Health::Closed)]);
        assert_eq!(fs.kill_image().read("/HEALTH").unwrap().len(), LEN);
    }

    #[test]
    fn a_slot_with_any_flipped_bit_is_ignored() {
        let (env, fs, _) = sim_env(1);
        HealthFile::begin(&env, Path::new("/"), &log(9), 0).unwrap();
        let image = fs.kill_image();
        let whole = image.read("/HEALTH").unwrap();
        for bit in 0..SLOT * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut image = image.clone();
            assert!(image.put("/HEALTH", &bytes));
            let fs = Arc::new(topics_sim::SimFs::from_image(&image));
            let env = topics_sim::env_on(&fs, &sim_env(1).2, 1);
            assert_eq!(found(&env, 9), None, "bit {bit}");
        }
        for other in
            [WalFileHeader { shard: 4, ..log(9) }, WalFileHeader { store_id: [8; 16], ..log(9) }]
        {
            assert!(HealthFile::find(&env, Path::new("/"), &other).unwrap().is_none());
        }
    }
}
