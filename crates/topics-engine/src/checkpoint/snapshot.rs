//! The snapshot of a round: the state of every topic at the positions that it reflects.

use std::sync::Arc;

use topics_storage::StorageError;
use topics_storage::format::record::{Body, CheckpointMark, Group};
use topics_storage::snapshot::{ShardSnap, SnapshotBody, SnapshotBuilder};
use topics_storage::wal::{AllocationPause, Batch, Commit, Level, PlacedBatch};

use super::Store;
use crate::catalog::unloaded::CatalogEntry;
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::types::error::{Error, Result};

/// The shards whose log has failed, and the newest snapshot. Their state in memory may never have become
/// durable: later snapshots keep their sections of the one before.
#[derive(Debug, Default)]
pub(crate) struct PoisonedShards {
    shards: Vec<usize>,
    before: SnapshotBody,
}

impl PoisonedShards {
    /// Finds them. An error if every shard is poisoned, or if no snapshot has the sections to keep.
    pub(crate) fn find(store: &Store) -> Result<Self> {
        let mut poisoned = Self::default();
        let mut last = None;
        for shard in 0..store.ctx().wal.shards() {
            match store.ctx().wal.poisoned(shard) {
                None => {}
                Some(e @ StorageError::Poisoned { .. }) => {
                    poisoned.shards.push(shard);
                    last = Some(e);
                }
                Some(e) => return Err(e.into()),
            }
        }
        let Some(error) = last else { return Ok(poisoned) };
        if poisoned.shards.len() == store.ctx().wal.shards() {
            return Err(error.into());
        }
        match store.disk.checkpoints.load_newest()? {
            Some(before)
                if before.layout == store.ctx().layout
                    && store.base().host.holds_without(&poisoned.shards, &before.sections) =>
            {
                poisoned.before = before;
            }
            _ => return Err(error.into()),
        }
        Ok(poisoned)
    }

    /// Whether a shard is poisoned: none of it is copied or captured.
    pub(crate) fn has(&self, shard: usize) -> bool {
        self.shards.contains(&shard)
    }

    fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The section of a shard in the snapshot before.
    fn section(&self, shard: usize) -> Option<ShardSnap> {
        self.before.shards.iter().find(|s| s.shard as usize == shard).copied()
    }
}

