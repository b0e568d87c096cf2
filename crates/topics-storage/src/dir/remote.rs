//! `meta/REMOTE`: which prefix of an object store this directory writes to.
//!
//! ```text
//! off size  field
//!   0   4  magic "TRMT"
//!   4   4  version u32, 1
//!   8  16  prefix id
//!  24   8  epoch u64
//!  32   4  n u32: nonces
//!  36   4  seen u32: 1 if the first nonce is `seen`, else 0
//!  40 16n  nonces
//!   …   8  H(all bytes before)
//! ```

use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64;

use super::{Paths, array, atomic_replace, le_u32, le_u64, read_file, show};
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TRMT";
const VERSION: u32 = 1;
const HEADER: usize = 40;
const NAME: &str = "REMOTE";
/// The most nonces that are kept. Each open adds one until a write of HEAD succeeds.
const MAX_NONCES: usize = 64;

/// What a directory knows of the prefix that it writes to. It is durable before each write of HEAD, so
/// that a HEAD that this directory wrote is told from that of another directory, and of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RemoteRecord {
    /// Random, chosen when the prefix was new.
    pub prefix_id: [u8; 16],
    /// The epoch of the last write.
    pub epoch: u64,
    /// The nonce of the HEAD that was last seen or written; `None`: HEAD was not created yet.
    pub seen: Option<[u8; 16]>,
    /// The nonces of writes since then, whose outcome is not known.
    pub attempted: Vec<[u8; 16]>,
}

impl RemoteRecord {
    /// That of a directory; `None`: it has never written to a prefix.
    pub fn read(env: &Env, paths: &Paths) -> Result<Option<Self>> {
        let path = paths.meta().join(NAME);
        let most = HEADER + 16 * (MAX_NONCES + 1) + 8;
        let Some(b) = read_file(env, &path, most as u64)? else { return Ok(None) };
        let corrupt = |detail: &str| StorageError::corrupt(show(&path), 0, detail);
        let Some((body, sum)) = b.split_last_chunk::<8>().filter(|(b, _)| b.len() >= HEADER) else {
            return Err(corrupt("it is too short"));
        };
        if body[..4] != MAGIC || xxh3_64(body).to_le_bytes() != *sum {
            return Err(corrupt("its checksum does not match"));
        }
        let found = le_u32(body, 4);
        if found != VERSION {
            return Err(StorageError::Version { what: show(&path), found, supported: VERSION });
        }
        let nonces = &body[HEADER..];
        if nonces.len() != 16 * le_u32(body, 32) as usize {
            return Err(corrupt("its length is another than it says"));
        }
        let mut attempted: Vec<[u8; 16]> = nonces.chunks(16).map(|c| array(c, 0)).collect();
        let has_seen = le_u32(body, 36) == 1 && !attempted.is_empty();
        let seen = has_seen.then(|| attempted.remove(0));
        Ok(Some(Self { prefix_id: array(body, 8), epoch: le_u64(body, 24), seen, attempted }))
    }

    /// Writes the file, atomically. Of too many nonces the oldest are left out.
    pub fn write(&self, env: &Env, paths: &Paths) -> Result<()> {
        let skipped = self.attempted.len().saturating_sub(MAX_NONCES);
        let nonces: Vec<_> = self.seen.iter().chain(self.attempted.iter().skip(skipped)).collect();
        let mut out = Vec::with_capacity(HEADER + 16 * nonces.len() + 8);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.prefix_id);
        out.extend_from_slice(&self.epoch.to_le_bytes());
        out.extend_from_slice(&(nonces.len() as u32).to_le_bytes());
        out.extend_from_slice(&u32::from(self.seen.is_some()).to_le_bytes());
        nonces.into_iter().for_each(|n| out.extend_from_slice(n));
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        atomic_replace(env, "dir.remote", &paths.meta(), NAME, &out)
    }

    /// Removes the file: the directory belongs to no prefix any more.
    pub fn remove(env: &Env, paths: &Paths) -> Result<()> {
        let path = paths.meta().join(NAME);
        match env.fs.remove_file(&path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => {
                return Err(StorageError::io(show(&path), e));
            }
            _ => {}
        }
        env.sync_dir("dir.remote", &paths.meta()).map_err(|e| StorageError::io(show(&path), e))
    }

    /// Whether a HEAD with this nonce may be a write of this directory.
    #[must_use]
    pub fn knows(&self, nonce: &[u8; 16]) -> bool {
        self.seen.iter().chain(&self.attempted).any(|n| n == nonce)
    }
}
