//! Recovery: the snapshot, then every kept frame, then what was lost.
//!
//! Recovery only applies: what was decided is in the log.

mod own_prefix;

use std::collections::HashMap;
use std::path::Path;

use topics_env::Env;
use topics_storage::StorageError;
use topics_storage::dir::{Paths, make_root};
use topics_storage::format::frame::{self, FrameType};
use topics_storage::format::record::{Body, Gap as GapBody};
use topics_storage::recovery::{Loss, Opening, Problem, ShardReport};
use topics_storage::segment::{SegmentOptions, TopicKey};
use topics_storage::snapshot::{ReplayPos, Table, TopicSnap};
use topics_storage::wal::{PlacedBatch, WalOptions};
use xxhash_rust::xxh3::xxh3_64;

use self::own_prefix::{Findings, OwnPrefix};
use crate::catalog::TopicTable;
use crate::catalog::ids::Ids;
use crate::topic::events::Base;
use crate::topic::{self, Placement, Topic};
use crate::types::api::{Gap, GapReason};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RecoveryMode};

/// What recovery fills: the topics, and by [`Base::host`] all else that frames change.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub base: &'a Base,
    pub table: &'a TopicTable,
    pub ids: &'a Ids,
}

/// Makes a data directory when it is missing, and looks at whether it can be one: for who wants to
/// know before it is opened.
pub fn make_directory(env: &Env, dir: &Path) -> Result<()> {
    Ok(make_root(env, &Paths::new(dir))?)
}

/// The log's settings.
pub(crate) fn wal_options(options: &Options) -> WalOptions {
    WalOptions {
        shards: options.shards(),
        file_initial: options.wal_file_min,
        file_max: options.largest_wal_file(),
        staging_bytes: options.staging_bytes,
        staging_batches: options.staging_frames,
        tail_cache_bytes: options.tail_cache_bytes / options.shards() as usize,
        sync_interval: options.sync_interval,
        background: options.background,
    }
}

/// The segments' settings.
pub(crate) fn segment_options(options: &Options, env: &Env) -> SegmentOptions {
    let descriptors = env.fs.fd_limit();
    SegmentOptions {
        max_events: options.segment_max_events,
        max_bytes: options.segment_max_bytes,
        max_open: options.open_files(descriptors),
        max_unsynced: options.unsynced_files(descriptors),
    }
}

/// What lies behind the end of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LogEnd {
    /// Records may have been acked that are not in it.
    Open,
    /// Nothing that counts: it is a state of the past, to be read.
    Exact,
}

/// What a replay may do, and expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Access {
    /// The directory was closed cleanly.
    Closed,
    /// It may be changed.
    Change,
    /// Nothing may be changed.
    Look,
}

/// What the replay knows beside the topics' own state.
#[derive(Default)]
pub(crate) struct Replay {
    /// Up to where the snapshot reflects each topic.
    reflected: HashMap<u64, ReplayPos>,
    /// Per topic, where its last record was: a loss before that is settled, because a record tells
    /// which seqs are missing before it. No other frame does.
    seen: HashMap<u64, ReplayPos>,
    /// Something was given up: what records skip is noted.
    damaged: bool,
    /// Losses that a later record settles, by topic.
    pub holes: Vec<(String, Gap)>,
    /// The first layout that a replayed batch was logged under.
    pub oldest_layout: Option<u64>,
    /// Records of segments that are lost, by topic.
    lost_records: HashMap<u64, Vec<Gap>>,
    /// What is wrong with the segments that were written anew.
    pub segments: Vec<Problem>,
    /// Why a repair has not looked at the objects of cold segments, if there are any.
    pub unlooked: Option<String>,
}

/// A loss to be logged: of lsns, or of a topic's seqs.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    shard: u32,
    /// Id and name; none for lsns.
    pub topic: Option<(u64, String)>,
    pub gap: GapBody,
}

impl Lost {
    pub(crate) fn frame(&self) -> (u32, Vec<u8>) {
        (self.shard, encode(&self.gap, self.topic.as_ref().map_or(0, |(id, _)| *id)))
    }
}

/// Damage as `verify` would report it.
pub(crate) fn problem(e: &StorageError) -> Problem {
    match e.clone() {
        StorageError::Corrupt { file, offset, detail } => Problem { file, offset, detail },
        StorageError::Missing { what: file } => {
            Problem { file, offset: 0, detail: "it is missing".into() }
        }
        e => Problem { file: e.to_string(), offset: 0, detail: String::new() },
    }
}

