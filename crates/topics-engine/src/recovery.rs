//! Opening: snapshot → replay → what was lost → a running engine.
//!
//! Recovery only applies: what was decided is in the log.

use std::collections::{BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use topics_env::Env;
use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicBool, AtomicU64};
use topics_storage::StorageError;
use topics_storage::checkpoint::Checkpoints;
use topics_storage::dir::{Paths, Store, make_root};
use topics_storage::format::frame::{self, FrameType};
use topics_storage::format::record::{Body, Gap as GapBody};
use topics_storage::recovery::{
    Loss, Mode, Opened, Opening, Problem, RecoveryProgress, ShardReport,
};
use topics_storage::segment::{SegmentOptions, Segments, TopicKey};
use topics_storage::snapshot::{ReplayPos, Table, TopicSnap};
use topics_storage::wal::{Placed, WalOptions};
use xxhash_rust::xxh3::xxh3_64;

use crate::checkpoint::round;
use crate::core::{Base, Core, Disk};
use crate::queue;
use crate::topic::{self, Placement, Topic};
use crate::txn;
use crate::types::api::{Gap, GapReason};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RecoveryMode};

/// Opens a directory and recovers what it holds.
pub(crate) fn open(
    env: Env,
    dir: &Path,
    options: Options,
    progress: Arc<RecoveryProgress>,
) -> Result<Arc<Core>> {
    let strict = !options.recovery.gives_up();
    let opened = recover(env, dir, options, progress);
    opened.map_err(|e| if strict { advise(dir, e) } else { e })
}

/// What to run about damage, where a repair can help.
pub(crate) fn advise(dir: &Path, e: Error) -> Error {
    match e {
        Error::Corrupt { file, offset, detail }
            if !detail.contains("topics repair") && !detail.contains("restore a backup") =>
        {
            let dir = dir.display();
            let detail = format!(
                "{detail}: run `topics repair --data-dir {dir}` to see what would be given up"
            );
            Error::Corrupt { file, offset, detail }
        }
        e => e,
    }
}

fn recover(
    env: Env,
    dir: &Path,
    options: Options,
    progress: Arc<RecoveryProgress>,
) -> Result<Arc<Core>> {
    let dir = &absolute(dir)?;
    let paths = Paths::new(dir);
    let mode = match options.recovery {
        RecoveryMode::Strict => Mode::Strict,
        RecoveryMode::Salvage | RecoveryMode::Repair => Mode::Salvage,
    };
    let pid = std::process::id();
    let mut opening = Opening::begin(env.clone(), paths.clone(), pid, wal_options(&options), mode)
        .map_err(|e| at(dir, e))?;
    // The files of a topic that is asleep are looked at later; `salvage` looks at all of them.
    let closed = opening.closed() && mode == Mode::Strict;
    let topics = opening.take_topics();
    let segments = Segments::new(
        env.clone(),
        paths.clone(),
        opening.store().id,
        opening.generation(),
        segment_options(&options, &env),
        None,
    );
    let base = Base::new(env.clone(), dir.to_owned(), options, segments.clone(), progress);
    let snapshot_layout = opening.snapshot().map(|b| b.layout);
    let access = if closed { Access::Closed } else { Access::Change };
    let replay = Replay::of(&base, &opening, topics, access)?;
    let lost: Vec<_> = replay.lost(&base, &opening).iter().map(Lost::frame).collect();
    let repaired = mode == Mode::Salvage
        && (opening.losses().any(|l| !l.announced)
            || !opening.snapshots().rejected.is_empty()
            || !replay.segments.is_empty());
    let opened = opening.finish(&lost)?;
    let core = start(base, paths, segments, opened, closed)?;
    core.ids.recovered();
    // Before the first write the newest snapshot is one of the layout in force, whatever of the log
    // was replayed; also when an earlier open changed the layout and got no further.
    let mut layouts = snapshot_layout.into_iter().chain(replay.oldest_layout);
    if layouts.any(|l| l != core.disk.layout) {
        let moved = round::relay(&core);
        if let Err(Error::StorageUnavailable { reason: "io", detail }) = moved {
            // A segment that is written on tells what went wrong with it before this open; then it
            // is written anew.
            log::warn!("the change of the number of shards is tried again: {detail}");
            round::relay(&core)?;
        } else {
            moved?;
        }
    }
    for topic in core.registry.outlived() {
        topic::bury(&core, &topic);
    }
    core.registry.each(|t| t.recovered(&core));
    core.serve();
    core.routers.recovered(&core)?;
    txn::recovered(&core)?;
    core.delivery.resume(&core)?;
    queue::finish(&core);
    core.registry.each(|t| queue::announce_again(&core, t));
    core.disk.checkpoints.refill(&core.wal);
    if repaired {
        settle_repair(&core)?;
    }
    core.start_background()?;
    Ok(core)
}

