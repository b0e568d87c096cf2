//! Apply: committed frames change topics. Commits and recovery use the same code.
//!
//! Each step may be repeated over a state that already reflects it: floors move by maximum, deletes by
//! union, configs and reservations in log order, and records are added only above the indexed ones.

mod remove;

use std::sync::Arc;

use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_storage::format::frame::{self, Frame, FrameType};
use topics_storage::format::record::{self, Body};
use topics_storage::segment::AttrRow;
use topics_storage::snapshot::ReplayPos;
use topics_storage::wal::{FileKey, PlacedBatch};

use super::Topic;
use super::events::{Base, FrameTopic, LoggedFrame};
use super::load::{Hints, Loader};
use super::state::dedupe::{Dedupe, Remembered};
use super::state::index::{Entry, Place};
use super::state::queue::RemovalReason;
use super::state::{Evicted, State};
use crate::types::api::{Durability, Gap, GapReason};
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::{Error, Result};

/// Committed frames and their position.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Placement<'a> {
    pub shard: u32,
    pub file: FileKey,
    /// Offset of the first frame in the file.
    pub offset: u32,
    /// Lsn of the first frame; the others follow.
    pub lsn: u64,
    /// Whole frames.
    pub bytes: &'a [u8],
    /// The layout of the log that has them; an lsn is meaningless without it.
    pub layout: u64,
}

impl<'a> Placement<'a> {
    /// The placement of a batch in a log of this layout.
    pub(crate) fn new(layout: u64, p: &PlacedBatch<'a>) -> Self {
        Self {
            shard: p.shard as u32,
            file: p.file,
            offset: p.offset,
            lsn: p.first_lsn,
            bytes: p.bytes,
            layout,
        }
    }
}

/// What a commit passes with the frames.
#[derive(Debug)]
pub(crate) struct Live<'a> {
    pub topic: &'a Arc<Topic>,
    pub hints: &'a Hints,
    /// Counts the records that the frames removed and scanned.
    pub removed: &'a Removed,
}

/// Counts of a delete or eviction, made while it is applied.
#[derive(Debug, Default)]
pub(crate) struct Removed {
    /// Removed records.
    pub records: AtomicU64,
    /// Records that a match found, including those that were removed before.
    pub scanned: AtomicU64,
}

struct Cursor<'a> {
    rest: &'a [u8],
    offset: u32,
    lsn: u64,
    layout: u64,
}

impl<'a> Cursor<'a> {
    #[inline]
    fn peek(&self) -> Result<Option<LoggedFrame<'a>>> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let (frame, len) = frame::parse(self.rest)
            .map_err(|e| Error::Internal(format!("frame {} does not parse: {e}", self.lsn)))?;
        let len = u32::try_from(len)
            .map_err(|_| Error::Internal(format!("frame {} is too long", self.lsn)))?;
        let (offset, lsn, layout) = (self.offset, self.lsn, self.layout);
        Ok(Some(LoggedFrame { frame, len, offset, lsn, layout }))
    }

    fn pass(&mut self, len: u32) {
        self.rest = &self.rest[len as usize..];
        self.offset += len;
        self.lsn += 1;
    }
}

/// Whether a frame changes the state of an existing topic.
fn of_topic(frame: &Frame<'_>) -> bool {
    use FrameType as T;
    frame.topic_id != 0
        && matches!(
            frame.kind,
            T::Append
                | T::Delete
                | T::EvictWatermark
                | T::ConfigUpdate
                | T::HeadWatermark
                | T::Idempotency
                | T::Gap
                | T::Lease
                | T::Consumer
                | T::TxnPart
        )
}

