//! Bodies of control frames, one file per family.
//!
//! A body is one version byte, then bincode 2 (standard configuration: variable-length integers,
//! little-endian; `FORMAT.md` states the encoding). Group and Start have fixed layouts, because a
//! scan that lost its position must recognise them without context.

mod log;
mod topic;
mod verbs;

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

/// The version of the encoding of every body.
const VERSION: u8 = 1;

/// A control body.
pub trait Body: Encode + Decode<()> {
    /// The frame type that carries it.
    const KIND: FrameType;

    /// Appends a whole control frame (not sealed).
    fn encode_frame(&self, out: &mut Vec<u8>, topic_id: u64, seq: u64, ts: u64) {
        let mut body = vec![VERSION];
        encode_varint(self, &mut body);
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
        if *version != VERSION {
            return Err(StorageError::Version {
                what: what(),
                found: u32::from(*version),
                supported: u32::from(VERSION),
            });
        }
        let (decoded, used): (Self, usize) = decode_varint(body).map_err(corrupt)?;
        if used != body.len() {
            return Err(corrupt(format!("{} bytes after the body", body.len() - used)));
        }
        Ok(decoded)
    }
}

#[cfg(test)]
mod tests;
