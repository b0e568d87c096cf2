//! Bodies of control frames, a file per family.
//!
//! A body is one version byte, then bincode 2 (standard configuration: variable-length integers,
//! little-endian; `FORMAT.md` states the encoding). Group and Start are fixed, because a scan that
//! has lost its place must recognise them alone.

mod log;
mod topic;
mod verbs;

use std::borrow::Cow;

pub use self::log::{CheckpointMark, CleanClose, Gap, Group, Start};
pub use self::topic::{
    ConfigUpdate, Delete, EvictWatermark, HeadWatermark, Idempotency, MatchKind, TopicCreate,
    TopicDelete,
};
pub use self::verbs::{
    Consumer, Forward, Lease, LeaseEvent, RouterCreate, RouterDelete, TxnCommit, TxnDone, TxnFile,
    TxnPart, TxnTopic,
};

use super::codec::{Decode, Encode, decode_varint, encode_varint};
use super::frame::{self, Frame, FrameType};
use crate::StorageError;

/// A control body.
pub trait Body: Encode + Decode<()> {
    /// The frame type that carries it.
    const KIND: FrameType;
    /// The newest version of its encoding. A body is written in the lowest that says all of it.
    const VERSION: u8 = 1;
    /// Zeros at the end of the encoding that version 1 leaves out: fields that came since.
    const SINCE_1: usize = 0;

    /// Appends a whole control frame (not sealed).
    fn encode_frame(&self, out: &mut Vec<u8>, topic_id: u64, seq: u64, ts: u64) {
        let mut body = vec![Self::VERSION];
        encode_varint(self, &mut body);
        let first = body.len().saturating_sub(Self::SINCE_1).max(1);
        if Self::VERSION > 1 && body[first..].iter().all(|b| *b == 0) {
            body.truncate(first);
            body[0] = 1;
        }
        frame::encode(out, &Frame::control(Self::KIND, topic_id, seq, ts, &body));
    }

    /// Decodes the body of a frame of this kind.
    fn decode(f: &Frame<'_>) -> Result<Self, StorageError> {
        let what = || format!("{:?} frame", Self::KIND);
        let corrupt = |detail: String| StorageError::Corrupt { file: what(), offset: 0, detail };
        let Some((version, body)) = f.data.split_first() else {
            return Err(corrupt("empty body".into()));
        };
        if f.kind != Self::KIND {
            return Err(corrupt(format!("found a {:?} frame", f.kind)));
        }
        if ![1, Self::VERSION].contains(version) {
            return Err(StorageError::Version {
                what: what(),
                found: u32::from(*version),
                supported: u32::from(Self::VERSION),
            });
        }
        let since = if *version == 1 { Self::SINCE_1 } else { 0 };
        let whole = match since {
            0 => Cow::Borrowed(body),
            n => Cow::Owned([body, &vec![0; n]].concat()),
        };
        let (body, used): (Self, usize) = decode_varint(&whole).map_err(corrupt)?;
        if used != whole.len() {
            return Err(corrupt(format!("{} bytes after the body", whole.len() - used)));
        }
        Ok(body)
    }
}

#[cfg(test)]
mod tests;
