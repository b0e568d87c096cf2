//! WAL files: names, header, `CURRENT`.
//!
//! ```text
//! off size  field
//!   0   4  magic "TWAL"
//!   4   4  version u32
//!   8  16  store id
//!  24   4  shard u32
//!  28   4  shards u32      shard count of the layout
//!  32   8  layout u64      the generation that began with this shard count
//!  40   8  generation u64
//!  48   8  ordinal u64     of the file within the generation, from 1
//!  56   8  salt u64        random
//!  64  16  boot id
//!  80   8  mount id u64
//!  88   8  prior u64       ordinal of the file in use when this one was prepared, 0 for none
//!  96   8  XXH3-64 of bytes 0…95
//! ```

use std::path::Path;

use topics_env::{Env, File, OpenMode};
use xxhash_rust::xxh3::xxh3_64;

use super::frame::{u32_at, u64_at};
use crate::dir::create_temp;
use crate::{Result, StorageError};

/// The version of the WAL format.
pub const WAL_VERSION: u32 = 1;
/// Bytes of the header.
pub const WAL_HEADER: usize = 104;
const MAGIC: [u8; 4] = *b"TWAL";
const CURRENT: &str = "CURRENT";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalFileHeader {
    /// The directory's id.
    pub store_id: [u8; 16],
    pub shard: u32,
    /// Shard count of the layout.
    pub shards: u32,
    /// The generation that began with this shard count.
    pub layout: u64,
    pub generation: u64,
    /// The file's number within the generation, from 1.
    pub ordinal: u64,
    /// Random; seeds every checksum of the file.
    pub salt: u64,
    /// The boot that wrote the file.
    pub boot_id: [u8; 16],
    /// The mount that the file was written on.
    pub mount_id: u64,
    /// The ordinal, in this generation, of the file in use when this one was prepared; 0: none.
    /// While this file is empty, that file must exist.
    pub prior: u64,
}

impl WalFileHeader {
    /// The header's bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut b = Vec::with_capacity(WAL_HEADER);
        b.extend_from_slice(&MAGIC);
        b.extend_from_slice(&WAL_VERSION.to_le_bytes());
        b.extend_from_slice(&self.store_id);
        b.extend_from_slice(&self.shard.to_le_bytes());
        b.extend_from_slice(&self.shards.to_le_bytes());
        for v in [self.layout, self.generation, self.ordinal, self.salt] {
            b.extend_from_slice(&v.to_le_bytes());
        }
        b.extend_from_slice(&self.boot_id);
        b.extend_from_slice(&self.mount_id.to_le_bytes());
        b.extend_from_slice(&self.prior.to_le_bytes());
        let sum = xxh3_64(&b);
        b.extend_from_slice(&sum.to_le_bytes());
        b
    }

    /// Reads and checks the header of a file; `shown` is its name in errors.
    pub fn read(env: &Env, file: &dyn File, shown: &str) -> Result<Self> {
        let mut b = [0u8; WAL_HEADER];
        file.read_exact_at(&mut b, 0).map_err(|e| match e.kind() {
            std::io::ErrorKind::UnexpectedEof => {
                StorageError::corrupt(shown, 0, "shorter than its header")
            }
            _ => StorageError::io(format!("read {shown}"), e),
        })?;
        Self::decode(env, &b, shown)
    }

    /// Checks the bytes of a header.
    pub fn decode(env: &Env, b: &[u8; WAL_HEADER], shown: &str) -> Result<Self> {
        let corrupt = |offset, detail: &str| StorageError::corrupt(shown, offset, detail);
        if b[0..4] != MAGIC {
            return Err(corrupt(0, "not a WAL file"));
        }
        if !env.check("wal.header", xxh3_64(&b[..96]) == u64_at(b, 96)) {
            return Err(corrupt(96, "the header's checksum differs"));
        }
        let version = u32_at(b, 4);
        if version != WAL_VERSION {
            return Err(StorageError::Version {
                what: shown.into(),
                found: version,
                supported: WAL_VERSION,
            });
        }
        let id = |at: usize| {
            let mut v = [0; 16];
            v.copy_from_slice(&b[at..at + 16]);
            v
        };
        Ok(Self {
            store_id: id(8),
            shard: u32_at(b, 24),
            shards: u32_at(b, 28),
            layout: u64_at(b, 32),
            generation: u64_at(b, 40),
            ordinal: u64_at(b, 48),
            salt: u64_at(b, 56),
            boot_id: id(64),
            mount_id: u64_at(b, 80),
            prior: u64_at(b, 88),
        })
    }
}

/// The name of a WAL file; names sort by generation, then ordinal.
#[must_use]
pub fn name(generation: u64, ordinal: u64) -> String {
    format!("wal-{generation:010}-{ordinal:010}.log")
}

/// Generation and ordinal of a log file name; `None` for another name.
#[must_use]
pub fn parse_name(name: &str) -> Option<(u64, u64)> {
    let (g, o) = name.strip_prefix("wal-")?.strip_suffix(".log")?.split_once('-')?;
    let pair = (g.parse().ok()?, o.parse().ok()?);
    (self::name(pair.0, pair.1) == name).then_some(pair)
}

/// The log file that `CURRENT` in a shard's directory names; `None` if there is no `CURRENT`.
pub fn read_current(env: &Env, dir: &Path) -> Result<Option<String>> {
    let path = dir.join(CURRENT);
    let shown = path.display().to_string();
    if !env.fs.exists(&path).map_err(|e| StorageError::io(&shown, e))? {
        return Ok(None);
    }
    let file = env.fs.open(&path, OpenMode::Read).map_err(|e| StorageError::io(&shown, e))?;
    let len = file.len().map_err(|e| StorageError::io(&shown, e))?;
    let mut bytes = vec![0; usize::try_from(len.min(256)).unwrap_or(256)];
    file.read_exact_at(&mut bytes, 0).map_err(|e| StorageError::io(&shown, e))?;
    let corrupt = || StorageError::Corrupt {
        file: shown.clone(),
        offset: 0,
        detail: "does not name a WAL file".into(),
    };
    let text = String::from_utf8(bytes).map_err(|_| corrupt())?;
    let (name, sum) =
        text.strip_suffix('\n').and_then(|t| t.split_once(' ')).ok_or_else(corrupt)?;
    let right = format!("{:016x}", xxh3_64(name.as_bytes())) == sum && parse_name(name).is_some();
    if !env.check("wal.current.checksum", right) {
        return Err(corrupt());
    }
    Ok(Some(name.to_owned()))
}

/// Points `CURRENT` to a file: temp → sync → rename → directory sync. The content is the name, a
/// space, XXH3-64 of the name in hex, a newline.
pub fn write_current(env: &Env, dir: &Path, name: &str) -> Result<()> {
    let temp = dir.join("CURRENT.tmp");
    let io = |e| StorageError::io(format!("point {} to {name}", dir.join(CURRENT).display()), e);
    let file = create_temp(env, &temp).map_err(io)?;
    let text = format!("{name} {:016x}\n", xxh3_64(name.as_bytes()));
    file.write_all_at(text.as_bytes(), 0).map_err(io)?;
    env.sync("wal.current.sync", &*file).map_err(io)?;
    env.rename("wal.current.rename", &temp, &dir.join(CURRENT)).map_err(io)?;
    env.sync_dir("wal.current.dir", dir).map_err(io)
}
