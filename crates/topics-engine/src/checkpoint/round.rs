//! A checkpoint round: copy → sync → install → capture → wait → snapshot → trim.
//!
//! `topics-storage` knows how files become durable and which are needed; this is the order.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::dir::Paths;
use topics_storage::format::frame::{self, FrameError};
use topics_storage::segment::{Round, SegmentWriter};
use topics_storage::wal::AllocationPause;

use super::Store;
use super::full_disk;
use super::snapshot::{PoisonedShards, snapshot};
use crate::topic::events::Base;
use crate::topic::{CopyPlan, CopyRun, Install, InstallSegment, Topic};
use crate::types::api::{Gap, GapReason};
use crate::types::error::{Error, Result};

/// The state that rounds share.
#[derive(Debug, Default)]
pub(crate) struct CheckpointState {
    /// Consecutive rounds that failed.
    failed: u32,
}

/// Consecutive rounds that may fail before checkpoints stop until the next open.
const MAX_FAILED: u32 = 2;
/// Maximum bytes of one read of the log.
const READ: usize = 256 << 10;
/// Maximum bytes of other topics between two records that one read covers.
const SKIP: u32 = 4 << 10;

/// Runs one round; returns the number of its snapshot.
pub(crate) fn checkpoint(store: &Arc<Store>) -> Result<u64> {
    run(&mut store.disk.round.lock(), store, false)
}

/// Runs a round, unless one that another thread ran meanwhile has made memory free.
pub(crate) fn free_memory(store: &Arc<Store>) -> Result<()> {
    let mut rounds = store.disk.round.lock();
    match store.is_memory_full() {
        true => run(&mut rounds, store, false).map(drop),
        false => Ok(()),
    }
}

/// Runs the round that ends a change of the shard count: before the first write it copies the records
/// of every shard from the files of the layout before.
pub(crate) fn checkpoint_everything(store: &Arc<Store>) -> Result<u64> {
    run(&mut store.disk.round.lock(), store, true)
}

/// Runs a round and wakes the writes that wait for it.
fn run(rounds: &mut CheckpointState, store: &Arc<Store>, everything: bool) -> Result<u64> {
    let outcome = run_round(rounds, store, everything);
    store.memory.lower_priority();
    if outcome.is_err() {
        store.memory.round_failed();
    }
    store.round_ended();
    outcome
}

fn run_round(rounds: &mut CheckpointState, store: &Arc<Store>, everything: bool) -> Result<u64> {
    if rounds.failed >= MAX_FAILED {
        return Err(Error::StorageUnavailable {
            reason: "io",
            detail: "checkpoints have failed repeatedly and stopped until the next open".into(),
        });
    }
    store.ctx().check_lock()?;
    if !store.ctx().wal.has_begun() {
        // The first log file takes the space that is left. Nothing has changed since the open.
        return Err(store.ctx().wal.not_begun().into());
    }
    let logged = store.ctx().wal.counters().bytes;
    let changed = store.replaced.load(Ordering::Relaxed)
        || logged != store.disk.logged_at_round.load(Ordering::Relaxed);
    // The log may not take what the round releases of the reserve, until the reserve is whole again.
    let mut pause = None;
    let owed = store.base().owed_rounds.swap(0, Ordering::Relaxed);
    let written = write(store, everything, &mut pause);
    match &written {
        Ok((_, mark, moved)) => {
            store.base().metrics.checkpoints.add(1);
            rounds.failed = 0;
            store.disk.logged_at_round.store(logged + mark, Ordering::Relaxed);
            let settled = &store.disk.settled_rounds;
            let before = if changed || *moved { 0 } else { settled.load(Ordering::Relaxed) };
            settled.store(before.saturating_add(1), Ordering::Relaxed);
        }
        // A shortage of space or descriptors, and a log that failed meanwhile, are no reason to stop
        // checkpoints.
        Err(e) if e.is_shortage() || poisoned(e) => {}
        Err(_) => rounds.failed += 1,
    }
    let still = owed.saturating_sub(u64::from(written.is_ok()));
    store.base().owed_rounds.fetch_max(still, Ordering::Relaxed);
    store.base().metrics.checkpoint_failures.add(u64::from(written.is_err()));
    let trimmed = written.and_then(|(n, ..)| {
        store.disk.checkpoints.trim(&store.ctx().wal)?;
        Ok(n)
    });
    let put_off = trimmed.as_ref().is_err_and(Error::is_out_of_descriptors);
    store.disk.put_off.store(put_off, Ordering::Relaxed);
    if trimmed.is_err() && pause.is_some() {
        store.disk.checkpoints.refill(&store.ctx().wal);
    }
    trimmed
}