/// Applies the frames of one batch, or of a range of the log.
pub(crate) fn apply(base: &Base, at: &Placement<'_>, live: Option<&Live<'_>>) -> Result<()> {
    let mut cursor = Cursor { rest: at.bytes, offset: at.offset, lsn: at.lsn, layout: at.layout };
    let place = Place::File { shard: at.shard, file: at.file };
    while let Some(next) = cursor.peek()? {
        let id = next.frame.topic_id;
        if !of_topic(&next.frame) {
            base.host.apply(base, &next, live.map(|l| l.topic))?;
            cursor.pass(next.len);
            continue;
        }
        let known = live.map(|l| l.topic).filter(|t| t.id() == id);
        let found = match known {
            Some(topic) => FrameTopic::Loaded(topic.clone()),
            None => base.host.topic(base, id, ReplayPos { layout: at.layout, lsn: next.lsn })?,
        };
        let topic = match found {
            FrameTopic::Loaded(topic) => topic,
            FrameTopic::Reflected => {
                cursor.pass(next.len);
                continue;
            }
            FrameTopic::Gone => {
                base.metrics.orphan_frames.add(1);
                cursor.pass(next.len);
                continue;
            }
        };
        let loader = Loader {
            segs: &base.segments,
            key: topic.key,
            hints: live.map(|l| l.hints),
            reads: Some(&base.metrics.apply_reads),
        };
        let mut state = topic.state.write();
        let before = state.usage();
        let (mut removed, mut scanned) = (0, 0);
        while let Some(next) = cursor.peek()? {
            if next.frame.topic_id != id || !of_topic(&next.frame) {
                break;
            }
            let here = ReplayPos { layout: at.layout, lsn: next.lsn };
            if here <= state.checkpoint.reflected {
                cursor.pass(next.len);
            } else if next.frame.kind == FrameType::Append {
                let n = state.apply_appends(next, &mut cursor, &place, live.is_some())?;
                state.checkpoint.applied = ReplayPos { layout: at.layout, lsn: cursor.lsn - 1 };
                base.metrics.append_records.add(n);
            } else {
                let (gone, seen) = state.apply(base, &next, &loader, here)?;
                (removed, scanned) = (removed + gone, scanned + seen);
                cursor.pass(next.len);
            }
        }
        let head = state.visible();
        let after = state.usage();
        base.account(before, after);
        base.owe_rounds(before, after);
        let rings = state.queue.is_some();
        drop(state);
        topic.gate.publish(head);
        if rings {
            base.host.queue_changed(id);
        }
        if let Some(live) = live {
            live.removed.records.fetch_add(removed, Ordering::Relaxed);
            live.removed.scanned.fetch_add(scanned, Ordering::Relaxed);
        }
    }
    Ok(())
}

impl Topic {
    /// Applies the creation to the topic's state. Returns the visible head.
    pub(crate) fn apply_creation(
        &self,
        config: Arc<TopicConfig>,
        reserved_to: u64,
        at: &LoggedFrame<'_>,
    ) -> u64 {
        let mut state = self.state.write();
        state.config = config;
        state.reservation.to = reserved_to;
        // The reservation counts as synced: it is lost only with the topic's creation.
        state.reservation.synced = reserved_to;
        state.checkpoint.applied = ReplayPos { layout: at.layout, lsn: at.lsn };
        state.visible()
    }
}

impl State {
    /// Applies a frame of this topic other than a record. Returns how many records a delete or eviction
    /// removed, and how many its match found.
    fn apply(
        &mut self,
        base: &Base,
        at: &LoggedFrame<'_>,
        loader: &Loader<'_>,
        here: ReplayPos,
    ) -> Result<(u64, u64)> {
        let f = &at.frame;
        self.checkpoint.applied = here;
        match f.kind {
            FrameType::Delete => {
                let body = record::Delete::decode(f)?;
                let why = RemovalReason::from_code(body.why).ok_or_else(|| {
                    Error::Internal(format!("delete reason {} (lsn {})", body.why, at.lsn))
                })?;
                let done = self.apply_delete(&body, at.lsn, loader)?;
                self.tally(done.0, why, here);
                base.metrics.deletes.add(1);
                base.metrics.deleted_records.add(done.0);
                return Ok(done);
            }
            FrameType::EvictWatermark => {
                let body = record::EvictWatermark::decode(f)?;
                let why = Evicted::from_code(body.reason).ok_or_else(|| {
                    Error::Internal(format!("evict reason {} (lsn {})", body.reason, at.lsn))
                })?;
                let n = self.apply_floor(body.evict_floor, loader)?;
                self.raise_evict_floor(body.evict_floor, why);
                self.range.floor_logged = self.range.floor_logged.max(body.evict_floor);
                if why == Evicted::TTL {
                    self.tally(n, RemovalReason::EXPIRED, here);
                }
                base.metrics.evicted_records.add(n);
                return Ok((n, 0));
            }
            FrameType::ConfigUpdate => {
                let body = record::ConfigUpdate::decode(f)?;
                // Records of the class before may be missing in the log.
                self.volatile |= self.config.durability <= Durability::Memory;
                self.config = base.config(TopicConfig::decode(&body.config)?);
            }
            FrameType::HeadWatermark => {
                let body = record::HeadWatermark::decode(f)?;
                self.reservation.to = body.reserved_to;
                if body.lowered {
                    self.reservation.synced = self.reservation.synced.min(body.reserved_to);
                }
            }
            FrameType::Idempotency => {
                self.apply_key(base, &record::Idempotency::decode(f)?);
            }
            FrameType::Gap => {
                let body = record::Gap::decode(f)?;
                let reason = GapReason::from_code(body.reason).ok_or_else(|| {
                    Error::Internal(format!("gap reason {} (lsn {})", body.reason, at.lsn))
                })?;
                self.skip_to(body.from);
                self.add_gap(Gap { from: body.from, to: body.to, reason });
            }
            FrameType::TxnPart => {
                // The batch is applied when it is synced, so all of it becomes visible in one step (I5).
                self.reservation.synced = self.reservation.synced.max(self.reservation.to);
                base.host.apply(base, at, None)?;
            }
            FrameType::Lease => self.apply_lease(base.time.now(), &record::Lease::decode(f)?),
            FrameType::Consumer => {
                self.consumers.get_or_insert_default().apply(base, record::Consumer::decode(f)?)?
            }
            _ => {}
        }
        Ok((0, 0))
    }

