//! Checkpoints, driven from the topics' side: copy, sync, install, capture, snapshot.

use std::sync::Arc;

use topics_storage::StorageError;
use topics_storage::format::frame::{self, FRAME_TRAILER};
use topics_storage::segment::{Round, SegmentMeta, SegmentWriter};
use topics_storage::snapshot::{ShardSnap, SnapshotBody};

use crate::core::Core;
use crate::error::{Error, Result};
use crate::maintain;
use crate::topic::{CopyPlan, CopyRun, Install, InstallSegment, Topic};

/// One round.
pub(crate) fn checkpoint(core: &Arc<Core>) -> Result<()> {
    let _one = core.disk.round.lock();
    let synced: Vec<u64> =
        (0..core.wal.shards()).map(|s| core.wal.positions(s).synced).collect();
    let mut round = Round::new(&core.segments);
    let mut installs: Vec<(Arc<Topic>, Install)> = Vec::new();
    let mut failed = Ok(());
    core.registry.each(|t| {
        if failed.is_err() || !t.dirty() {
            return;
        }
        let shard = core.shard(t.id());
        let plan = t.checkpoint_plan(shard as u32, synced.get(shard).copied().unwrap_or(0));
        if plan.is_empty() {
            return;
        }
        match copy(core, &mut round, plan) {
            Ok(done) => installs.push((t.clone(), done)),
            Err(e) => failed = Err(e),
        }
    });
    failed?;
    round.sync()?;
    for (t, done) in &installs {
        t.install(core, done)?;
    }
    snapshot(core)
}

/// Copies what a plan says.
fn copy(core: &Core, round: &mut Round, plan: CopyPlan) -> Result<Install> {
    let mut done = Install { plan, segments: Vec::new(), deletes: Vec::new() };
    let plan = &done.plan;
    let mut active = plan.active;
    let mut writer: Option<SegmentWriter> = None;
    let mut finished: Vec<SegmentMeta> = Vec::new();
    for (meta, dead) in &plan.deletes {
        let segment = core.segments.segment(plan.key, *meta);
        if active.is_some_and(|a| a.file_no == meta.file_no) {
            // Its `.del` goes with the files that the writer leaves.
            let w = reopen(core, plan, &mut active, &mut writer)?;
            let no = round.write_del_of(w, dead)?;
            done.deletes.push((meta.file_no, no));
        } else {
            done.deletes.push((meta.file_no, round.write_del(&segment, dead)?));
        }
    }
    for run in &plan.runs {
        copy_run(core, round, plan, run, &mut active, &mut writer, &mut finished)?;
    }
    if let Some(w) = writer {
        finished.push(round.add(w)?);
    }
    done.segments = finished.into_iter().map(|meta| InstallSegment { meta }).collect();
    Ok(done)
}

fn reopen<'a>(
    core: &Core,
    plan: &CopyPlan,
    active: &mut Option<SegmentMeta>,
    writer: &'a mut Option<SegmentWriter>,
) -> Result<&'a mut SegmentWriter> {
    if writer.is_none() {
        let meta = active.take().ok_or_else(|| Error::Internal("no active segment".into()))?;
        *writer = Some(SegmentWriter::reopen(&core.segments, plan.key, &meta)?);
    }
    writer.as_mut().ok_or_else(|| Error::Internal("no segment writer".into()))
}

#[allow(clippy::too_many_arguments)]
fn copy_run(
    core: &Core,
    round: &mut Round,
    plan: &CopyPlan,
    run: &CopyRun,
    active: &mut Option<SegmentMeta>,
    writer: &mut Option<SegmentWriter>,
    finished: &mut Vec<SegmentMeta>,
) -> Result<()> {
    let shard = run.shard as usize;
    let salt = core
        .wal
        .file(shard, run.file)
        .ok_or_else(|| Error::Internal("a log file went before its records".into()))?
        .header
        .salt;
    let mut buf = Vec::new();
    for (seq, e) in (run.first..).zip(&run.entries) {
        if writer.is_none() && active.is_some() {
            reopen(core, plan, active, writer)?;
        }
        if writer.as_ref().is_some_and(|w| w.next_seq() != seq || w.should_seal())
            && let Some(mut w) = writer.take()
        {
            w.seal()?;
            finished.push(round.add(w)?);
        }
        if writer.is_none() {
            *writer = Some(SegmentWriter::create(&core.segments, plan.key, seq)?);
        }
        let Some(w) = writer.as_mut() else { continue };
        if e.dead() {
            w.hole()?;
            continue;
        }
        buf.clear();
        core.wal.read(shard, run.file, e.off, e.len as usize, &mut buf)?;
        let lsn = run.lsn + u64::from(e.lsn);
        let (f, len) = frame::verify(&buf, salt, lsn).map_err(|err| StorageError::Corrupt {
            file: format!("shard {shard}"),
            offset: u64::from(e.off),
            detail: format!("record {seq}: {err}"),
        })?;
        debug_assert!(len > FRAME_TRAILER);
        w.append(&f, frame::inner_hash(&buf[..len]))?;
    }
    Ok(())
}

/// Captures every topic and writes the snapshot.
fn snapshot(core: &Arc<Core>) -> Result<()> {
    let disk = &core.disk;
    disk.checkpoints.begin_capture();
    let applied: Vec<u64> =
        (0..core.wal.shards()).map(|s| core.wal.positions(s).applied).collect();
    let mut body = SnapshotBody {
        store_id: disk.store_id,
        generation: disk.generation,
        layout: disk.layout,
        retired: disk.outside.clone(),
        ..SnapshotBody::default()
    };
    core.registry.each(|t| body.topics.push(t.capture(disk.layout)));
    (body.next_topic_id, body.reserved_topic_id) = core.ids.positions();
    (body.next_epoch, body.reserved_epoch) = (body.next_topic_id, body.reserved_topic_id);
    let captured: Vec<u64> =
        (0..core.wal.shards()).map(|s| core.wal.positions(s).written).collect();
    for (shard, applied) in applied.iter().enumerate() {
        let of_topics = body
            .topics
            .iter()
            .filter(|t| core.shard(t.topic_id) == shard)
            .filter(|t| core.registry.by_id(t.topic_id).is_some_and(|x| x.dirty()))
            .map(|t| t.replay.lsn);
        let replay_lsn = of_topics.chain([*applied]).min().unwrap_or(*applied);
        body.shards.push(ShardSnap {
            shard: shard as u32,
            layout: disk.layout,
            replay_lsn,
            last_lsn: captured[shard],
            synced_lsn: captured[shard],
        });
    }
    let wait = || {
        for (shard, lsn) in captured.iter().enumerate() {
            while core.wal.positions(shard).synced < *lsn {
                core.wal.sync(shard)?;
            }
        }
        Ok(())
    };
    disk.checkpoints.write(&body, wait)?;
    disk.checkpoints.trim(&core.wal)?;
    Ok(())
}

/// Closes an engine.
pub(crate) fn close(core: &Arc<Core>) -> Result<()> {
    if !core.begin_close() {
        return Ok(());
    }
    let outcome = close_clean(core);
    core.registry.each(|t| t.gate.release());
    core.wal.close(outcome.is_ok())?;
    outcome
}

fn close_clean(core: &Arc<Core>) -> Result<()> {
    maintain::lower_all(core)?;
    for shard in 0..core.wal.shards() {
        core.wal.sync(shard)?;
    }
    // Two: then the older kept one needs no log either.
    checkpoint(core)?;
    checkpoint(core)
}