/// Ends a recovery that gave something up: from here on no snapshot names what is lost, so that the
/// next open, a strict one too, finds nothing wrong.
fn settle_repair(core: &Arc<Core>) -> Result<()> {
    for _ in 0..2 {
        match round::checkpoint(core) {
            Err(e) if e.is_shortage() => {
                log::warn!("the next open must be one with salvage again: {e}");
                return Ok(());
            }
            done => done.map(drop)?,
        }
    }
    Ok(())
}

/// Opens what a directory holds over files that stay as they are: what recovery writes is only
/// in memory.
pub(crate) fn open_read_only(env: Env, dir: &Path, options: Options) -> Result<Arc<Core>> {
    if Store::read(&env, &Paths::new(dir))?.is_none() {
        let text = format!("{} is no data directory", dir.display());
        return Err(Error::InvalidRequest(text));
    }
    let options = Options { background: false, ..options };
    let core = open(env.read_only(), dir, options, Arc::default())?;
    core.freeze();
    Ok(core)
}

/// The directory whatever the process makes its working directory later: files are made, and the
/// lock file is looked at, by their paths for as long as it is open.
fn absolute(dir: &Path) -> Result<PathBuf> {
    std::path::absolute(dir).map_err(|e| {
        Error::InvalidRequest(format!("the data directory {:?}: {e}", dir.display().to_string()))
    })
}

/// Makes a data directory when it is missing, and looks at whether it can be one: for who wants to
/// know before it is opened.
pub fn make_directory(env: &Env, dir: &Path) -> Result<()> {
    Ok(make_root(env, &Paths::new(dir))?)
}

fn wal_options(options: &Options) -> WalOptions {
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

fn segment_options(options: &Options, env: &Env) -> SegmentOptions {
    let descriptors = env.fs.descriptors();
    SegmentOptions {
        max_events: options.segment_max_events,
        max_bytes: options.segment_max_bytes,
        max_open: options.open_files(descriptors),
        max_unsynced: options.unsynced_files(descriptors),
    }
}

fn start(
    base: Base,
    paths: Paths,
    segments: Arc<Segments>,
    opened: Opened,
    closed: bool,
) -> Result<Arc<Core>> {
    let checkpoints =
        Checkpoints::new(base.env.clone(), paths, opened.store.id, segments, &opened.snapshots);
    // A clean close leaves nothing that no snapshot names.
    if !closed {
        let live: BTreeSet<u64> = base.registry.all_ids();
        checkpoints.sweep(&live)?;
    }
    let disk = Disk {
        lock: Mutex::new(Some(opened.lock)),
        checkpoints,
        store_id: opened.store.id,
        generation: opened.generation,
        layout: opened.layout,
        outside: opened.outside,
        round: Mutex::new(round::Rounds::default()),
        logged_at_round: AtomicU64::new(0),
        settled_rounds: AtomicU64::new(0),
        put_off: AtomicBool::new(false),
    };
    Ok(Core::new(base, opened.wal, disk))
}

/// What a replay may do, and expect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Access {
    /// The directory was closed cleanly.
    Closed,
    /// It may be changed.
    Change,
    /// Nothing may be changed.
    Look,
}