impl Replay {
    /// Applies the snapshot and every kept frame.
    pub(crate) fn of(
        target: Target<'_>,
        opening: &Opening,
        topics: Table,
        access: Access,
    ) -> Result<Self> {
        let base = target.base;
        let damaged = opening.losses().next().is_some();
        let mut replay = Self { damaged, ..Self::default() };
        replay.snapshot(target, opening, topics, access)?;
        let mut failed = None;
        let replayed = opening.replay(&base.recovery, |layout, placed| {
            replay.batch(target, layout, placed).map_err(|e| {
                failed = Some(e);
                StorageError::Closed
            })
        });
        if let Some(e) = failed {
            return Err(e);
        }
        replayed?;
        let lost: u64 = opening.losses().map(|l| l.to_lsn + 1 - l.from_lsn).sum();
        if lost > 0 {
            target.ids.skip(lost);
        }
        base.time.resume();
        Ok(replay)
    }

    fn snapshot(
        &mut self,
        target: Target<'_>,
        opening: &Opening,
        topics: Table,
        access: Access,
    ) -> Result<()> {
        let Some(body) = opening.snapshot() else { return Ok(()) };
        let Target { base, table, ids } = target;
        ids.found(body.next_topic_id, body.reserved_topic_id);
        for section in &body.sections {
            let known = base.time.restore(section)?
                || base.packs.restore(section)?
                || base.host.restore(base, section)?;
            if !known {
                return Err(Error::Version {
                    what: format!("section {} of the snapshot", section.kind),
                    found: u32::from(section.version),
                    supported: 0,
                });
            }
        }
        if access == Access::Closed && topics.is_sorted() {
            return table.adopt_unloaded(base, ids, topics, body.layout);
        }
        let mut prefix = None;
        if base.options.recovery == RecoveryMode::Repair && base.packs.len() > 0 {
            match OwnPrefix::open(base) {
                Ok(own) => prefix = Some(own),
                Err(why) => self.unlooked = Some(why),
            }
        }
        for i in 0..topics.len() {
            let mut snap = topics.topic(i)?;
            let key = TopicKey { topic_id: snap.topic_id, epoch: snap.epoch };
            let mut lost = Vec::new();
            if base.options.recovery.gives_up() {
                lost = self.salvage_segments(base, key, &mut snap, (access, prefix.as_mut()))?;
            } else {
                base.segments.check_named(key, &snap.segments, true)?;
            }
            let topic = Topic::from_snapshot(base, &snap, &lost)?;
            if !lost.is_empty() {
                self.lost_records.insert(snap.topic_id, lost);
            }
            self.reflected.insert(snap.topic_id, snap.replay);
            ids.seen(snap.topic_id);
            table.loaded.adopt(topic);
        }
        if let Some(prefix) = prefix {
            // What is here of their segments is archived again.
            base.packs.remove(&prefix.gone()?);
        }
        Ok(())
    }

