//! Opening an engine: what storage kept is applied, what was lost is stated.

use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use topics_env::Env;
use topics_storage::checkpoint::Checkpoints;
use topics_storage::dir::Paths;
use topics_storage::format::record::{Body, Gap as GapBody};
use topics_storage::recovery::{Mode, Opening};
use topics_storage::segment::{SegmentOptions, Segments, TopicKey};
use topics_storage::wal::WalOptions;
use xxhash_rust::xxh3::xxh3_64;

use crate::core::{Base, Core, Disk};
use crate::error::{Error, Result};
use crate::options::{Options, RecoveryMode};
use crate::topic::{self, Placement, Topic};

/// Opens a directory and recovers.
pub(crate) fn open(env: Env, dir: &Path, options: Options) -> Result<Arc<Core>> {
    let paths = Paths::new(dir);
    let mode = match options.recovery {
        RecoveryMode::Strict => Mode::Strict,
        RecoveryMode::Salvage => Mode::Salvage,
    };
    let pid = std::process::id();
    let opening = Opening::begin(env.clone(), paths.clone(), pid, wal_options(&options), mode)
        .map_err(|e| match Error::from(e) {
            Error::Locked { pid, url, .. } => {
                Error::Locked { dir: dir.display().to_string(), pid, url }
            }
            e => e,
        })?;
    let segments = Segments::new(
        env.clone(),
        paths.clone(),
        opening.store().id,
        opening.generation(),
        segment_options(&options),
        None,
    );
    let base = Base::new(env.clone(), dir.to_path_buf(), options, segments.clone());
    restore(&base, &opening)?;
    let mut failed = Ok(());
    opening.replay(|layout, placed| {
        let at = Placement { layout, ..Placement::from(placed) };
        if let Err(e) = topic::apply(&base, &at, None) {
            failed = Err(e);
            return Err(topics_storage::StorageError::Closed);
        }
        Ok(())
    })
    .or_else(|e| std::mem::replace(&mut failed, Ok(())).and(Err(e.into())))?;
    for t in base.registry.settle() {
        log::warn!("topic {:?} (id {}) lost its name to a later one", t.name, t.id());
    }
    let lost = state_losses(&base, &opening);
    let opened = opening.finish(&lost)?;
    base.ids.recovered();
    base.registry.each(|t| t.recovered(&base));
    let checkpoints =
        Checkpoints::new(env, paths, opened.store.id, segments, &opened.snapshots)?;
    let disk = Disk {
        lock: opened.lock,
        checkpoints,
        store_id: opened.store.id,
        generation: opened.generation,
        layout: opened.layout,
        outside: opened.outside,
        round: Mutex::new(()),
    };
    Ok(Core::new(base, opened.wal, disk))
}

fn wal_options(o: &Options) -> WalOptions {
    WalOptions {
        shards: o.shards(),
        file_initial: o.wal_file_min,
        file_max: o.largest_wal_file(),
        staging_bytes: o.staging_bytes,
        tail_cache_bytes: o.tail_cache_bytes / o.shards() as usize,
        sync_interval: o.sync_interval,
        background: o.background,
        ..WalOptions::default()
    }
}

fn segment_options(o: &Options) -> SegmentOptions {
    SegmentOptions {
        max_events: o.segment_max_events,
        max_bytes: o.segment_max_bytes,
        ..SegmentOptions::default()
    }
}

/// Makes the topics of the newest snapshot.
fn restore(base: &Base, opening: &Opening) -> Result<()> {
    let Some(body) = opening.snapshot() else { return Ok(()) };
    base.ids.found(body.next_topic_id, body.reserved_topic_id);
    for snap in &body.topics {
        let key = TopicKey { topic_id: snap.topic_id, epoch: snap.epoch };
        base.segments.check_named(key, &snap.segments, true)?;
        base.registry.adopt(Topic::from_snapshot(base, snap)?);
    }
    Ok(())
}

/// States what each topic lost: as a gap of the topic, and as a frame for its shard.
fn state_losses(base: &Base, opening: &Opening) -> Vec<(u32, Vec<u8>)> {
    let reports = opening.reports();
    let mut frames = Vec::new();
    base.registry.each(|t| {
        let shard = xxh3_64(&t.id().to_le_bytes()) % u64::from(opening.shard_count());
        let report = reports.iter().find(|r| u64::from(r.shard) == shard);
        let Some(gap) = t.lost(report.is_some_and(|r| r.same_boot)) else { return };
        t.state.write().add_gap(gap);
        let mut frame = Vec::new();
        GapBody { from: gap.from, to: gap.to, reason: gap.reason.code() }
            .encode_frame(&mut frame, t.id(), 0, 0);
        frames.push((shard as u32, frame));
    });
    frames
}
