//! Little-endian fields, one after the other.

use crate::{RemoteError, Result};

/// Reads fields from bytes whose checksum may still be wrong: every length is checked.
pub(super) struct Fields<'a> {
    key: &'a str,
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// Reads these bytes of the object `key`.
    pub fn new(key: &'a str, bytes: &'a [u8]) -> Self {
        Self { key, rest: bytes }
    }

    pub fn damaged(&self, detail: &str) -> RemoteError {
        RemoteError::damaged(self.key, detail)
    }

    pub fn bytes(&mut self, len: usize) -> Result<&'a [u8]> {
        let (bytes, rest) = self
            .rest
            .split_at_checked(len)
            .ok_or_else(|| self.damaged("a table ends within a field"))?;
        self.rest = rest;
        Ok(bytes)
    }

    pub fn array<const N: usize>(&mut self) -> Result<[u8; N]> {
        let mut out = [0; N];
        out.copy_from_slice(self.bytes(N)?);
        Ok(out)
    }

    pub fn u32(&mut self) -> Result<u32> {
        self.array().map(u32::from_le_bytes)
    }

    pub fn u64(&mut self) -> Result<u64> {
        self.array().map(u64::from_le_bytes)
    }

    pub fn u128(&mut self) -> Result<u128> {
        self.array().map(u128::from_le_bytes)
    }

    /// A text: its length, then its bytes.
    pub fn text(&mut self) -> Result<String> {
        let len = self.count(1)?;
        match std::str::from_utf8(self.bytes(len)?) {
            Ok(text) => Ok(text.to_owned()),
            Err(_) => Err(self.damaged("a name is not text")),
        }
    }

    /// A number of elements that take at least `size` bytes each: a number that the rest cannot
    /// hold is refused before anything is allocated.
    pub fn count(&mut self, size: usize) -> Result<usize> {
        let n = self.u32()? as usize;
        match n.checked_mul(size).is_some_and(|len| len <= self.rest.len()) {
            true => Ok(n),
            false => Err(self.damaged("a table is shorter than its number of rows")),
        }
    }

    pub fn finish(self) -> Result<()> {
        match self.rest.is_empty() {
            true => Ok(()),
            false => Err(self.damaged("a table has bytes after its last field")),
        }
    }
}

/// Appends fields.
pub(super) trait PutFields {
    fn put_u32(&mut self, v: u32);
    fn put_u64(&mut self, v: u64);
    fn put_u128(&mut self, v: u128);
}

impl PutFields for Vec<u8> {
    fn put_u32(&mut self, v: u32) {
        self.extend_from_slice(&v.to_le_bytes());
    }

    fn put_u64(&mut self, v: u64) {
        self.extend_from_slice(&v.to_le_bytes());
    }

    fn put_u128(&mut self, v: u128) {
        self.extend_from_slice(&v.to_le_bytes());
    }
}