fn poisoned(e: &Error) -> bool {
    matches!(e, Error::StorageUnavailable { reason: "poisoned", .. })
}

/// Copies, then writes the snapshot. Returns its number, the bytes of its mark, and whether records
/// were moved on a full disk.
fn write(
    store: &Arc<Store>,
    everything: bool,
    pause: &mut Option<AllocationPause>,
) -> Result<(u64, u64, bool)> {
    let poisoned = PoisonedShards::find(store)?;
    let mut moved = false;
    if everything {
        copy(store, &poisoned, Copied::Everything).map_err(|(e, _)| e)?;
    } else {
        moved = full_disk::copy_what_fits(store, &poisoned, pause)?;
    }
    store.replaced.store(false, Ordering::Relaxed);
    let (n, mark) = snapshot(store, &poisoned, pause)?;
    Ok((n, mark, moved))
}

/// The records that a round copies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Copied<'a> {
    /// All records, of every layout, and deletes.
    Everything,
    /// Synced records and deletes.
    Synced,
    /// Deletes only.
    Deletes,
    /// Synced records up to these lsns; no deletes.
    Upto(&'a [u64]),
}

/// Copies records, makes the copies durable, points the topics to them. An error comes with the bytes of
/// deletes that were to be written.
pub(crate) fn copy(
    store: &Arc<Store>,
    poisoned: &PoisonedShards,
    what: Copied<'_>,
) -> std::result::Result<(), (Error, u64)> {
    let everything = what == Copied::Everything;
    let synced: Vec<u64> = (0..store.ctx().wal.shards())
        .map(|s| match what {
            Copied::Everything => u64::MAX,
            Copied::Upto(lsns) => store.ctx().wal.positions(s).synced.min(lsns[s]),
            _ => store.ctx().wal.positions(s).synced,
        })
        .collect();
    let mut part = CopyPart::new(store.base());
    let (mut failed, mut bytes) = (None, 0);
    let old = match store.base().options.segment_max_age.as_millis() as u64 {
        _ if matches!(what, Copied::Upto(_)) => 0,
        0 => 0,
        age => store.base().time.steady().saturating_sub(age),
    };
    store.catalog().table.loaded.each(|topic| {
        let shard = store.ctx().shard(topic.id());
        // The memory of a broken topic may be wrong: it is written to no file.
        let over = failed.is_some() && what != Copied::Deletes || topic.is_broken();
        let ends = matches!(what, Copied::Upto(_)) && topic.state.read().active_is_worth();
        let old = if ends { u64::MAX } else { old };
        if over || poisoned.has(shard) || !topic.dirty(old) {
            return;
        }
        let from = (!everything).then_some(shard as u32);
        let mut plan = topic.checkpoint_plan(from, synced[shard], old);
        match what {
            Copied::Everything | Copied::Synced => {}
            Copied::Deletes => {
                plan.only_deletes();
                bytes += plan.delete_bytes();
            }
            Copied::Upto(_) => plan.deletes.clear(),
        }
        if plan.is_empty() || failed.is_some() {
            return;
        }
        let copy = || copy_topic(store, topic, plan, &mut part.round);
        let copied = store.base().guarded("copy", topic, copy).and_then(|install| {
            part.done.push((topic.clone(), install));
            match part.done.len() < PART {
                true => Ok(()),
                false => std::mem::replace(&mut part, CopyPart::new(store.base())).end(store),
            }
        });
        failed = copied.err();
    });
    let ended = match failed {
        Some(e) => {
            if e.is_shortage() {
                part.round.refused();
            }
            Err(e)
        }
        None => part.end(store),
    };
    ended.map_err(|e| (e, bytes))
}

