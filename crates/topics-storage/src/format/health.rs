//! `HEALTH`: what the process that runs, or ran, on a shard's log knows of its write-back.
//!
//! ```text
//! two slots, at offsets 0 and 512, each
//! off size  field
//!   0   4  magic "TWHF"
//!   4   4  version u32
//!   8  16  store id
//!  24   4  shard u32
//!  28   4  health u32     1 running, 2 suspect, 3 closed, 4 checking
//!  32   8  generation u64 of the log that it speaks of
//!  40   8  XXH3-64 of bytes 0…39
//! ```
//!
//! It is read on the boot and the mount that wrote the log, and nowhere else. So it has to outlive
//! the process, which the page cache does, and not the machine: nothing of it waits for a sync.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use topics_env::{Env, File, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use super::frame::u32_at;
use super::wal_file::WalFileHeader;

/// The name of the file in a shard's folder.
pub const HEALTH: &str = "HEALTH";
const MAGIC: [u8; 4] = *b"TWHF";
const VERSION: u32 = 1;
const SLOT: usize = 48;
/// A slot has a sector of its own.
const SLOTS: [u64; 2] = [0, 512];
const LEN: usize = 1024;

/// What is known of the write-back of a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The engine runs, and no sync or write has failed.
    Running,
    /// A sync or a write failed, or may have.
    Suspect,
    /// The engine closed the log cleanly.
    Closed,
    /// An engine was killed while it said `running`, and an open is syncing what it left.
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

/// Whose health a slot holds.
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

    /// What a slot says of this log; `None`: it is damaged, or speaks of another.
    fn health_in(&self, b: &[u8]) -> Option<Health> {
        let health = Health::from_code(u32_at(b, 28))?;
        (b == self.encode(health)).then_some(health)
    }
}

/// The health of one generation of a shard's log, open to be changed without a new descriptor and
/// without a new block.
#[derive(Debug)]
pub struct HealthFile {
    file: Arc<dyn File>,
    path: PathBuf,
    owner: Owner,
    offset: u64,
}

impl HealthFile {
    /// Says that the engine begins to run on the log of this header. The slot of generation `keep`
    /// stays: the log of that one counts until `CURRENT` names the new one.
    pub fn begin(env: &Env, dir: &Path, log: &WalFileHeader, keep: u64) -> io::Result<Self> {
        let path = dir.join(HEALTH);
        let made = match env.fs.open(&path, OpenMode::Write) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            file => Some(Self::running(file?, path.clone(), log, keep)?),
        };
        // An error of a time before must not be told to the next open: that would be taken for one
        // of this generation.
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

    /// What is known of the log of this header; `None`: nothing.
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

    /// Replaces what is said, in place.
    pub fn set(&self, health: Health) -> io::Result<()> {
        self.file.write_all_at(&self.owner.encode(health), self.offset)
    }

    /// Whether every earlier [`Self::set`] is still there, and was written back: the sync makes
    /// nothing durable that anybody waits for, only its error counts.
    pub fn check(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// A sync or a write failed. Whatever else fails now, nothing may go on saying `running`.
    pub fn fail(&self, env: &Env) {
        let said = self.set(Health::Suspect).and_then(|()| self.check());
        let Err(e) = said else { return };
        log::error!("{} cannot be changed and is removed: {e}", self.path.display());
        if let Err(e) = env.fs.remove_file(&self.path) {
            log::error!("{} cannot be removed: {e}", self.path.display());
        }
    }
}

/// The bytes of a slot; zeros where the file is shorter.
fn slot(file: &dyn File, offset: u64) -> io::Result<[u8; SLOT]> {
    let mut bytes = [0; SLOT];
    match file.read_exact_at(&mut bytes, offset) {
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok([0; SLOT]),
        other => other.map(|()| bytes),
    }
}

#[cfg(test)]
mod tests {
    use topics_env::sim::sim_env;

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
    fn a_generation_that_begins_keeps_the_slot_of_the_one_before() {
        let (env, fs, _) = sim_env(1);
        let dir = Path::new("/");
        let begin = |generation, keep| HealthFile::begin(&env, dir, &log(generation), keep);
        assert_eq!(found(&env, 1), None);
        begin(1, 0).unwrap().fail(&env);
        // Two opens that got no further: the first of them is forgotten, the log before them not.
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
    fn a_slot_with_any_bit_flipped_says_nothing() {
        let (env, fs, _) = sim_env(1);
        HealthFile::begin(&env, Path::new("/"), &log(9), 0).unwrap();
        let image = fs.kill_image();
        let whole = image.read("/HEALTH").unwrap();
        for bit in 0..SLOT * 8 {
            let mut bytes = whole.clone();
            bytes[bit / 8] ^= 1 << (bit % 8);
            let mut image = image.clone();
            assert!(image.put("/HEALTH", &bytes));
            let fs = Arc::new(topics_env::sim::SimFs::from_image(&image));
            let env = topics_env::sim::env_on(&fs, &sim_env(1).2, 1);
            assert_eq!(found(&env, 9), None, "bit {bit}");
        }
        for other in
            [WalFileHeader { shard: 4, ..log(9) }, WalFileHeader { store_id: [8; 16], ..log(9) }]
        {
            assert!(HealthFile::find(&env, Path::new("/"), &other).unwrap().is_none());
        }
    }
}
