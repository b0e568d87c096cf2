//! The topic's part in a checkpoint: the plan of the copy, its installation, the state for the snapshot.

pub(crate) mod install;
pub(crate) mod restore;
pub(crate) mod sections;

use std::collections::VecDeque;
use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_env::sync::atomic::Ordering;
use topics_storage::segment::SegmentMeta;
use topics_storage::snapshot::{GapSnap, IdempotencySnap, ReplayPos, TopicSnap};
use topics_storage::wal::FileKey;

use super::Topic;
use super::state::State;
use super::state::index::{Dead, Entry, Place, Seg};
use crate::topic::events::Base;
use crate::topic::events::Ctx;
use crate::types::api::Gap;
use crate::types::error::{Error, Result};

/// An error that cannot occur.
#[derive(Debug)]
enum Never {}

/// Resident records in one WAL file, to be copied in seq order. Dead ones become holes.
#[derive(Clone, Debug)]
pub(crate) struct CopyRun {
    pub first: u64,
    pub shard: u32,
    pub file: FileKey,
    /// Lsn that the entries count from.
    pub lsn: u64,
    /// The entries of the run when the plan was made.
    pub entries: Arc<VecDeque<Entry>>,
    /// How many of them to copy, from the first on.
    pub count: usize,
}

/// The work of a checkpoint for a topic.
#[derive(Clone, Debug)]
pub(crate) struct CopyPlan {
    /// The segment to append to. A run that does not follow it seals it.
    pub active: Option<SegmentMeta>,
    /// Runs to copy, ascending. A hole between two runs ends a segment.
    pub runs: Vec<CopyRun>,
    /// Segments whose `.del` must be written, with all their dead records.
    pub deletes: Vec<(SegmentMeta, Arc<RoaringBitmap>)>,
    /// Whether to seal the active segment: it is old, and expiry, caps or reclaim gain by that.
    pub seal: bool,
}

impl CopyPlan {
    /// Whether the plan has no work.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.deletes.is_empty() && !self.seal
    }

    /// Reduces the plan to `.del` files.
    pub(crate) fn only_deletes(&mut self) {
        (self.active, self.seal) = (None, false);
        self.runs.clear();
    }

    /// Approximate bytes of its `.del` files, with their names.
    pub(crate) fn delete_bytes(&self) -> u64 {
        self.deletes.iter().map(|(_, dead)| dead.serialized_size() as u64 + 4096).sum()
    }
}

/// A segment that a checkpoint wrote or appended to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstallSegment {
    pub meta: SegmentMeta,
}

/// The result of a [`CopyPlan`], after its files were synced.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    pub plan: CopyPlan,
    /// Ascending; the first may be the active segment of the plan, possibly with a new file number.
    pub segments: Vec<InstallSegment>,
    /// File number of a segment → number of its new `.del`.
    pub deletes: Vec<(u64, u64)>,
}

impl Topic {
    /// Plans the copy after which the log of `shard` (`None`: of every shard) is not needed up to lsn
    /// `synced`. From here on changes are noted for [`Self::install`]. An active segment that began
    /// before `old` is sealed.
    pub(crate) fn checkpoint_plan(&self, shard: Option<u32>, synced: u64, old: u64) -> CopyPlan {
        let mut state = self.state.write();
        state.trim_front();
        let active = state.index.segs.last().map(|s| s.meta).filter(|m| !m.sealed);
        let mut plan =
            CopyPlan { active, runs: Vec::new(), deletes: Vec::new(), seal: state.outgrown(old) };
        for at in 0..state.index.runs().len() {
            let run = &state.index.runs()[at];
            match &run.place {
                Place::Memory { charge: Some(_), .. } => {}
                // The record is not written yet; nor is any record after it.
                Place::Memory { charge: None, .. } => break,
                Place::File { shard: s, .. } if shard.is_some_and(|want| want != *s) => break,
                Place::File { file, shard } => {
                    let n = run.entries.partition_point(|e| run.lsn + u64::from(e.lsn) <= synced);
                    let whole = n == run.entries.len();
                    if n > 0 {
                        let (first, lsn, shard, file) = (run.first, run.lsn, *shard, *file);
                        let entries = state.index.share_entries(at);
                        plan.runs.push(CopyRun { first, shard, file, lsn, entries, count: n });
                    }
                    if !whole {
                        break;
                    }
                }
            }
        }
        for seg in state.index.segs.iter().filter(|s| s.dirty.is_some()) {
            if let Dead::Some(dead) = &seg.dead {
                plan.deletes.push((seg.meta, dead.clone()));
            }
        }
        state.checkpoint.since_plan = Some(Box::default());
        plan
    }

    /// Installs the written segments in the topic's index. Deletes that were made meanwhile stay
    /// marked as not written.
    pub(crate) fn install(&self, ctx: &Ctx, done: &Install) -> Result<()> {
        loop {
            let last = {
                let a = self.append.lock();
                if self.deletes.load(Ordering::Acquire) == 0 {
                    ctx.base().change(self, |state| state.install(done));
                    return Ok(());
                }
                a.last
            };
            // A pending delete has hints for the segments as they are: it is applied first.
            if let Some((ticket, level)) = last {
                let _ = ctx.wal.wait(ticket, level);
            }
            ctx.check_sound_wait()?;
        }
    }

