//! The frames of a `.data` that is in memory as a whole.

use topics_env::Env;

use super::layout::{DATA_HEADER, DataHeader, FRAME_FIXED, corrupt, frame_ts, verify_frame};
use super::{SegmentMeta, TopicKey};
use crate::Result;
use crate::dir::{le_u32, le_u64};

/// The position of a verified frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DataFrame {
    /// The seq of its record.
    pub seq: u64,
    /// The commit time of its record.
    pub ts: u64,
    /// Its offset in `.data`.
    pub offset: u32,
    pub len: u32,
}

/// Iterates over the frames of a whole `.data` and verifies each. Ends after the first error: the
/// bytes from there on belong to no valid frame.
#[derive(Debug)]
pub struct DataFrames<'a> {
    file: &'a str,
    bytes: &'a [u8],
    salt: u64,
    at: usize,
    next_seq: u64,
    last_seq: u64,
}

impl<'a> DataFrames<'a> {
    /// Checks the header: `bytes` are the `.data` of this segment, as long as `meta` says.
    pub fn new(
        env: &Env,
        file: &'a str,
        store_id: [u8; 16],
        topic: TopicKey,
        meta: &SegmentMeta,
        bytes: &'a [u8],
    ) -> Result<Self> {
        let (first_seq, file_no) = (meta.first_seq, meta.file_no);
        let want = DataHeader { store_id, topic, first_seq, file_no, salt: 0 };
        let salt = DataHeader::check(env, file, bytes, &want)?;
        if bytes.len() as u64 != meta.data_len {
            let detail = format!("it has {} bytes, not {}", bytes.len(), meta.data_len);
            return Err(corrupt(file, bytes.len() as u64, detail));
        }
        let last_seq = meta.last_seq;
        Ok(Self { file, bytes, salt, at: DATA_HEADER, next_seq: first_seq, last_seq })
    }

    fn next_frame(&self) -> Option<DataFrame> {
        let rest = &self.bytes[self.at..];
        if rest.len() < FRAME_FIXED {
            return None;
        }
        let (len, seq) = (le_u32(rest, 0) as usize + 4, le_u64(rest, 5));
        if len > rest.len() || !(self.next_seq..=self.last_seq).contains(&seq) {
            return None;
        }
        verify_frame(&rest[..len], self.salt, seq)?;
        let offset = u32::try_from(self.at).ok()?;
        Some(DataFrame { seq, ts: frame_ts(rest), offset, len: len as u32 })
    }
}

impl Iterator for DataFrames<'_> {
    type Item = Result<DataFrame>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at == self.bytes.len() {
            return None;
        }
        match self.next_frame() {
            Some(frame) => {
                self.at += frame.len as usize;
                self.next_seq = frame.seq + 1;
                Some(Ok(frame))
            }
            None => {
                let at = std::mem::replace(&mut self.at, self.bytes.len());
                let detail = format!("no valid frame of seqs {}…{}", self.next_seq, self.last_seq);
                Some(Err(corrupt(self.file, at as u64, detail)))
            }
        }
    }
}
