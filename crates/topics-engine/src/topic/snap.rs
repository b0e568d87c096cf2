//! What a checkpoint needs of a topic: what to copy, installing it, the state for the snapshot;
//! and a topic made from a snapshot.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_env::sync::atomic::Ordering;
use topics_storage::segment::{SegmentMeta, TopicKey};
use topics_storage::snapshot::{GapSnap, IdempotencySnap, ReplayPos, TopicSnap};
use topics_storage::wal::FileKey;

use super::dedupe::{Dedupe, Remembered};
use super::index::{Dead, Dirty, Entry, Place, Seg};
use super::reserve::Reserve;
use super::state::{Evicted, SincePlan, State};
use super::{Life, Topic};
use crate::api::{Durability, Gap, GapReason};
use crate::config::TopicConfig;
use crate::core::{Base, Core};
use crate::error::{Error, Result};

/// What cannot happen.
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
    pub entries: Vec<Entry>,
}

/// What a checkpoint does for a topic.
#[derive(Clone, Debug)]
pub(crate) struct CopyPlan {
    /// The segment to go on in. A run that does not follow it ends it.
    pub active: Option<SegmentMeta>,
    /// Ascending; where one does not follow the one before, a segment ends.
    pub runs: Vec<CopyRun>,
    /// Segments whose `.del` must be written, with all their dead.
    pub deletes: Vec<(SegmentMeta, Arc<RoaringBitmap>)>,
    /// Whether the active segment is to be ended: it is old, and expiry, caps or reclaim gain.
    pub seal: bool,
}

impl CopyPlan {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.runs.is_empty() && self.deletes.is_empty() && !self.seal
    }

    /// Leaves only the `.del` files.
    pub(crate) fn only_deletes(&mut self) {
        (self.active, self.seal) = (None, false);
        self.runs.clear();
    }

    /// About the bytes of its `.del` files, each with its name.
    pub(crate) fn delete_bytes(&self) -> u64 {
        self.deletes.iter().map(|(_, dead)| dead.serialized_size() as u64 + 4096).sum()
    }
}

/// A segment that a checkpoint wrote, or went on in.
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstallSegment {
    pub meta: SegmentMeta,
}

/// What became of a [`CopyPlan`], after its files were synced.
#[derive(Clone, Debug)]
pub(crate) struct Install {
    pub plan: CopyPlan,
    /// Ascending; the first may be the active one of the plan, under a new file number too.
    pub segments: Vec<InstallSegment>,
    /// File number of a segment → number of its new `.del`, as the plan demanded.
    pub deletes: Vec<(u64, u64)>,
}

impl Topic {
    /// A topic as a snapshot has it; frames after its replay position are applied next.
    pub(crate) fn from_snapshot(base: &Base, snap: &TopicSnap) -> Result<Arc<Self>> {
        let key = TopicKey { topic_id: snap.topic_id, epoch: snap.epoch };
        let config = base.config(TopicConfig::decode(&snap.config)?);
        let topic = Self::new(key, snap.name.as_str().into(), config);
        base.change(&topic, |state| state.restore(base, snap))?;
        topic.set_life(Life::Live);
        base.ids.seen(snap.topic_id);
        Ok(Arc::new(topic))
    }

