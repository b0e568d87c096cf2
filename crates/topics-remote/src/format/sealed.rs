//! The frame of every immutable object: a header that says whose it is, a directory, and a footer
//! with a checksum of everything.

use bytes::Bytes;
use topics_env::objects::ObjectBytes;
use xxhash_rust::xxh3::{xxh3_64, xxh3_128};

use super::fields::{Fields, PutFields};
use super::keys::{self, Serial};
use crate::{RemoteError, Result};

/// The version of every object format.
pub const VERSION: u32 = 1;
/// The length of a header.
pub const HEADER: usize = 64;
/// The length of a footer.
pub const FOOTER: usize = 64;

const FOOTER_MAGIC: [u8; 4] = *b"TEND";

/// A kind of immutable object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ObjectKind {
    /// Files of the data directory.
    Pack,
    /// A snapshot, and where everything is that it names.
    Base,
    /// A part of the log.
    Round,
}

impl ObjectKind {
    fn magic(self) -> [u8; 4] {
        match self {
            Self::Pack => *b"TPCK",
            Self::Round => *b"TRND",
            Self::Base => *b"TBAS",
        }
    }
}

/// Who wrote an object, and which of the writer's objects it is. No two objects have the same
/// header, so that no two have the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ObjectHeader {
    pub kind: ObjectKind,
    /// The data directory's id.
    pub store_id: [u8; 16],
    pub prefix_id: [u8; 16],
    /// The writer's epoch.
    pub epoch: u64,
    /// The number of the object, in its kind and epoch.
    pub number: u64,
}

impl ObjectHeader {
    #[must_use]
    pub fn serial(&self) -> Serial {
        Serial { epoch: self.epoch, number: self.number }
    }

    /// The key of the object.
    #[must_use]
    pub fn key(&self) -> String {
        keys::object(self.kind, self.serial())
    }

    #[must_use]
    pub fn encode(&self) -> [u8; HEADER] {
        let mut out = [0; HEADER];
        out[..4].copy_from_slice(&self.kind.magic());
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..24].copy_from_slice(&self.store_id);
        out[24..40].copy_from_slice(&self.prefix_id);
        out[40..48].copy_from_slice(&self.epoch.to_le_bytes());
        out[48..56].copy_from_slice(&self.number.to_le_bytes());
        let sum = xxh3_64(&out[..56]);
        out[56..].copy_from_slice(&sum.to_le_bytes());
        out
    }

    /// Decodes the header of the object `key`, which is of this kind.
    pub fn decode(key: &str, kind: ObjectKind, bytes: &[u8]) -> Result<Self> {
        let mut f = Fields::new(key, bytes.get(..HEADER).unwrap_or(bytes));
        let magic: [u8; 4] = f.array()?;
        let version = f.u32()?;
        let out = Self {
            kind,
            store_id: f.array()?,
            prefix_id: f.array()?,
            epoch: f.u64()?,
            number: f.u64()?,
        };
        if magic != kind.magic() {
            return Err(f.damaged("it is not the kind of object that its key says"));
        }
        if f.u64()? != xxh3_64(&bytes[..56]) {
            return Err(f.damaged("the checksum of its header does not match"));
        }
        if version != VERSION {
            let (key, found) = (key.to_owned(), version);
            return Err(RemoteError::Version { key, found, supported: VERSION });
        }
        Ok(out)
    }
}

/// What names the content of an immutable object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectRef {
    pub key: String,
    pub len: u64,
    /// The XXH3-128 of everything before its footer.
    pub hash: u128,
}

/// The last bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Footer {
    /// Where the directory is.
    pub dir_at: u64,
    pub dir_len: u64,
    /// Its XXH3-64.
    pub dir_hash: u64,
    /// The length of the object.
    pub len: u64,
    /// The XXH3-128 of everything before the footer.
    pub hash: u128,
}