    fn apply_key(&mut self, base: &Base, body: &record::Idempotency) {
        if body.expires_at <= base.time.steady() {
            if let Some(dedupe) = &mut self.dedupe {
                dedupe.forget(body.key, body.first_seq);
            }
            return;
        }
        let known = Remembered {
            request: body.request,
            first_seq: body.first_seq,
            last_seq: body.last_seq,
            expires_at: body.expires_at,
            ticket: None,
            is_committed: true,
            logged: true,
        };
        let dedupe = self.dedupe.get_or_insert_with(|| Box::new(Dedupe::new(&base.keys)));
        dedupe.mark_committed(body.key, known);
    }

    /// Applies the record at the cursor and the records of the same topic directly after it. Returns
    /// how many of them were new.
    fn apply_appends<'a>(
        &mut self,
        mut at: LoggedFrame<'a>,
        cursor: &mut Cursor<'a>,
        place: &Place,
        live: bool,
    ) -> Result<u64> {
        let (topic_id, mut new) = (at.frame.topic_id, 0);
        loop {
            new += u64::from(self.apply_append(&at, place, live)?);
            cursor.pass(at.len);
            match cursor.peek()? {
                Some(next)
                    if next.frame.kind == FrameType::Append && next.frame.topic_id == topic_id =>
                {
                    at = next;
                }
                _ => break,
            }
        }
        Ok(new)
    }

    #[inline]
    fn apply_append(&mut self, at: &LoggedFrame<'_>, place: &Place, live: bool) -> Result<bool> {
        let f = &at.frame;
        if f.seq <= self.range.indexed_to {
            // The record was shown when it was staged, was evicted since, or is in the snapshot.
            let shown = self.index.relocate_to_file(f.seq, place, at.lsn, at.offset);
            if live && !shown && f.seq >= self.range.floor {
                let text = format!("I2: seq {} is written again (lsn {})", f.seq, at.lsn);
                return Err(Error::Internal(text));
            }
            return Ok(false);
        }
        let entry = Entry::new(f.ts, at.offset, at.len, 0, f.flags);
        self.admit(f, entry, place, at.lsn);
        Ok(true)
    }

    /// Makes a gap of the seqs between the last indexed one and `seq`: their records were never logged,
    /// or their frames are lost.
    #[inline]
    fn skip_to(&mut self, seq: u64) {
        let from = (self.range.indexed_to + 1).max(self.range.floor);
        if from >= seq {
            return;
        }
        let volatile = self.config.durability <= Durability::Memory || self.volatile;
        let reason = match self.config.durability {
            _ if volatile => GapReason::Restart,
            // Only damage can lose a record of this class.
            Durability::Fsync => GapReason::Corrupt,
            _ => GapReason::Crash,
        };
        self.add_gap(Gap { from, to: seq - 1, reason });
    }

    /// Adds a record to the index, above all others. Skipped seqs become a gap.
    #[inline]
    pub(crate) fn admit(&mut self, f: &Frame<'_>, entry: Entry, place: &Place, lsn: u64) {
        let seq = f.seq;
        self.skip_to(seq);
        assert!(seq > self.range.indexed_to, "I2: seq {seq} given twice");
        self.range.indexed_to = seq;
        self.last_ts = self.last_ts.max(f.ts);
        self.last_write_ts = f.ts;
        self.volatile = self.config.durability <= Durability::Memory;
        if seq < self.range.floor {
            return;
        }
        if self.live.count == 0 {
            (self.range.earliest, self.range.earliest_exact) = (seq.max(self.range.earliest), true);
        }
        self.live.count += 1;
        self.live.bytes += entry.payload();
        self.index.push(seq, place, lsn, entry);
        if !f.tag.is_empty() {
            self.tag_index.tags.get_or_insert_default().push(f.tag, seq);
        }
        if !f.attrs.is_empty() {
            let row = AttrRow::parse(seq, f.attrs);
            if row.expires_at != 0 {
                self.retention.expiries.get_or_insert_default().insert((row.expires_at, seq));
            }
            if self.config.kind == TopicType::Queue {
                self.queue.get_or_insert_default().add_options(&row);
            }
        }
    }
}