/// Maximum number of topics that are copied and made durable together. The bookkeeping of a copy takes
/// more memory than the topic itself.
const PART: usize = 16_384;

/// Some of the topics that a checkpoint copies.
struct CopyPart {
    round: Round,
    done: Vec<(Arc<Topic>, Install)>,
}

impl CopyPart {
    fn new(base: &Base) -> Self {
        Self { round: Round::new(&base.segments), done: Vec::new() }
    }

    /// Makes the copies durable and points the topics to them.
    fn end(self, store: &Store) -> Result<()> {
        self.round.sync()?;
        let installed = self.done.iter().try_for_each(|(topic, install)| {
            store.base().guarded("install", topic, || topic.install(store.ctx(), install))
        });
        store.memory_freed();
        installed
    }
}

fn copy_topic(
    store: &Arc<Store>,
    topic: &Arc<Topic>,
    plan: CopyPlan,
    round: &mut Round,
) -> Result<Install> {
    let mut install = Install { segments: Vec::new(), deletes: Vec::new(), plan };
    for (meta, dead) in &install.plan.deletes {
        let segment = store.base().segments.segment(topic.key, *meta);
        install.deletes.push((meta.file_no, round.write_del(&segment, dead)?));
    }
    let (segments, lost, buf) = (Vec::new(), Vec::new(), Vec::new());
    let mut copier = Copier { store, topic, round, writer: None, segments, lost, buf };
    let goes_on = !install.plan.runs.is_empty() || install.plan.seal;
    if let Some(active) = install.plan.active.filter(|_| goes_on) {
        copier.writer = Some(SegmentWriter::reopen(&store.base().segments, topic.key, &active)?);
    }
    if install.plan.seal {
        copier.end(true)?;
    }
    for run in &install.plan.runs {
        store.memory.raise_priority();
        copier.run(run)?;
    }
    let (segments, lost) = copier.finish()?;
    install.segments = segments;
    for seq in lost {
        // Before the install, which takes it for a record that was deleted after the copy.
        topic.damaged(store.base(), Gap { from: seq, to: seq, reason: GapReason::Corrupt });
        store.base().metrics.corrupt_records.add(1);
    }
    Ok(install)
}

struct Copier<'a> {
    store: &'a Store,
    topic: &'a Topic,
    round: &'a mut Round,
    writer: Option<SegmentWriter>,
    segments: Vec<InstallSegment>,
    lost: Vec<u64>,
    /// Bytes read from the log.
    buf: Vec<u8>,
}