    /// What must be copied so that the log up to `synced` lsn of `shard` can go; of every shard
    /// when there is none. Notes what changes from here on, for [`Self::install`].
    /// An active segment that began before `old` is ended.
    pub(crate) fn checkpoint_plan(&self, shard: Option<u32>, synced: u64, old: u64) -> CopyPlan {
        let mut state = self.state.write();
        state.trim_front();
        let active = state.index.segs.last().map(|s| s.meta).filter(|m| !m.sealed);
        let mut plan =
            CopyPlan { active, runs: Vec::new(), deletes: Vec::new(), seal: state.outgrown(old) };
        for run in &state.index.runs {
            match &run.place {
                Place::Held { charge: Some(_), .. } => {}
                // Not written yet: nor is anything after it.
                Place::Held { charge: None, .. } => break,
                Place::File { shard: s, .. } if shard.is_some_and(|want| want != *s) => break,
                Place::File { file, shard } => {
                    let n = run.entries.partition_point(|e| run.lsn + u64::from(e.lsn) <= synced);
                    if n > 0 {
                        plan.runs.push(CopyRun {
                            first: run.first,
                            shard: *shard,
                            file: *file,
                            lsn: run.lsn,
                            entries: run.entries.range(..n).copied().collect(),
                        });
                    }
                    if n < run.entries.len() {
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
        state.since_plan = Some(Box::default());
        plan
    }

    /// The topic's index points to what was copied. Deletes that were made meanwhile stay marked
    /// as not written.
    pub(crate) fn install(&self, core: &Core, done: &Install) -> Result<()> {
        loop {
            let last = {
                let a = self.append.lock();
                if self.deletes.load(Ordering::Acquire) == 0 {
                    core.change(self, |state| state.install(done));
                    return Ok(());
                }
                a.last
            };
            // A delete has read what it needs of the segments as they are: let it be applied.
            if let Some((ticket, level)) = last {
                let _ = core.wal.wait(ticket, level);
            }
            core.check_sound_wait()?;
        }
    }

    /// Puts a segment in the place of others that cover the same seqs: a rewrite, a merge, a
    /// relocation. `holes` are offsets from its first seq.
    pub(crate) fn replace(
        &self,
        core: &Core,
        old: &[u64],
        new: SegmentMeta,
        holes: &RoaringBitmap,
    ) -> Result<bool> {
        loop {
            let last = {
                let a = self.append.lock();
                if self.deletes.load(Ordering::Acquire) == 0 {
                    return Ok(core.change(self, |state| state.replace(old, new, holes)));
                }
                a.last
            };
            if let Some((ticket, level)) = last {
                let _ = core.wal.wait(ticket, level);
            }
            core.check_sound_wait()?;
        }
    }

    /// The state for the snapshot, with the position up to which frames are reflected; and the
    /// first lsn that must be replayed for it, if any.
    pub(crate) fn capture(&self, layout: u64, mono: u64) -> (TopicSnap, Option<u64>) {
        let state = self.state.read();
        let outstanding = state.outstanding();
        let lsn = outstanding.map_or(state.applied_lsn, |lsn| lsn - 1);
        let mut snap = TopicSnap {
            topic_id: self.key.topic_id,
            epoch: self.key.epoch,
            name: self.name.to_string(),
            config: state.config.encode(),
            replay: ReplayPos { layout, lsn },
            head: state.indexed_to,
            reserved_to: state.reserved_to,
            earliest_seq: state.earliest,
            evict_floor: state.evict_floor,
            evict_reason: state.evicted.code(),
            delete_below: state.floor,
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
                .settled()
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
        snap.sections = state.sections(mono);
        (snap, outstanding)
    }

    /// A resident record failed its check: it is lost, and the log learns of it with the next write.
    pub(crate) fn damaged(&self, base: &Base, gap: Gap) {
        let mut a = self.append.lock();
        base.change(self, |state| state.lose(gap.from, gap.to, gap.reason));
        a.unlogged.push(gap);
    }

    /// What an unclean close took from the topic: the seqs from the last one kept to the
    /// reservation, an upper bound. The caller logs and applies it.
    pub(crate) fn lost(&self, same_boot: bool) -> Option<Gap> {
        let mut state = self.state.write();
        state.pass_gaps();
        state.move_earliest();
        state.state_lost(state.indexed_to, state.reserved_to, same_boot)
    }

    /// The topic is on another shard, or in a new layout: the lsns before say nothing any more, to
    /// the next snapshot either.
    pub(crate) fn moved(&self) {
        self.state.write().applied_lsn = 0;
    }

    /// Recovery is done, and everything that was replayed is synced: writes may begin.
    pub(crate) fn recovered(&self, base: &Base) {
        let mut a = self.append.lock();
        let mut state = self.state.write();
        state.reserved_synced = state.reserved_to.max(state.indexed_to);
        state.reflected = ReplayPos::default();
        state.sections_recovered(base);
        a.config = state.config.clone();
        a.next_seq = state.indexed_to + 1;
        a.last_ts = state.last_ts;
        a.logged = true;
        if state.config.durability != Durability::Fsync {
            let now = base.time.mono_ms();
            a.reserve = Reserve::found(state.reserved_to, state.indexed_to, now);
            a.synced_to = state.reserved_to;
        }
        let head = state.visible();
        drop(state);
        self.gate.publish(head);
    }

    /// Whether a checkpoint may have something to do for the topic.
    pub(crate) fn dirty(&self, old: u64) -> bool {
        if self.unseen.load(Ordering::Acquire) {
            return false;
        }
        let state = self.state.read();
        state.outgrown(old)
            || state.index.runs.iter().any(|r| r.in_file())
            || state.index.segs.iter().any(|s| s.dirty.is_some())
    }
}

impl Core {
    /// Refuses to wait for a batch of a log that is closed.
    fn check_sound_wait(&self) -> Result<()> {
        match self.wal.poisoned(0) {
            Some(topics_storage::StorageError::Closed) => Err(Error::Closed),
            _ => Ok(()),
        }
    }
}

impl Seg {
    /// As the snapshot must say it: live counts without the deletes that no `.del` has yet,
    /// because those are replayed.
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

impl State {
    /// Lets go of what lies below the first live record: it is all dead, and needs no log, no
    /// segment and no `.del` to say so.
    fn trim_front(&mut self) {
        if self.earliest_exact && self.earliest > self.floor {
            let none = |_: &SegmentMeta, from: u64, to: u64| -> std::result::Result<_, Never> {
                Ok(vec![0; (to + 1).saturating_sub(from) as usize])
            };
            let gone = self.raise_floor(self.earliest, none);
            debug_assert!(matches!(gone, Ok(0)));
        }
    }

    /// Whether the active segment began before `old` and something is gained by ending it.
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

    fn restore(&mut self, base: &Base, snap: &TopicSnap) -> Result<()> {
        self.floor = snap.delete_below.max(snap.evict_floor).max(1);
        self.evict_floor = snap.evict_floor.max(1);
        self.floor_logged = self.evict_floor;
        self.evicted = Evicted::from_code(snap.evict_reason)
            .ok_or_else(|| Error::Internal(format!("evict reason {}", snap.evict_reason)))?;
        self.earliest = snap.earliest_seq.max(self.floor);
        self.indexed_to = self.floor - 1;
        self.last_ts = snap.last_ts;
        self.last_write_ts = snap.last_write_ts;
        self.reserved_to = snap.reserved_to;
        self.reflected = snap.replay;
        self.applied_lsn = snap.replay.lsn;
        for g in &snap.gaps {
            let reason = GapReason::from_code(g.reason)
                .ok_or_else(|| Error::Internal(format!("gap reason {}", g.reason)))?;
            self.gaps.push(Gap { from: g.from, to: g.to, reason });
        }
        let mut next = self.floor;
        for meta in &snap.segments {
            if meta.first_seq > next {
                // Records that were never logged lay between.
                let gap = Gap { from: next, to: meta.first_seq - 1, reason: GapReason::Restart };
                self.list_gap(gap);
            }
            next = next.max(meta.last_seq + 1);
            self.count += meta.live_count;
            self.bytes += meta.live_bytes;
            if self.index.segs.is_empty() {
                self.index.segs.reserve_exact(snap.segments.len());
            }
            self.index.segs.push(Seg::named(*meta));
        }
        // A loss behind the last segment is reflected too, unless records that are replayed lie
        // between: then the frame that says so is replayed after them.
        self.indexed_to = next - 1;
        self.pass_gaps();
        self.tags_from = self.index.segments_to() + 1;
        if !snap.idempotency.is_empty() {
            let now = base.time.steady();
            let mut dedupe = Dedupe::new(&base.keys);
            for k in snap.idempotency.iter().filter(|k| k.expires_at > now) {
                dedupe.settle(
                    k.key,
                    Remembered {
                        request: k.request,
                        first_seq: k.first_seq,
                        last_seq: k.last_seq,
                        expires_at: k.expires_at,
                        ticket: None,
                        settled: true,
                        logged: true,
                    },
                );
            }
            self.dedupe = Some(Box::new(dedupe));
        }
        self.restore_sections(&snap.sections, base.time.mono_ms(), snap.replay.layout)?;
        // The dead of the first segment may not be loaded: `earliest` was exact, and it stays a
        // lower bound.
        self.earliest = self.earliest.min(self.indexed_to + 1);
        self.earliest_exact = false;
        self.move_earliest();
        Ok(())
    }

    /// The first lsn that must be replayed: of the first record in no segment, or of the first
    /// delete in no `.del`.
    fn outstanding(&self) -> Option<u64> {
        let record = self
            .index
            .runs
            .iter()
            .find(|r| r.in_file())
            .and_then(|r| r.entries.front().map(|e| r.lsn + u64::from(e.lsn)));
        let delete = self.index.segs.iter().filter_map(|s| s.dirty.as_ref()).map(|d| d.first_lsn);
        record.into_iter().chain(delete).min()
    }

    fn install(&mut self, done: &Install) {
        let since = self.since_plan.take().unwrap_or_default();
        let upto = done.segments.iter().map(|s| s.meta.last_seq).max().unwrap_or(0);
        for (file_no, del_no) in &done.deletes {
            let written = done.plan.deletes.iter().find(|(m, _)| m.file_no == *file_no);
            if let (Some((_, dead)), Some(seg)) = (written, self.index.seg_numbered(*file_no)) {
                seg.meta.del_no = *del_no;
                seg.written(|offset| dead.contains(offset), &since);
            }
        }
        for s in &done.segments {
            let seg = self.covered(&s.meta, &done.plan, &since);
            let at = self.index.segs.partition_point(|x| x.meta.first_seq < s.meta.first_seq);
            let old = self.index.segs.get(at).is_some_and(|x| x.meta.first_seq == s.meta.first_seq);
            if old {
                self.index.segs.remove(at);
            }
            if s.meta.last_seq >= self.floor {
                // Most topics have one segment for long.
                if self.index.segs.is_empty() {
                    self.index.segs.reserve_exact(1);
                }
                self.index.segs.insert(at, seg);
            }
        }
        self.index.installed(upto);
        if let Some(expiries) = &mut self.expiries {
            expiries.retain(|(_, seq)| *seq > upto);
        }
        self.cut_tags();
        self.structure += 1;
        self.window = None;
        self.earliest_exact = false;
        self.move_earliest();
    }

    /// A segment that goes on from one that is there, or begins, with records that are resident.
    fn covered(&self, meta: &SegmentMeta, plan: &CopyPlan, since: &SincePlan) -> Seg {
        let old = self.index.segs.iter().find(|s| s.meta.first_seq == meta.first_seq);
        let mut seg = match old {
            Some(old) => Seg { meta: *meta, ..old.clone() },
            None => {
                Seg { meta: *meta, live_count: 0, live_bytes: 0, dead: Dead::None, dirty: None }
            }
        };
        if let Some(old) = old {
            seg.meta.del_no = old.meta.del_no;
        }
        let from = old.map_or(meta.first_seq, |o| o.meta.last_seq + 1);
        let mut dead = Vec::new();
        for run in &plan.runs {
            // Only the entries of this segment: a round may have copied many.
            let skip = from.saturating_sub(run.first).min(run.entries.len() as u64);
            let end = (meta.last_seq + 1).saturating_sub(run.first).min(run.entries.len() as u64);
            let mine = run.entries.get(skip as usize..end as usize).unwrap_or_default();
            for (seq, then) in (run.first + skip..).zip(mine) {
                let offset = seg.offset(seq);
                let now = if seq < self.floor { None } else { self.index.entry(seq) };
                if now.is_some_and(|e| !e.dead()) {
                    seg.live_count += 1;
                    seg.live_bytes += then.payload();
                    continue;
                }
                dead.push(offset);
                if !then.dead() && now.is_some() {
                    // Deleted since it was copied.
                    let first_lsn = since.first_delete.unwrap_or(self.applied_lsn);
                    let dirty = seg
                        .dirty
                        .get_or_insert_with(|| Box::new(Dirty { first_lsn, ..Dirty::default() }));
                    dirty.first_lsn = dirty.first_lsn.min(first_lsn);
                    dirty.sizes.insert(offset, then.payload() as u32);
                }
            }
        }
        seg.dead = seg.dead.with(dead);
        seg
    }

    /// Tags of sealed segments are in files: memory lets go of them.
    fn cut_tags(&mut self) {
        let sealed = self.index.segs.iter().rev().find(|s| s.meta.sealed);
        let Some(sealed) = sealed.map(|s| s.meta.last_seq) else { return };
        let held = self.index.runs.front().map_or(u64::MAX, |r| r.first);
        let keep = (sealed + 1).min(held);
        self.tags_from = self.tags_from.max(sealed + 1);
        if let Some(tags) = &mut self.tags {
            tags.cut(keep);
        }
    }

    fn replace(&mut self, old: &[u64], new: SegmentMeta, holes: &RoaringBitmap) -> bool {
        let at = self.index.segs.iter().position(|s| old.first() == Some(&s.meta.file_no));
        let Some(at) = at else { return false };
        let parts = self.index.segs.get(at..at + old.len()).unwrap_or_default();
        if !parts.iter().map(|s| s.meta.file_no).eq(old.iter().copied()) {
            return false;
        }
        let mut seg = Seg {
            meta: new,
            live_count: parts.iter().map(|s| s.live_count).sum(),
            live_bytes: parts.iter().map(|s| s.live_bytes).sum(),
            dead: Dead::None.with(holes.iter()),
            dirty: None,
        };
        let relocated = parts.len() == 1 && parts[0].meta.file_no == new.file_no;
        if relocated {
            seg.meta.del_no = parts[0].meta.del_no;
            seg.dead = parts[0].dead.clone();
        }
        for part in parts {
            let shift = (part.meta.first_seq - new.first_seq) as u32;
            if let Dead::Some(dead) = &part.dead {
                seg.dead = seg.dead.with(dead.iter().map(|o| o + shift));
            }
            let Some(dirty) = &part.dirty else { continue };
            let left = dirty.sizes.iter().map(|(o, size)| (o + shift, *size));
            // What became a hole is on disk now.
            let left: Vec<_> = left.filter(|(o, _)| relocated || !holes.contains(*o)).collect();
            if !left.is_empty() {
                let all = seg.dirty.get_or_insert_with(|| {
                    Box::new(Dirty { first_lsn: dirty.first_lsn, ..Dirty::default() })
                });
                all.first_lsn = all.first_lsn.min(dirty.first_lsn);
                all.sizes.extend(left);
            }
        }
        self.index.segs.splice(at..at + old.len(), [seg]);
        self.structure += 1;
        self.window = None;
        true
    }

    /// See [`Topic::lost`].
    pub(crate) fn state_lost(
        &self,
        kept_last: u64,
        reserved_to: u64,
        same_boot: bool,
    ) -> Option<Gap> {
        if reserved_to <= kept_last {
            return None;
        }
        let (from, to) = (kept_last + 1, reserved_to);
        let volatile = self.volatile || self.config.durability <= Durability::Memory;
        match (volatile, same_boot) {
            (true, _) => Some(Gap { from, to, reason: GapReason::Restart }),
            (false, true) => None,
            // Of class `fsync` too: the reservation is there because the topic was leaving the
            // class, and what said so is lost with what was written after it.
            (false, false) => Some(Gap { from, to, reason: GapReason::Crash }),
        }
    }
}

impl Seg {
    /// A `.del` with these dead was written.
    fn written(&mut self, has: impl Fn(u32) -> bool, since: &SincePlan) {
        let Some(dirty) = &mut self.dirty else { return };
        dirty.sizes.retain(|offset, _| !has(*offset));
        match since.first_delete {
            Some(lsn) if !dirty.sizes.is_empty() => dirty.first_lsn = lsn,
            _ if dirty.sizes.is_empty() => self.dirty = None,
            _ => {}
        }
    }
}
