//! Bodies of topic frames.

use super::Body;
use crate::format::codec::{Decode, Encode};
use crate::format::frame::FrameType;

/// A topic's creation.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TopicCreate {
    pub name: String,
    pub epoch: u64,
    /// Its config, encoded and versioned by the engine.
    pub config: Vec<u8>,
    /// The first reservation.
    pub reserved_to: u64,
}

impl Body for TopicCreate {
    const KIND: FrameType = FrameType::TopicCreate;
}

/// A topic's deletion.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct TopicDelete {
    pub epoch: u64,
}

impl Body for TopicDelete {
    const KIND: FrameType = FrameType::TopicDelete;
}

/// A complete new config.
#[derive(Clone, Debug, PartialEq, Eq, Encode, Decode)]
pub struct ConfigUpdate {
    /// Encoded and versioned by the engine.
    pub config: Vec<u8>,
}

impl Body for ConfigUpdate {
    const KIND: FrameType = FrameType::ConfigUpdate;
}

/// How a tag matches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub enum MatchKind {
    /// The whole tag.
    Eq,
    Glob,
}

/// An explicit delete: of the records below `before_seq`, of those that match, or of their
/// intersection, up to `bound`; or exactly of the listed ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Encode, Decode)]
pub struct Delete {
    /// Every record with a smaller seq.
    pub before_seq: Option<u64>,
    /// Every record whose tag matches.
    pub matching: Option<(MatchKind, Vec<u8>)>,
    /// Exactly these, inclusive ranges.
    pub seqs: Vec<(u64, u64)>,
    /// The head when the delete was decided.
    pub bound: u64,
    /// The reason; 0: requested by a caller. The engine defines the numbers.
    pub why: u8,
}

impl Body for Delete {
    const KIND: FrameType = FrameType::Delete;
}

/// Eviction or expiry moved a floor.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct EvictWatermark {
    /// The highest involuntarily lost seq at the front + 1.
    pub evict_floor: u64,
    /// The reason; the engine defines the numbers.
    pub reason: u8,
}

impl Body for EvictWatermark {
    const KIND: FrameType = FrameType::EvictWatermark;
}

/// Seqs reserved for later assignment; for topic 0, topic ids and epochs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct HeadWatermark {
    /// The last reserved one.
    pub reserved_to: u64,
    /// Whether this lowers the reservation to the head.
    pub lowered: bool,
}

impl Body for HeadWatermark {
    const KIND: FrameType = FrameType::HeadWatermark;
}

/// An idempotency key with the stored answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Encode, Decode)]
pub struct Idempotency {
    /// 128-bit hash of the key.
    pub key: u128,
    /// 64-bit hash of the request.
    pub request: u64,
    /// First seq of the answer.
    pub first_seq: u64,
    /// Last seq of the answer.
    pub last_seq: u64,
    /// When the key is forgotten, ms.
    pub expires_at: u64,
}

impl Body for Idempotency {
    const KIND: FrameType = FrameType::Idempotency;
}
