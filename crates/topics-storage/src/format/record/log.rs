//! Bodies of frames that describe the log itself.

use super::Body;
use crate::format::codec::{Decode, Encode};
use crate::format::frame::{self, FRAME_HEADER, FRAME_TRAILER, Frame, FrameType};

/// The first frame of every group write. Fixed: `lsn u64, frames u32, bytes u64, synced_lsn u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Group {
    /// Its own lsn.
    pub lsn: u64,
    /// The number of frames that follow in the group.
    pub frames: u32,
    /// The bytes of those frames.
    pub bytes: u64,
    /// The durable lsn before this write started.
    pub synced_lsn: u64,
}

impl Group {
    const BODY: usize = 28;
    /// Length of the whole frame.
    pub const FRAME_LEN: usize = FRAME_HEADER + Self::BODY + FRAME_TRAILER;

    /// The first bytes of every Group frame: its length and type.
    pub const PATTERN: [u8; 5] = [(Self::FRAME_LEN - 4) as u8, 0, 0, 0, FrameType::Group as u8];

    /// Appends the frame (not sealed).
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        let mut body = [0u8; Self::BODY];
        body[0..8].copy_from_slice(&self.lsn.to_le_bytes());
        body[8..12].copy_from_slice(&self.frames.to_le_bytes());
        body[12..20].copy_from_slice(&self.bytes.to_le_bytes());
        body[20..28].copy_from_slice(&self.synced_lsn.to_le_bytes());
        frame::encode(out, &Frame::control(FrameType::Group, 0, 0, 0, &body));
    }

    /// Decodes a Group frame; `None` for another type.
    #[must_use]
    pub fn of(f: &Frame<'_>) -> Option<Self> {
        let d = f.data;
        (f.kind == FrameType::Group && d.len() == Self::BODY).then(|| Self {
            lsn: frame::u64_at(d, 0),
            frames: frame::u32_at(d, 8),
            bytes: frame::u64_at(d, 12),
            synced_lsn: frame::u64_at(d, 20),
        })
    }
}

/// The first frame of a log file in use. It has no lsn of its own and is sealed under `first_lsn`.
/// Fixed: `first_lsn u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Start {
    /// The lsn of the next frame; ends the previous file.
    pub first_lsn: u64,
}

impl Start {
    /// Length of the whole frame.
    pub const FRAME_LEN: usize = FRAME_HEADER + 8 + FRAME_TRAILER;

    /// Appends the frame (not sealed).
    pub fn encode_frame(&self, out: &mut Vec<u8>) {
        frame::encode(
            out,
            &Frame::control(FrameType::Start, 0, 0, 0, &self.first_lsn.to_le_bytes()),
        );
    }

    /// Decodes a Start frame; `None` for another type.
    #[must_use]
    pub fn of(f: &Frame<'_>) -> Option<Self> {
        (f.kind == FrameType::Start && f.data.len() == 8)
            .then(|| Self { first_lsn: frame::u64_at(f.data, 0) })
    }
}

/// A clean close: everything before it was synced. A group of its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct CleanClose {}

impl Body for CleanClose {
    const KIND: FrameType = FrameType::CleanClose;
}

/// A snapshot took effect. Used by `verify`; recovery does not need it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct CheckpointMark {
    /// The snapshot's number.
    pub snapshot: u64,
}

impl Body for CheckpointMark {
    const KIND: FrameType = FrameType::CheckpointMark;
}

/// An involuntarily lost range, inclusive: seqs of a topic or, for topic 0, lsns of the shard that
/// a recovery was told to declare lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Gap {
    /// First.
    pub from: u64,
    /// Last.
    pub to: u64,
    /// The reason; the engine defines the numbers.
    pub reason: u8,
}

impl Body for Gap {
    const KIND: FrameType = FrameType::Gap;
}

impl Gap {
    /// The range of lost lsns that a frame announces.
    #[must_use]
    pub fn of_lsns(f: &Frame<'_>) -> Option<Self> {
        if f.kind != FrameType::Gap || f.topic_id != 0 {
            return None;
        }
        <Self as Body>::decode(f).ok()
    }
}