impl Footer {
    fn encode(&self) -> [u8; FOOTER] {
        let mut out = Vec::with_capacity(FOOTER);
        out.extend_from_slice(&FOOTER_MAGIC);
        out.put_u32(VERSION);
        out.put_u64(self.dir_at);
        out.put_u64(self.dir_len);
        out.put_u64(self.dir_hash);
        out.put_u64(self.len);
        out.put_u128(self.hash);
        out.put_u64(xxh3_64(&out));
        let mut bytes = [0; FOOTER];
        bytes.copy_from_slice(&out);
        bytes
    }

    /// Decodes the footer at the end of `tail`, the last bytes of an object of `len` bytes.
    pub fn decode(key: &str, tail: &[u8], len: u64) -> Result<Self> {
        let at = tail.len().checked_sub(FOOTER);
        let bytes = at.map_or(&[][..], |at| &tail[at..]);
        let mut f = Fields::new(key, bytes);
        if bytes.is_empty() {
            return Err(f.damaged("it is shorter than its footer"));
        }
        let (magic, version): ([u8; 4], u32) = (f.array()?, f.u32()?);
        let (dir_at, dir_len, dir_hash) = (f.u64()?, f.u64()?, f.u64()?);
        let out = Self { dir_at, dir_len, dir_hash, len: f.u64()?, hash: f.u128()? };
        if magic != FOOTER_MAGIC || f.u64()? != xxh3_64(&bytes[..56]) {
            return Err(f.damaged("its footer is damaged"));
        }
        if version != VERSION {
            let (key, found) = (key.to_owned(), version);
            return Err(RemoteError::Version { key, found, supported: VERSION });
        }
        let end = dir_at.checked_add(dir_len).and_then(|end| end.checked_add(FOOTER as u64));
        if out.len != len || end != Some(len) || dir_at < HEADER as u64 {
            return Err(f.damaged("its length differs from the one in its footer"));
        }
        Ok(out)
    }

    /// Whether these are the last bytes of an undamaged object. Its other bytes are not checked.
    #[must_use]
    pub fn is_valid(found: &ObjectBytes) -> bool {
        Self::decode("", &found.bytes, found.len).is_ok()
    }
}

/// An object in memory.
#[derive(Clone, Debug)]
pub struct SealedObject {
    pub object: ObjectRef,
    pub bytes: Bytes,
}

/// Appends directory and footer to the header and the parts of an object.
pub(super) fn seal(key: String, mut bytes: Vec<u8>, directory: &[u8]) -> SealedObject {
    let dir_at = bytes.len() as u64;
    bytes.extend_from_slice(directory);
    let len = (bytes.len() + FOOTER) as u64;
    let dir_len = directory.len() as u64;
    let (hash, dir_hash) = (xxh3_128(&bytes), xxh3_64(directory));
    bytes.extend_from_slice(&Footer { dir_at, dir_len, dir_hash, len, hash }.encode());
    SealedObject { object: ObjectRef { key, len, hash }, bytes: bytes.into() }
}

/// Checks a whole object, and its identity if `hash` names one. Returns header and directory.
pub(super) fn open<'a>(
    key: &str,
    kind: ObjectKind,
    hash: Option<u128>,
    bytes: &'a [u8],
) -> Result<(ObjectHeader, Footer, &'a [u8])> {
    let footer = Footer::decode(key, bytes, bytes.len() as u64)?;
    let (body, _) = bytes.split_at(bytes.len() - FOOTER);
    if xxh3_128(body) != footer.hash {
        return Err(RemoteError::damaged(key, "the checksum of its bytes does not match"));
    }
    if hash.is_some_and(|h| h != footer.hash) {
        return Err(RemoteError::damaged(key, "it is another object than the base names"));
    }
    let header = ObjectHeader::decode(key, kind, body)?;
    Ok((header, footer, directory(key, &footer, &body[footer.dir_at as usize..])?))
}

/// Checks a directory.
pub(crate) fn directory<'a>(key: &str, footer: &Footer, bytes: &'a [u8]) -> Result<&'a [u8]> {
    match bytes.len() as u64 == footer.dir_len && xxh3_64(bytes) == footer.dir_hash {
        true => Ok(bytes),
        false => Err(RemoteError::damaged(key, "the checksum of its directory does not match")),
    }
}