    /// Replaces segments by one that covers the same seqs, after a rewrite, a merge or a relocation.
    /// `holes` are offsets from its first seq.
    pub(crate) fn replace(
        &self,
        ctx: &Ctx,
        old: &[u64],
        new: SegmentMeta,
        holes: &RoaringBitmap,
    ) -> Result<bool> {
        loop {
            let last = {
                let a = self.append.lock();
                if self.deletes.load(Ordering::Acquire) == 0 {
                    return Ok(ctx.base().change(self, |state| state.replace(old, new, holes)));
                }
                a.last
            };
            if let Some((ticket, level)) = last {
                let _ = ctx.wal.wait(ticket, level);
            }
            ctx.check_sound_wait()?;
        }
    }

    /// The state for the snapshot with its replay position, and the first lsn that must be replayed for
    /// the topic, if any.
    pub(crate) fn capture(&self, layout: u64, mono: u64) -> (TopicSnap, Option<u64>) {
        let state = self.state.read();
        let outstanding = state.outstanding();
        let lsn = outstanding.map_or_else(|| state.checkpoint.applied_in(layout), |lsn| lsn - 1);
        let mut snap = TopicSnap {
            topic_id: self.key.topic_id,
            epoch: self.key.epoch,
            name: self.name.to_string(),
            config: state.config.encode(),
            replay: ReplayPos { layout, lsn },
            head: state.range.indexed_to,
            reserved_to: state.reservation.to,
            earliest_seq: state.range.earliest,
            evict_floor: state.range.evict_floor,
            evict_reason: state.range.evicted.code(),
            delete_below: state.range.floor,
            last_ts: state.last_ts,
            last_write_ts: state.last_write_ts,
            ..TopicSnap::default()
        };
        let gap = |g: &Gap| GapSnap { from: g.from, to: g.to, reason: g.reason.code() };
        snap.gaps = state.gaps_after_restart().iter().map(gap).collect();
        snap.segments = state.index.segs.iter().map(Seg::for_snapshot).collect();
        snap.live_count = snap.segments.iter().map(|s| s.live_count).sum();
        snap.live_bytes = snap.segments.iter().map(|s| s.live_bytes).sum();
        if let Some(dedupe) = &state.dedupe {
            snap.idempotency = dedupe
                .committed()
                .map(|(key, r)| IdempotencySnap {
                    key,
                    request: r.request,
                    first_seq: r.first_seq,
                    last_seq: r.last_seq,
                    expires_at: r.expires_at,
                })
                .collect();
            snap.idempotency.sort_unstable_by_key(|k| k.key);
        }
        snap.sections = state.sections(mono, layout);
        (snap, outstanding)
    }

    /// Turns a resident record that failed its checksum into a gap; the next write logs the gap.
    pub(crate) fn damaged(&self, base: &Base, gap: Gap) {
        let mut a = self.append.lock();
        base.change(self, |state| state.lose(gap.from, gap.to, gap.reason));
        a.unlogged.add(gap);
        base.losses.lock().insert(self.id());
    }

    /// Whether a checkpoint may have work for the topic.
    pub(crate) fn dirty(&self, old: u64) -> bool {
        if self.files_unverified.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.read();
        state.outgrown(old)
            || state.index.first_in_file().is_some()
            || state.index.segs.iter().any(|s| s.dirty.is_some())
    }
}

impl Ctx {
    /// Refuses to wait for a batch of a log that is closed.
    fn check_sound_wait(&self) -> Result<()> {
        match self.wal.poisoned(0) {
            Some(topics_storage::StorageError::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl State {
    /// Raises the floor to the first live record. The records below are all dead, and need no log,
    /// segment or `.del` any more.
    fn trim_front(&mut self) {
        if self.range.earliest_exact && self.range.earliest > self.range.floor {
            let none = |_: &SegmentMeta, from: u64, to: u64| -> std::result::Result<_, Never> {
                Ok(vec![0; (to + 1).saturating_sub(from) as usize])
            };
            let gone = self.raise_floor(self.range.earliest, none);
            debug_assert!(matches!(gone, Ok(0)));
        }
    }

    /// Whether the active segment began before `old` and sealing it has a gain.
    fn outgrown(&self, old: u64) -> bool {
        let Some(seg) = self.index.segs.last().filter(|s| !s.meta.sealed) else { return false };
        let c = &self.config;
        seg.meta.span() > 0
            && seg.meta.first_ts < old
            && (c.ttl_ms > 0
                || c.cap_records > 0
                || c.cap_bytes > 0
                || seg.live_count < seg.meta.span())
    }

    /// The first lsn that must be replayed: of the first record in no segment, or of the first
    /// delete in no `.del`.
    fn outstanding(&self) -> Option<u64> {
        let record = self
            .index
            .first_in_file()
            .and_then(|r| r.entries.front().map(|e| r.lsn + u64::from(e.lsn)));
        let delete = self.index.segs.iter().filter_map(|s| s.dirty.as_ref()).map(|d| d.first_lsn);
        record.into_iter().chain(delete).min()
    }
}

impl Seg {
    /// The segment for the snapshot. Its live counts include records whose delete no `.del` has yet,
    /// because that delete is replayed.
    fn for_snapshot(&self) -> SegmentMeta {
        let mut meta = self.meta;
        (meta.live_count, meta.live_bytes) = (self.live_count, self.live_bytes);
        if let Some(dirty) = &self.dirty {
            meta.live_count += dirty.sizes.len() as u64;
            meta.live_bytes += dirty.sizes.values().map(|s| u64::from(*s)).sum::<u64>();
        }
        meta
    }
}