    /// Writes damaged segments of a topic anew, without what is lost of them, which it returns. The
    /// files as they were are kept in `damaged/`. What the object store has is taken from there.
    fn salvage_segments(
        &mut self,
        base: &Base,
        key: TopicKey,
        snap: &mut TopicSnap,
        (access, mut prefix): (Access, Option<&mut OwnPrefix<'_>>),
    ) -> Result<Vec<Gap>> {
        let records = base.options.recovery == RecoveryMode::Repair;
        let floor = snap.delete_below.max(snap.evict_floor);
        let mut lost = Vec::new();
        for meta in &mut snap.segments {
            let found = match &mut prefix {
                Some(prefix) => prefix.examine(key, meta)?,
                None => Findings::default(),
            };
            for why in &found.mended {
                log::error!("topic {:?}: {why}; it is mended without a loss", snap.name);
                self.segments.push(problem(why));
            }
            let damaged = match found.lost {
                Some(lost) => Some(lost),
                None => base.segments.examine(key, meta, records)?,
            };
            let Some(damaged) = damaged else { continue };
            log::error!("topic {:?}: {}; it is written anew", snap.name, damaged.why);
            self.segments.push(problem(&damaged.why));
            if access != Access::Look {
                damaged.quarantine()?;
            }
            *meta = damaged.rewrite()?;
            let ranges = damaged.lost.iter().filter(|r| r.1 >= floor);
            lost.extend(ranges.map(|&(from, to)| Gap {
                from: from.max(floor),
                to,
                reason: GapReason::Corrupt,
            }));
        }
        Ok(lost)
    }

    /// Applies a batch, but for the frames that the snapshot reflects for their topic.
    fn batch(&mut self, target: Target<'_>, layout: u64, placed: &PlacedBatch<'_>) -> Result<()> {
        let base = target.base;
        let oldest = self.oldest_layout.get_or_insert(layout);
        *oldest = layout.min(*oldest);
        let at = Placement::new(layout, placed);
        if let Ok((f, _)) = frame::parse(at.bytes)
            && f.topic_id != 0
        {
            base.time.met(f.ts);
            if self.damaged && holds_record(at.bytes) {
                self.seen.insert(f.topic_id, ReplayPos { layout, lsn: at.lsn });
                return self.noting(target, &at, f.topic_id);
            }
        }
        topic::apply(base, &at, None)
    }

    /// Applies records, and notes the gap that they make.
    fn noting(&mut self, target: Target<'_>, at: &Placement<'_>, topic_id: u64) -> Result<()> {
        let topic = target.table.loaded.by_id(topic_id);
        let before = topic.as_ref().map(|t| t.state.read().range.indexed_to);
        topic::apply(target.base, at, None)?;
        if let (Some(topic), Some(before)) = (topic, before)
            && let Some(gap) = topic.state.read().gaps.last().filter(|g| g.to > before)
        {
            self.holes.push((topic.name.to_string(), *gap));
        }
        Ok(())
    }

    /// States what was lost: applies it, and returns it. Each topic also skips `skip` seqs.
    pub(crate) fn lost(
        &self,
        target: Target<'_>,
        opening: &Opening,
        (skip, end): (u64, LogEnd),
    ) -> Vec<Lost> {
        let Target { base, table, .. } = target;
        let reports: HashMap<u32, ShardReport> =
            opening.reports().into_iter().map(|r| (r.shard, r)).collect();
        let losses: Vec<&Loss> = opening.losses().filter(|l| !l.announced).collect();
        let lsns = opening.losses().map(|l| l.to_lsn + 1 - l.from_lsn).sum();
        base.metrics.lost_lsns.add(lsns);
        let mut out = Vec::new();
        for loss in &losses {
            log::error!(
                "{}: damaged at offset {}, lsn {} to {} are given up",
                loss.file,
                loss.offset,
                loss.from_lsn,
                loss.to_lsn
            );
            let code = GapReason::Corrupt.code();
            let gap = GapBody { from: loss.from_lsn, to: loss.to_lsn, reason: code };
            out.push(Lost { shard: loss.shard, topic: None, gap });
        }
        let layouts = opening.layouts();
        table.loaded.each(|topic| {
            let shard = shard_of(topic.id(), opening.shard_count());
            let mut gaps = Vec::new();
            for loss in &losses {
                if let Some(layout) = last_there(loss, topic.id(), &layouts) {
                    gaps.extend(self.given_up(topic, loss, layout));
                }
            }
            let report = reports.get(&shard);
            let tail_intact = report.is_none_or(|r| r.clean || r.tail_intact);
            for gap in &gaps {
                topic.state.write().add_gap(*gap);
            }
            gaps.extend(self.lost_records.get(&topic.id()).into_iter().flatten());
            let lost = topic.lost(tail_intact, skip);
            if let Some(gap) = lost.filter(|_| end == LogEnd::Open) {
                topic.state.write().add_gap(gap);
                gaps.push(gap);
            }
            for gap in gaps {
                let gap = GapBody { from: gap.from, to: gap.to, reason: gap.reason.code() };
                let topic = Some((topic.id(), topic.name.to_string()));
                out.push(Lost { shard, topic, gap });
            }
        });
        out
    }

    /// The gap of a topic whose loss, in a layout, no later record settles: each of the missing lsns
    /// may have been one of its records.
    fn given_up(&self, topic: &Topic, loss: &Loss, layout: u64) -> Option<Gap> {
        let end = ReplayPos { layout, lsn: loss.to_lsn };
        let settled = self.seen.get(&topic.id()).is_some_and(|p| *p > end)
            || self.reflected.get(&topic.id()).is_some_and(|p| *p >= end);
        if settled {
            return None;
        }
        let head = topic.state.read().range.indexed_to;
        let to = head + (loss.to_lsn + 1 - loss.from_lsn);
        Some(Gap { from: head + 1, to, reason: GapReason::Corrupt })
    }
}

fn encode(gap: &GapBody, topic_id: u64) -> Vec<u8> {
    let mut out = Vec::new();
    gap.encode_frame(&mut out, topic_id, 0, 0);
    debug_assert_eq!(out.get(4), Some(&(FrameType::Gap as u8)));
    out
}

/// Whether one of the frames of a batch is a record.
fn holds_record(mut batch: &[u8]) -> bool {
    while let Ok((f, len)) = frame::parse(batch) {
        if f.kind == FrameType::Append {
            return true;
        }
        batch = batch.get(len..).unwrap_or_default();
    }
    false
}

/// The last layout, of those that a loss may be of, in which a topic was on its shard. `None`: none of
/// the topic's frames were lost.
fn last_there(loss: &Loss, topic_id: u64, layouts: &[(u64, u32)]) -> Option<u64> {
    let (first, last) = loss.layouts;
    let of_loss = layouts.iter().rev().filter(|(l, _)| (first..=last).contains(l));
    let mut there = of_loss.filter(|(_, shards)| shard_of(topic_id, *shards) == loss.shard);
    there.next().map(|(layout, _)| *layout)
}

/// Where a topic's frames lie in a layout of so many shards.
fn shard_of(topic_id: u64, shards: u32) -> u32 {
    (xxh3_64(&topic_id.to_le_bytes()) % u64::from(shards)) as u32
}
