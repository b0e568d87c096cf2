//! Builds one group from staged batches: copies them into one buffer (in place if the group is a
//! single batch with headroom for the Group frame), then sets seq, ts, `batch_more` and the outer
//! checksum of every frame in place.

use super::GROUP_HEADROOM;
use super::effects::QueuedBatch;
use crate::StorageError;
use crate::format::frame;
use crate::format::record::Group;

/// A group ready to be written.
pub(super) struct BuiltGroup {
    pub bytes: Vec<u8>,
    /// The range of each batch.
    pub spans: Vec<Span>,
    /// Frames after the Group frame.
    pub frames: u64,
    /// The lsn after the group.
    pub next_lsn: u64,
}

/// A batch in a group.
#[derive(Clone, Copy)]
pub(super) struct Span {
    pub from: usize,
    pub to: usize,
    pub first_lsn: u64,
    pub last_lsn: u64,
}

/// Builds a group of `taken` that begins at `lsn` of the file with this salt. Fails for a batch that
/// is not a sequence of whole frames: that is a bug, and it must not reach the disk.
pub(super) fn build(
    taken: &mut [QueuedBatch],
    salt: u64,
    lsn: u64,
    synced_lsn: u64,
) -> Result<BuiltGroup, StorageError> {
    let total: usize = taken.iter().map(|q| q.bytes).sum();
    let mut bytes = match whole(taken) {
        Some(records) => records,
        None => together(taken, total),
    };
    let mut spans = Vec::with_capacity(taken.len());
    let (mut next_lsn, mut from) = (lsn + 1, Group::FRAME_LEN);
    for q in &*taken {
        let b = &q.batch;
        let to = from + q.bytes;
        let first_lsn = next_lsn;
        let (head, rest) = bytes[from..to].split_at_mut(b.head.len());
        let (records, tail) = rest.split_at_mut(rest.len() - b.tail.len());
        let mut seal = Seal { salt, lsn: next_lsn, ts: b.ts };
        seal.part(head, None, !records.is_empty() || !tail.is_empty())?;
        seal.part(records, Some((b.topic_id, b.first_seq)), !tail.is_empty())?;
        seal.part(tail, None, false)?;
        next_lsn = seal.lsn;
        spans.push(Span { from, to, first_lsn, last_lsn: next_lsn - 1 });
        from = to;
    }
    let frames = next_lsn - lsn - 1;
    let group = Group {
        lsn,
        frames: u32::try_from(frames).unwrap_or(u32::MAX),
        bytes: total as u64,
        synced_lsn,
    };
    let mut head = Vec::with_capacity(Group::FRAME_LEN);
    group.encode_frame(&mut head);
    frame::seal(&mut head, salt, lsn);
    bytes[..Group::FRAME_LEN].copy_from_slice(&head);
    Ok(BuiltGroup { bytes, spans, frames, next_lsn })
}

/// The buffer of the only batch, if it has headroom. Head and tail go into it: moving the records by
/// the length of the head costs less than a second buffer, which a large transaction would fault in
/// page by page.
fn whole(taken: &mut [QueuedBatch]) -> Option<Vec<u8>> {
    let [q] = taken else { return None };
    let b = &mut q.batch;
    if b.headroom != GROUP_HEADROOM {
        return None;
    }
    let mut bytes = std::mem::take(&mut b.records);
    bytes.reserve_exact(b.head.len() + b.tail.len());
    if !b.head.is_empty() {
        let end = bytes.len();
        bytes.resize(end + b.head.len(), 0);
        bytes.copy_within(GROUP_HEADROOM..end, GROUP_HEADROOM + b.head.len());
        bytes[GROUP_HEADROOM..][..b.head.len()].copy_from_slice(&b.head);
    }
    bytes.extend_from_slice(&b.tail);
    Some(bytes)
}

/// One buffer with headroom for the Group frame and a copy of all batches.
fn together(taken: &[QueuedBatch], total: usize) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(total + Group::FRAME_LEN);
    bytes.resize(Group::FRAME_LEN, 0);
    for q in taken {
        let b = &q.batch;
        for part in [b.head.as_slice(), b.frames(), b.tail.as_slice()] {
            bytes.extend_from_slice(part);
        }
    }
    bytes
}

struct Seal {
    salt: u64,
    lsn: u64,
    ts: u64,
}

impl Seal {
    /// Finishes the frames of one part of a batch. `records` holds topic and first seq of Append
    /// frames; `more` says whether frames of the batch follow this part.
    fn part(
        &mut self,
        mut part: &mut [u8],
        records: Option<(u64, u64)>,
        more: bool,
    ) -> Result<(), StorageError> {
        let mut records = records;
        while !part.is_empty() {
            let Some(size) = frame::whole_size(part) else {
                return Err(StorageError::Corrupt {
                    file: "a staged batch".into(),
                    offset: 0,
                    detail: "not a sequence of whole frames".into(),
                });
            };
            let (f, rest) = part.split_at_mut(size);
            match &mut records {
                Some((topic_id, seq)) => {
                    frame::patch(f, *topic_id, *seq, self.ts);
                    *seq += 1;
                }
                None => frame::patch_ts(f, self.ts),
            }
            frame::set_batch_more(f, more || !rest.is_empty());
            frame::seal(f, self.salt, self.lsn);
            self.lsn += 1;
            part = rest;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::format::frame::{Frame, FrameType};
    use crate::wal::{Batch, Commit, Level, PlacedBatch};

    struct Ignore;

    impl Commit for Ignore {
        fn apply(&self, _: &PlacedBatch<'_>) {}
        fn failed(&self, _: &StorageError) {}
    }

    fn frames(kind: FrameType, count: u64) -> Vec<u8> {
        let mut out = Vec::new();
        for n in 0..count {
            let body = vec![n as u8; 3 + 40 * n as usize];
            frame::encode(&mut out, &Frame::control(kind, 7, 0, 0, &body));
        }
        out
    }

    /// A batch whose records lie behind `headroom` bytes.
    fn queued(headroom: usize, head: u64, records: u64, tail: u64) -> QueuedBatch {
        let mut all = vec![0; headroom];
        all.extend_from_slice(&frames(FrameType::Append, records));
        let batch = Batch {
            head: frames(FrameType::TxnPart, head),
            records: all,
            headroom,
            tail: frames(FrameType::Consumer, tail),
            first_seq: 41,
            ..Batch::control(Vec::new(), 99, Level::Synced, Arc::new(Ignore))
        };
        let bytes = batch.bytes();
        QueuedBatch { n: 1, batch, bytes, reserved: 0 }
    }

    #[test]
    fn a_single_batch_is_built_in_place_with_the_same_bytes() {
        for (head, records, tail) in
            [(0, 3, 0), (1, 3, 0), (2, 1, 1), (0, 2, 3), (1, 0, 1), (0, 0, 1)]
        {
            let made = [GROUP_HEADROOM, 0].map(|headroom| {
                let mut taken = [queued(headroom, head, records, tail)];
                let built = build(&mut taken, 5, 100, 99).unwrap();
                assert_eq!(built.next_lsn, 101 + head + records + tail);
                let spans: Vec<_> = built.spans.iter().map(|s| (s.from, s.to)).collect();
                (built.bytes, spans)
            });
            assert_eq!(made[0], made[1], "{head} {records} {tail}");
        }
    }
}
