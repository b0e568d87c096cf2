//! `meta/LINEAGE`: how a restored directory or a backup differs from the one that its files are from.
//!
//! ```text
//! off size  field
//!   0   4  magic "TLNG"
//!   4   4  version u32, 1
//!   8   8  skip u64
//!  16   8  H(bytes 0…15)
//! ```

use topics_env::Env;
use xxhash_rust::xxh3::xxh3_64;

use super::{Paths, atomic_replace, le_u32, le_u64, read_file, show};
use crate::{Result, StorageError};

const MAGIC: [u8; 4] = *b"TLNG";
const VERSION: u32 = 1;
const LEN: usize = 24;
const NAME: &str = "LINEAGE";

/// What a restored directory or a backup has of its own. Other directories have no such file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lineage {
    /// Seqs that each topic skips at the next open: the directory that the files are from may have
    /// given them to records. 0: none.
    pub skip: u64,
}

impl Lineage {
    /// That of a directory whose origin may have gone on: each topic skips seqs, more than the origin can
    /// have given away.
    pub const ORIGIN_WENT_ON: Self = Self { skip: 1 << 32 };
    /// That of a directory whose topics skip nothing, or have done so.
    pub const NO_SKIP: Self = Self { skip: 0 };

    /// That of a directory; `None`: it is neither restored nor a backup.
    pub fn read(env: &Env, paths: &Paths) -> Result<Option<Self>> {
        let path = paths.meta().join(NAME);
        let Some(b) = read_file(env, &path, LEN as u64)? else { return Ok(None) };
        let whole = b.len() == LEN && b[..4] == MAGIC && xxh3_64(&b[..16]) == le_u64(&b, 16);
        if !whole {
            return Err(StorageError::corrupt(show(&path), 0, "its checksum does not match"));
        }
        match le_u32(&b, 4) {
            VERSION => Ok(Some(Self { skip: le_u64(&b, 8) })),
            found => Err(StorageError::Version { what: show(&path), found, supported: VERSION }),
        }
    }

    /// Writes the file, atomically.
    pub fn write(&self, env: &Env, paths: &Paths) -> Result<()> {
        let mut out = Vec::with_capacity(LEN);
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&self.skip.to_le_bytes());
        let sum = xxh3_64(&out);
        out.extend_from_slice(&sum.to_le_bytes());
        atomic_replace(env, "dir.lineage", &paths.meta(), NAME, &out)
    }
}