/// What the replay knows beside the topics' own state.
#[derive(Default)]
struct Replay {
    /// Up to where the snapshot reflects each topic.
    reflected: HashMap<u64, ReplayPos>,
    /// Per topic, where its last record was: a loss before that is settled, because a record tells
    /// which seqs are missing before it. No other frame does.
    seen: HashMap<u64, ReplayPos>,
    /// Something was given up: what records skip is noted.
    damaged: bool,
    /// Losses that a later record settles, by topic.
    holes: Vec<(String, Gap)>,
    /// The first layout that a replayed batch was logged under.
    oldest_layout: Option<u64>,
    /// Records of segments that are lost, by topic.
    lost_records: HashMap<u64, Vec<Gap>>,
    /// What is wrong with the segments that were written anew.
    segments: Vec<Problem>,
}

/// A loss to be logged: of lsns, or of a topic's seqs.
#[derive(Clone, Debug)]
struct Lost {
    shard: u32,
    /// Id and name; none for lsns.
    topic: Option<(u64, String)>,
    gap: GapBody,
}

impl Lost {
    fn frame(&self) -> (u32, Vec<u8>) {
        (self.shard, encode(&self.gap, self.topic.as_ref().map_or(0, |(id, _)| *id)))
    }
}

/// What `salvage` would give up.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Ranges of the logs.
    pub losses: Vec<Loss>,
    /// The gaps of the topics, each with the topic's name.
    pub gaps: Vec<(String, Gap)>,
    /// Files that would be made again from others, or from what is left of them.
    pub files: Vec<Problem>,
}

/// Says what `salvage` would give up.
pub(crate) fn plan(env: &Env, dir: &Path, options: Options) -> Result<Plan> {
    let (paths, wal) = (Paths::new(dir), wal_options(&options));
    let mut opening = Opening::look(env.clone(), paths.clone(), std::process::id(), wal)
        .map_err(|e| at(dir, e))?;
    let topics = opening.take_topics();
    let (id, generation) = (opening.store().id, opening.generation());
    // Segments that would be written anew are, in memory.
    let env = env.clone().read_only();
    let set = segment_options(&options, &env);
    let segments = Segments::new(env.clone(), paths, id, generation, set, None);
    let options = Options { recovery: RecoveryMode::Repair, ..options };
    let base = Base::new(env, dir.to_owned(), options, segments, Arc::default());
    let replay = Replay::of(&base, &opening, topics, Access::Look)?;
    let lost = replay.lost(&base, &opening);
    let losses = opening.losses().filter(|l| !l.announced).cloned().collect();
    let gaps = lost.into_iter().filter_map(|l| {
        let reason = GapReason::from_code(l.gap.reason)?;
        Some((l.topic?.1, Gap { from: l.gap.from, to: l.gap.to, reason }))
    });
    let store = opening.store_damage().map(problem);
    Ok(Plan {
        losses,
        gaps: replay.holes.into_iter().chain(gaps).collect(),
        files: store.into_iter().chain(replay.segments).collect(),
    })
}

/// Damage as `verify` would report it.
fn problem(e: &StorageError) -> Problem {
    match e.clone() {
        StorageError::Corrupt { file, offset, detail } => Problem { file, offset, detail },
        StorageError::Missing { what: file } => {
            Problem { file, offset: 0, detail: "it is missing".into() }
        }
        e => Problem { file: e.to_string(), offset: 0, detail: String::new() },
    }
}

/// A held lock, with the directory that it is of.
fn at(dir: &Path, e: StorageError) -> Error {
    match e {
        StorageError::Locked { pid, url } => {
            Error::Locked { dir: dir.display().to_string(), pid, url }
        }
        e => e.into(),
    }
}