/// Captures every topic and writes the snapshot. Returns its number and the bytes of its mark in the
/// log.
pub(crate) fn snapshot(
    store: &Arc<Store>,
    poisoned: &PoisonedShards,
    pause: &mut Option<AllocationPause>,
) -> Result<(u64, u64)> {
    let shards = store.ctx().wal.shards();
    let mut body = SnapshotBody {
        store_id: store.disk.store_id,
        generation: store.ctx().generation,
        layout: store.ctx().layout,
        retired: store.disk.outside.clone(),
        shards: vec![ShardSnap::default(); shards],
        ..SnapshotBody::default()
    };
    let mut draft = SnapshotBuilder::begin(&body, store.disk.checkpoints.bytes())?;
    // First the positions, then the states: each state reflects at least its position.
    let mut replay: Vec<u64> = (0..shards).map(|s| store.ctx().wal.positions(s).applied).collect();
    let mut broken = Vec::new();
    store.catalog().every(|found| {
        let topic = match found {
            CatalogEntry::Loaded(topic) => topic,
            CatalogEntry::Unloaded(unloaded) => {
                if !poisoned.has(store.ctx().shard(unloaded.id())) {
                    draft.entry(unloaded.entry());
                }
                return Ok(());
            }
        };
        let shard = store.ctx().shard(topic.id());
        if poisoned.has(shard) {
            return Ok(());
        }
        if topic.is_broken() {
            broken.push(topic.id());
            return Ok(());
        }
        let (snap, outstanding) = topic.capture(store.ctx().layout, store.base().time.mono_ms());
        if let Some(lsn) = outstanding {
            replay[shard] = replay[shard].min(lsn - 1);
        }
        Ok(draft.topic(&snap)?)
    })?;
    let kept =
        poisoned.before.topics.iter().filter(|t| poisoned.has(store.ctx().shard(t.topic_id)));
    kept.into_iter().try_for_each(|t| draft.topic(t))?;
    keep_closed(store, &broken, &mut draft, &mut replay)?;
    body.sections = store.base().host.capture();
    body.sections.push(store.base().time.capture());
    body.sections.extend(store.base().packs.capture());
    let (next, reserved) = store.catalog().ids.positions();
    body.next_topic_id = next.max(poisoned.before.next_topic_id);
    body.reserved_topic_id = reserved.max(poisoned.before.reserved_topic_id);
    (body.next_epoch, body.reserved_epoch) = (body.next_topic_id, body.reserved_topic_id);
    let written: Vec<u64> = (0..shards).map(|s| store.ctx().wal.positions(s).written).collect();
    for (s, replay_lsn) in replay.into_iter().enumerate() {
        let last_lsn = written[s];
        let (shard, layout) = (s as u32, store.ctx().layout);
        let now = ShardSnap { shard, layout, replay_lsn, last_lsn, synced_lsn: last_lsn };
        let section = if poisoned.has(s) { poisoned.section(s) } else { Some(now) };
        let none = || Error::Internal(format!("shard {s} is in no snapshot"));
        body.shards[s] = section.ok_or_else(none)?;
    }
    let encoded = draft.finish(&body)?;
    let wait = || {
        for (s, lsn) in written.iter().enumerate().filter(|(s, _)| !poisoned.has(*s)) {
            let synced = store.ctx().wal.positions(s).synced >= *lsn;
            if !store.base().env.check("checkpoint.synced", synced) {
                store.ctx().wal.sync(s)?;
            }
        }
        Ok(())
    };
    let on_full = || {
        pause.get_or_insert_with(|| store.ctx().wal.pause_allocation());
    };
    let n = store.disk.checkpoints.write(&body, encoded, wait, on_full)?;
    if !poisoned.is_empty() {
        log::warn!(
            "snapshot {n} keeps the sections of the shards {:?} from the one before",
            poisoned.shards
        );
    }
    Ok((n, mark(store.ctx(), n)))
}

/// Keeps the entries of broken topics from the snapshot before, because their memory may differ from the
/// log, and moves the replay positions of their shards back to that snapshot.
fn keep_closed(
    store: &Store,
    ids: &[u64],
    draft: &mut SnapshotBuilder,
    replay: &mut [u64],
) -> Result<()> {
    if ids.is_empty() {
        return Ok(());
    }
    let before = store.disk.checkpoints.load_newest()?;
    for id in ids {
        let shard = store.ctx().shard(*id);
        let Some(before) = &before else {
            // No part of the log has been removed.
            replay[shard] = 0;
            continue;
        };
        let section = before.shards.iter().find(|s| s.shard as usize == shard);
        let Some(section) = section.filter(|s| s.layout == store.ctx().layout) else {
            let detail = format!("no snapshot says how topic id {id} was before it was closed");
            return Err(Error::StorageUnavailable { reason: "io", detail });
        };
        replay[shard] = replay[shard].min(section.replay_lsn);
        if let Some(t) = before.topics.iter().find(|t| t.topic_id == *id) {
            draft.topic(t)?;
        }
    }
    Ok(())
}

/// Logs that a snapshot took effect: `verify` reads this mark, recovery does not need it. Returns its
/// bytes.
fn mark(ctx: &Ctx, snapshot: u64) -> u64 {
    let mut head = Vec::new();
    CheckpointMark { snapshot }.encode_frame(&mut head, 0, 0, 0);
    let batch = Batch::control(head, ctx.base().time.steady(), Level::Written, Arc::new(Mark));
    let bytes = (batch.bytes() + Group::FRAME_LEN) as u64;
    match ctx.stage_control(0, batch, Wait::No) {
        Ok(_) => {
            ctx.wal.drive(0);
            bytes
        }
        Err(e) => {
            log::debug!("snapshot {snapshot} is not marked in the log: {e}");
            0
        }
    }
}

struct Mark;

impl Commit for Mark {
    fn apply(&self, _: &PlacedBatch<'_>) {}
    fn failed(&self, _: &StorageError) {}
}