impl Copier<'_> {
    fn run(&mut self, run: &CopyRun) -> Result<()> {
        let store = self.store;
        let mut buf = std::mem::take(&mut self.buf);
        let mut i = 0;
        while i < run.count {
            let n = adjacent(run, i);
            let (first, last) = (&run.entries[i], &run.entries[i + n - 1]);
            let len = (last.off + last.len - first.off) as usize;
            buf.clear();
            store.ctx().wal.read(run.shard as usize, run.file, first.off, len, &mut buf)?;
            let file = store.ctx().wal.file(run.shard as usize, run.file);
            let salt = file.map_or(0, |f| f.header.salt);
            for (k, entry) in run.entries.range(i..i + n).enumerate() {
                let seq = run.first + (i + k) as u64;
                let writer = self.writer_at(seq)?;
                if entry.dead() {
                    writer.hole_at(entry.ts)?;
                } else {
                    let at = (entry.off - first.off) as usize;
                    let lsn = run.lsn + u64::from(entry.lsn);
                    let bytes = &buf[at..at + entry.len as usize];
                    match verified(store.base(), bytes, salt, lsn, seq) {
                        Ok((f, inner)) => writer.append(&f, inner)?,
                        Err(why) => {
                            writer.hole_at(entry.ts)?;
                            self.damaged(run, entry.off, seq, why, bytes);
                        }
                    }
                }
                self.seal_if_full()?;
            }
            i += n;
        }
        self.buf = buf;
        Ok(())
    }

    /// The writer for the next seq; seals the segment if the seq does not follow its last one.
    fn writer_at(&mut self, seq: u64) -> Result<&mut SegmentWriter> {
        if self.writer.as_ref().is_some_and(|w| w.next_seq() != seq) {
            self.end(true)?;
        }
        if self.writer.is_none() {
            self.writer =
                Some(SegmentWriter::create(&self.store.base().segments, self.topic.key, seq)?);
        }
        self.writer.as_mut().ok_or_else(|| Error::Internal("no segment writer".into()))
    }

    fn seal_if_full(&mut self) -> Result<()> {
        if self.writer.as_ref().is_some_and(SegmentWriter::should_seal) {
            self.end(true)?;
        }
        Ok(())
    }

    fn end(&mut self, seal: bool) -> Result<()> {
        if let Some(mut writer) = self.writer.take() {
            if seal {
                writer.seal()?;
            }
            let meta = self.round.add(writer)?;
            self.segments.push(InstallSegment { meta });
        }
        Ok(())
    }

    fn finish(mut self) -> Result<(Vec<InstallSegment>, Vec<u64>)> {
        self.end(false)?;
        Ok((self.segments, self.lost))
    }

    /// Records a damaged frame, which is never copied, and quarantines its bytes.
    fn damaged(&mut self, run: &CopyRun, off: u32, seq: u64, why: FrameError, bytes: &[u8]) {
        log::error!(
            "topic {:?}: the record {seq} is damaged in the log (shard {}, offset {off}): {why}",
            self.topic.name,
            run.shard
        );
        self.lost.push(seq);
        let name = format!("topic-{}.seq-{seq}.frame", self.topic.id());
        if let Err(e) = quarantine(self.store.base(), &name, bytes) {
            log::warn!("its bytes are not kept: {e}");
        }
    }
}

fn quarantine(base: &Base, name: &str, bytes: &[u8]) -> topics_storage::Result<()> {
    topics_storage::dir::quarantine(&base.env, &Paths::new(&base.dir), name, bytes)
}

fn verified<'a>(
    base: &Base,
    bytes: &'a [u8],
    salt: u64,
    lsn: u64,
    seq: u64,
) -> std::result::Result<(frame::Frame<'a>, u64), FrameError> {
    match frame::verify_inner(bytes, salt, lsn) {
        Ok((f, _, inner)) if f.seq == seq => Ok((f, inner)),
        Ok(_) => Err(FrameError::Layout),
        Err(why) if base.env.check("checkpoint.frame", false) => {
            let (f, _) = frame::parse(bytes).map_err(|_| why)?;
            Ok((f, frame::inner_hash(bytes)))
        }
        Err(why) => Err(why),
    }
}

/// How many entries from `i` on are near enough for one read.
fn adjacent(run: &CopyRun, i: usize) -> usize {
    let first = &run.entries[i];
    let mut end = first.off + first.len;
    let mut n = 1;
    for e in run.entries.range(i + 1..run.count) {
        let near = e.off >= end && e.off - end <= SKIP;
        if !near || (e.off + e.len - first.off) as usize > READ {
            break;
        }
        end = e.off + e.len;
        n += 1;
    }
    n
}