impl Replay {
    /// Applies the snapshot and every kept frame.
    fn of(base: &Base, opening: &Opening, topics: Table, access: Access) -> Result<Self> {
        let damaged = opening.losses().next().is_some();
        let mut replay = Self { damaged, ..Self::default() };
        replay.snapshot(base, opening, topics, access)?;
        let mut failed = None;
        let replayed = opening.replay(&base.recovery, |layout, placed| {
            replay.batch(base, layout, placed).map_err(|e| {
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
            base.ids.skip(lost);
        }
        base.time.resume();
        Ok(replay)
    }

    fn snapshot(
        &mut self,
        base: &Base,
        opening: &Opening,
        topics: Table,
        access: Access,
    ) -> Result<()> {
        let Some(body) = opening.snapshot() else { return Ok(()) };
        base.ids.found(body.next_topic_id, body.reserved_topic_id);
        for section in &body.sections {
            let known = base.time.restore(section)?
                || base.routers.restore(base, section)?
                || base.txns.restore(section)?;
            if !known {
                return Err(Error::Version {
                    what: format!("section {} of the snapshot", section.kind),
                    found: u32::from(section.version),
                    supported: 0,
                });
            }
        }
        if access == Access::Closed && topics.is_sorted() {
            return base.put_to_sleep(topics, body.layout);
        }
        for i in 0..topics.len() {
            let mut snap = topics.topic(i)?;
            let key = TopicKey { topic_id: snap.topic_id, epoch: snap.epoch };
            let mut lost = Vec::new();
            if base.options.recovery.gives_up() {
                lost = self.salvage_segments(base, key, &mut snap, access)?;
            } else {
                base.segments.check_named(key, &snap.segments, true)?;
            }
            let topic = Topic::from_snapshot(base, &snap, &lost)?;
            if !lost.is_empty() {
                self.lost_records.insert(snap.topic_id, lost);
            }
            self.reflected.insert(snap.topic_id, snap.replay);
            base.registry.adopt(topic);
        }
        Ok(())
    }

    /// Writes damaged segments of a topic anew, without what is lost of them, which it returns. The
    /// files as they were are kept in `damaged/`.
    fn salvage_segments(
        &mut self,
        base: &Base,
        key: TopicKey,
        snap: &mut TopicSnap,
        access: Access,
    ) -> Result<Vec<Gap>> {
        let records = base.options.recovery == RecoveryMode::Repair;
        let floor = snap.delete_below.max(snap.evict_floor);
        let mut lost = Vec::new();
        for meta in &mut snap.segments {
            let Some(damaged) = base.segments.examine(key, meta, records)? else { continue };
            log::error!("topic {:?}: {}; it is written anew", snap.name, damaged.why);
            self.segments.push(problem(&damaged.why));
            if access != Access::Look {
                damaged.keep()?;
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
    fn batch(&mut self, base: &Base, layout: u64, placed: &Placed<'_>) -> Result<()> {
        let oldest = self.oldest_layout.get_or_insert(layout);
        *oldest = layout.min(*oldest);
        let at = Placement::new(layout, placed);
        if let Ok((f, _)) = frame::parse(at.bytes)
            && f.topic_id != 0
        {
            base.time.met(f.ts);
            if self.damaged && holds_record(at.bytes) {
                self.seen.insert(f.topic_id, ReplayPos { layout, lsn: at.lsn });
                return self.noting(base, &at, f.topic_id);
            }
        }
        topic::apply(base, &at, None)
    }

    /// Applies records, and notes the gap that they make.
    fn noting(&mut self, base: &Base, at: &Placement<'_>, topic_id: u64) -> Result<()> {
        let topic = base.registry.by_id(topic_id);
        let before = topic.as_ref().map(|t| t.state.read().indexed_to);
        topic::apply(base, at, None)?;
        if let (Some(topic), Some(before)) = (topic, before)
            && let Some(gap) = topic.state.read().gaps.last().filter(|g| g.to > before)
        {
            self.holes.push((topic.name.to_string(), *gap));
        }
        Ok(())
    }

    /// States what was lost: applies it, and returns it.
    fn lost(&self, base: &Base, opening: &Opening) -> Vec<Lost> {
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
        base.registry.each(|topic| {
            let shard = shard_of(topic.id(), opening.shard_count());
            let mut gaps = Vec::new();
            for loss in &losses {
                if let Some(layout) = last_there(loss, topic.id(), &layouts) {
                    gaps.extend(self.given_up(topic, loss, layout));
                }
            }
            let report = reports.get(&shard);
            let spared = report.is_none_or(|r| r.clean || r.tail_intact);
            for gap in &gaps {
                topic.state.write().add_gap(*gap);
            }
            gaps.extend(self.lost_records.get(&topic.id()).into_iter().flatten());
            if let Some(gap) = topic.lost(spared) {
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
        let head = topic.state.read().indexed_to;
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
