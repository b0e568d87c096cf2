//! Reads `.data` from its start, without an index.

use super::layout::{DATA_HEADER, FRAME_FIXED, frame_ts, verify_frame};
use super::open::Data;
use super::{IdxEntry, SegmentMeta};
use crate::Result;
use crate::dir::{le_u32, le_u64};

const CHUNK: usize = 1 << 20;

/// A moving window over the bytes of a file.
struct Window<'a> {
    data: &'a Data,
    end: u64,
    base: u64,
    buf: Vec<u8>,
}

impl Window<'_> {
    /// The bytes from `at`, at least `len` of them unless the file ends before.
    fn bytes(&mut self, at: u64, len: usize) -> Result<&[u8]> {
        let have = self.base + self.buf.len() as u64;
        let want = (at + len as u64).min(self.end);
        if at < self.base || want > have {
            let len = (want - at.min(want)).max(CHUNK as u64).min(self.end.saturating_sub(at));
            self.buf.resize(usize::try_from(len).unwrap_or(usize::MAX), 0);
            self.base = at;
            self.data.read(&mut self.buf, at)?;
        }
        Ok(&self.buf[(at - self.base) as usize..])
    }
}

/// An item of `.data`.
pub enum ScanItem<'a> {
    /// A record: its seq, its offset, its frame.
    Record(u64, u32, &'a [u8]),
    /// Bytes that belong to no record. The first two numbers bound the seqs that they may have had:
    /// from the first, below the second. Then offset and length.
    Damage(u64, u64, u32, u32),
}

/// Calls `f` for everything within the named length of a segment's `.data`, in seq order, starting
/// at `from`: the offset of a frame, and the lowest seq that it may have.
pub fn scan(
    data: &Data,
    salt: u64,
    meta: &SegmentMeta,
    from: (u64, u64),
    mut f: impl FnMut(ScanItem<'_>) -> Result<()>,
) -> Result<()> {
    let end = meta.data_len;
    let mut w = Window { data, end, base: 0, buf: Vec::new() };
    let (mut at, mut next) = from;
    while at < end {
        if let Some((seq, len)) = frame_at(&mut w, at, next, meta.last_seq, salt)? {
            f(ScanItem::Record(seq, at as u32, &w.bytes(at, len)?[..len]))?;
            at += len as u64;
            next = seq + 1;
            continue;
        }
        let bad = at;
        let mut after = None;
        while at < end && after.is_none() {
            at += 1;
            after = frame_at(&mut w, at, next, meta.last_seq, salt)?;
        }
        let below = after.map_or(meta.last_seq + 1, |(seq, _)| seq);
        f(ScanItem::Damage(next, below, bad as u32, (at - bad) as u32))?;
    }
    Ok(())
}

/// The seq and length of the valid frame at `at`, if there is one with a seq in `from..=to`.
fn frame_at(
    w: &mut Window<'_>,
    at: u64,
    from: u64,
    to: u64,
    salt: u64,
) -> Result<Option<(u64, usize)>> {
    let left = w.end.saturating_sub(at);
    let head = w.bytes(at, FRAME_FIXED)?;
    if head.len() < FRAME_FIXED {
        return Ok(None);
    }
    let (len, seq) = (u64::from(le_u32(head, 0)) + 4, le_u64(head, 5));
    if len > left || len < FRAME_FIXED as u64 || !(from..=to).contains(&seq) {
        return Ok(None);
    }
    let len = len as usize;
    Ok(verify_frame(&w.bytes(at, len)?[..len], salt, seq).map(|_| (seq, len)))
}

/// The position of a segment's first frame.
pub fn start(meta: &SegmentMeta) -> (u64, u64) {
    (DATA_HEADER as u64, meta.first_seq)
}

/// Builds a segment's index from its `.data`. A damaged seq gets an entry whose frame fails its check.
pub fn rebuild_entries(data: &Data, salt: u64, meta: &SegmentMeta) -> Result<Vec<IdxEntry>> {
    let mut out: Vec<IdxEntry> = Vec::new();
    let (mut end, mut ts) = (DATA_HEADER as u32, 0);
    let fill = |out: &mut Vec<IdxEntry>, below: u64, end: u32, ts: u64| {
        while meta.first_seq + (out.len() as u64) < below {
            out.push(IdxEntry { offset: end, len: 0, ts, flags: 0 });
        }
    };
    scan(data, salt, meta, start(meta), |found| {
        match found {
            ScanItem::Record(seq, offset, frame) => {
                fill(&mut out, seq, end, ts);
                ts = frame_ts(frame);
                let len = frame.len() as u32;
                out.push(IdxEntry { offset, len, ts, flags: frame[4] });
                end = offset + len;
            }
            ScanItem::Damage(from, below, offset, len) => {
                fill(&mut out, from, end, ts);
                out.extend((from..below).map(|_| IdxEntry { offset, len, ts, flags: 0 }));
                end = offset + len;
            }
        }
        Ok(())
    })?;
    fill(&mut out, meta.last_seq + 1, end, ts);
    Ok(out)
}
