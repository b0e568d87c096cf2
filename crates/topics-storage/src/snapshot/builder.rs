//! Builds a snapshot: one buffer, into which each topic is encoded as it is captured.

use super::table::SegmentBytes;
use super::{HEADER, MAGIC, SnapshotBody, TopicSnap, VERSION, checksum};
use crate::format::codec::{Encode, encode_fixed};
use crate::{Result, StorageError};

/// A snapshot under construction. Holds topics only in encoded form.
#[derive(Debug)]
pub struct SnapshotBuilder {
    out: Vec<u8>,
    /// The offset of the topics.
    topics_at: usize,
    topics: u64,
    segments: SegmentBytes,
}

impl SnapshotBuilder {
    /// Starts a snapshot. `body` has as many shards as in [`Self::finish`]. `about` is the expected
    /// length: reserving it avoids the reallocations of a growing buffer, which fragment the heap.
    pub fn begin(body: &SnapshotBody, about: u64) -> Result<Self> {
        let mut out = Vec::with_capacity(usize::try_from(about + about / 8).unwrap_or(0));
        out.resize(HEADER, 0);
        head(body, 0, &mut out)?;
        Ok(Self { topics_at: out.len(), out, topics: 0, segments: SegmentBytes::default() })
    }

    /// Adds a topic. Names must ascend, so that a reader can search the snapshot without decoding
    /// it.
    pub fn topic(&mut self, topic: &TopicSnap) -> Result<()> {
        let at = self.out.len();
        put(topic, &mut self.out)?;
        self.added(at);
        Ok(())
    }

    fn added(&mut self, at: usize) {
        self.topics += 1;
        self.segments.add(self.out.get(at..).unwrap_or_default());
    }

    /// Adds a topic in the encoded form of another snapshot.
    pub fn entry(&mut self, entry: &[u8]) {
        let at = self.out.len();
        self.out.extend_from_slice(entry);
        self.added(at);
    }

    /// Completes the snapshot with the fields of `body`, except its topics.
    pub fn finish(mut self, body: &SnapshotBody) -> Result<EncodedSnapshot> {
        let mut start = Vec::with_capacity(self.topics_at - HEADER);
        head(body, self.topics, &mut start)?;
        let header = self.out.get_mut(HEADER..self.topics_at).filter(|r| r.len() == start.len());
        match header {
            Some(header) => header.copy_from_slice(&start),
            None => return Err(failed("the number of shards changed")),
        }
        put(&body.sections, &mut self.out)?;
        Ok(EncodedSnapshot { bytes: self.out, segments: self.segments })
    }
}

/// A complete snapshot file without its number.
#[derive(Debug)]
pub struct EncodedSnapshot {
    bytes: Vec<u8>,
    segments: SegmentBytes,
}

impl EncodedSnapshot {
    /// Encodes a body with its topics.
    pub fn of(body: &SnapshotBody) -> Result<Self> {
        let mut builder = SnapshotBuilder::begin(body, 0)?;
        body.topics.iter().try_for_each(|t| builder.topic(t))?;
        builder.finish(body)
    }

    /// The length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes.len() as u64
    }

    /// Bytes of the segments that it names.
    pub(crate) fn segments(&self) -> SegmentBytes {
        self.segments
    }

    /// The bytes of the file with this number.
    pub(super) fn file(&mut self, n: u64) -> &[u8] {
        let out = &mut self.bytes;
        let len = (out.len() - HEADER) as u64;
        out[..4].copy_from_slice(&MAGIC);
        out[4..8].copy_from_slice(&VERSION.to_le_bytes());
        out[8..16].copy_from_slice(&n.to_le_bytes());
        out[16..24].copy_from_slice(&len.to_le_bytes());
        let sum = checksum(out);
        out[24..HEADER].copy_from_slice(&sum.to_le_bytes());
        out
    }
}

/// Encodes the fields before the topics, including the number of topics.
fn head(body: &SnapshotBody, topics: u64, out: &mut Vec<u8>) -> Result<()> {
    put(&(body.store_id, body.generation, body.layout), out)?;
    put(&body.shards, out)?;
    put(&body.retired, out)?;
    put(&(body.next_topic_id, body.reserved_topic_id), out)?;
    put(&(body.next_epoch, body.reserved_epoch, topics), out)
}

fn put(value: &impl Encode, out: &mut Vec<u8>) -> Result<()> {
    encode_fixed(value, out).map_err(failed)
}

fn failed(e: impl ToString) -> StorageError {
    StorageError::io("encode a snapshot", std::io::Error::other(e.to_string()))
}
