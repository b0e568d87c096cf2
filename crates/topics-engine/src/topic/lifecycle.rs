//! The creation, update and deletion of a topic in the log.

use std::sync::Arc;

use topics_storage::format::record::{
    Body, ConfigUpdate, EvictWatermark, HeadWatermark, TopicCreate, TopicDelete,
};
use topics_storage::wal::{Level, Ticket};

use super::exclusive::ExclusiveGuard;
use super::load::{self, Hints};
use super::retention::{self, Caps};
use super::state::{Evicted, State};
use super::write::admit::Admission;
use super::write::append_state::{AppendState, apply_level};
use super::write::pending_batch::{Frames, Order, PendingBatch, Undo};
use super::write::pending_writes::PendingWrites;
use super::write::reserve::Reserve;
use super::{Life, Topic};
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::types::api::Durability;
use crate::types::config::{ConfigPatch, Discard, TopicConfig};
use crate::types::error::{Error, Result};

impl Topic {
    /// Marks a topic dead that was deleted or whose creation failed: removes it from the catalog, frees
    /// its records and wakes its waiters.
    pub(crate) fn retire(&self, base: &Base) {
        self.set_life(Life::Dead);
        base.host.deleted(self);
        base.change(self, State::empty);
        base.losses.lock().remove(&self.id());
        self.gate.release();
    }

    /// Stages control frames. The ticket is of their batch.
    fn log(
        self: &Arc<Self>,
        ctx: &Arc<Ctx>,
        a: &mut Admission<'_>,
        frames: Frames,
        staging: Staging,
    ) -> Result<Ticket> {
        let mut pending = PendingBatch::plain(ctx, self, staging.hints, staging.undo);
        pending.creation = staging.creation;
        let ts = a.last_ts.max(ctx.base().time.steady());
        let order = Order { ts, level: staging.level, frees_space: staging.frees_space };
        Ok(a.stage(pending, frames, order)?.0)
    }
}

struct Staging {
    hints: Hints,
    undo: Undo,
    creation: bool,
    level: Level,
    frees_space: bool,
}

impl Staging {
    fn new(level: Level, frees_space: bool) -> Self {
        let (hints, undo) = (Hints::default(), Undo::None);
        Self { hints, undo, creation: false, level, frees_space }
    }
}

/// Admits a few control frames of a topic that the caller has exclusively.
fn admit<'t>(ctx: &Ctx, topic: &'t Topic, exclusive: &ExclusiveGuard) -> Result<Admission<'t>> {
    topic.admit_exclusive(ctx, 2048, Wait::Bounded, exclusive)
}

/// Logs the creation of a topic that the caller has exclusively.
pub(crate) fn log_creation(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    config: TopicConfig,
    exclusive: &ExclusiveGuard,
) -> Result<()> {
    let class = config.durability;
    let staged = admit(ctx, topic, exclusive).and_then(|mut a| {
        let staging = Staging { creation: true, ..Staging::new(apply_level(class), false) };
        let reserve = Reserve::first(class, 1, ctx.base().time.mono_ms());
        let mut frames = Frames::default();
        TopicCreate {
            name: topic.name.to_string(),
            epoch: topic.key.epoch,
            config: config.encode(),
            reserved_to: reserve.to,
        }
        .encode_frame(&mut frames.head, topic.id(), 0, 0);
        let ticket = topic.log(ctx, &mut a, frames, staging)?;
        a.config = ctx.base().config(config);
        a.logged = true;
        a.reserve = reserve;
        a.synced_to = reserve.to;
        Ok(ticket)
    });
    match staged {
        Ok(ticket) => ctx.wait(ticket, apply_level(class)),
        Err(e) => {
            topic.append.lock().closed = true;
            topic.retire(ctx.base());
            Err(e)
        }
    }
}

/// Updates the named fields; the caller has the topic exclusively.
pub(crate) fn update(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    patch: &ConfigPatch,
    exclusive: &ExclusiveGuard,
) -> Result<TopicConfig> {
    let old = topic.append.lock().config.clone();
    if let Some(kind) = patch.kind.filter(|k| *k != old.kind) {
        return Err(Error::TopicExistsIncompatible {
            topic: topic.name.to_string(),
            field: "type",
            actual: old.kind.as_str().into(),
            wanted: kind.as_str().into(),
        });
    }
    let mut new = (*old).clone();
    new.merge(patch);
    if new == *old {
        return Ok(new);
    }
    // I11: an expired record stays expired, whatever the new time to live is.
    retention::log_expired(ctx, topic, Some(exclusive), u64::MAX)?;
    let (from, to) = (old.durability, new.durability);
    if from == Durability::Fsync && to != Durability::Fsync {
        reserve_first(ctx, topic, exclusive)?;
    }
    let hints = fit(ctx.base(), topic, &new)?;
    // A topic that enters class `fsync` must have every earlier record durable. Leaving the class must
    // be durable, because recovery assumes that an `fsync` topic has lost nothing (I2).
    let level = match Durability::Fsync {
        fsync if from == fsync || to == fsync => Level::Synced,
        _ => Level::Written,
    };
    let mut staging = Staging::new(level, true);
    let mut frames = Frames::default();
    topic.state.read().range.encode_floor(&mut frames.head, topic.id());
    ConfigUpdate { config: new.encode() }.encode_frame(&mut frames.head, topic.id(), 0, 0);
    if let Some((floor, hints)) = hints {
        let reason = Evicted::CAP.code();
        EvictWatermark { evict_floor: floor, reason }.encode_frame(
            &mut frames.head,
            topic.id(),
            0,
            0,
        );
        staging.hints = hints;
    }
    let ticket = {
        let mut a = admit(ctx, topic, exclusive)?;
        if to == Durability::Fsync && from != to {
            HeadWatermark { reserved_to: a.head(), lowered: true }.encode_frame(
                &mut frames.head,
                topic.id(),
                0,
                0,
            );
        }
        topic.log(ctx, &mut a, frames, staging)?
    };
    ctx.wait(ticket, level)?;
    let mut a = topic.append.lock();
    a.config = Arc::new(new.clone());
    change_class(&mut a, from, to);
    Ok(new)
}

/// Adapts the reservation to a logged change of class.
fn change_class(a: &mut AppendState, from: Durability, to: Durability) {
    if to == Durability::Fsync && from != to {
        a.reserve = Reserve::default();
        a.synced_to = 0;
    }
    if to == Durability::Ephemeral {
        // Records that stay in memory from now on do not raise the synced position.
        a.synced_to = a.synced_to.min(a.reserve.to);
    }
}

/// Reserves seqs durably for a topic that leaves class `fsync`, before one is assigned.
fn reserve_first(ctx: &Arc<Ctx>, topic: &Arc<Topic>, exclusive: &ExclusiveGuard) -> Result<()> {
    let staging = Staging::new(Level::Synced, false);
    let (ticket, reserve) = {
        let mut a = admit(ctx, topic, exclusive)?;
        let now = ctx.base().time.mono_ms();
        let reserve = Reserve::found(a.head() + super::write::reserve::MIN, a.head(), now);
        let mut frames = Frames::default();
        HeadWatermark { reserved_to: reserve.to, lowered: false }.encode_frame(
            &mut frames.head,
            topic.id(),
            0,
            0,
        );
        (topic.log(ctx, &mut a, frames, staging)?, reserve)
    };
    ctx.wait(ticket, Level::Synced)?;
    topic.append.lock().reserve = reserve;
    let mut state = topic.state.write();
    state.reservation.synced = state.reservation.synced.max(reserve.to);
    drop(state);
    topic.append.lock().synced_to = reserve.to;
    Ok(())
}

/// The floor that new caps require for the stored records, with the hints that apply needs. A topic
/// that rejects writes at a cap evicts nothing: it refuses writes until records are deleted.
fn fit(base: &Base, topic: &Topic, config: &TopicConfig) -> Result<Option<(u64, Hints)>> {
    if config.discard == Discard::Reject {
        return Ok(None);
    }
    let caps = Caps::of(config);
    loop {
        let found = {
            let state = topic.state.read();
            let mut none = PendingWrites::default();
            let projected_usage = none.projected_usage(&state);
            let eviction = retention::evict_to_fit(&state, &none, projected_usage, (0, &[]), &caps);
            let windows = state.retention.windows.clone();
            eviction.map(|e| e.map(|e| (e.floor, Hints { windows, ..Hints::default() })))
        };
        match found {
            Ok(found) => return Ok(found),
            Err(need) => load::provide(base, topic, &need)?,
        }
    }
}

/// Logs the deletion of a topic that the caller has exclusively.
pub(crate) fn log_deletion(
    ctx: &Arc<Ctx>,
    topic: &Arc<Topic>,
    exclusive: &ExclusiveGuard,
) -> Result<()> {
    let level = apply_level(topic.append.lock().config.durability);
    let staging = Staging::new(level, true);
    let ticket = {
        let mut a = admit(ctx, topic, exclusive)?;
        let mut frames = Frames::default();
        TopicDelete { epoch: topic.key.epoch }.encode_frame(&mut frames.head, topic.id(), 0, 0);
        topic.log(ctx, &mut a, frames, staging)?
    };
    ctx.wait(ticket, level)?;
    topic.append.lock().closed = true;
    Ok(())
}

/// Deletes, durably, a topic whose name a later topic has. Its own deletion was lost; without this
/// one, a deletion of the later topic would make the earlier one reappear.
pub(crate) fn delete_superseded(ctx: &Arc<Ctx>, topic: &Arc<Topic>) {
    let (name, id) = (&topic.name, topic.id());
    log::warn!("topic {name:?} (id {id}) is another now: its records are gone");
    let deleted = topic.admit(ctx, 2048, Wait::Bounded).and_then(|mut a| {
        let staging = Staging::new(Level::Synced, true);
        let mut frames = Frames::default();
        TopicDelete { epoch: topic.key.epoch }.encode_frame(&mut frames.head, id, 0, 0);
        let ticket = topic.log(ctx, &mut a, frames, staging)?;
        drop(a);
        ctx.wait(ticket, Level::Synced)
    });
    if let Err(e) = deleted {
        log::error!("topic {name:?} (id {id}) is gone until the next open only: {e}");
        topic.retire(ctx.base());
    }
}

/// Lowers the reservation of a topic to its head, if it is above the head and nothing was reserved for
/// `idle_ms`, and logs the topic's losses with it. At a close (`idle_ms` 0) losses alone suffice. Returns
/// whether it logged something.
pub(crate) fn lower(ctx: &Arc<Ctx>, topic: &Arc<Topic>, idle_ms: u64) -> Result<bool> {
    let closes = idle_ms == 0;
    let due = |a: &AppendState| {
        let idle = a.reserve.idle(a.head(), ctx.base().time.mono_ms(), idle_ms);
        !a.is_exclusive && !a.closed && (idle || closes && !a.unlogged.is_empty())
    };
    // The head of a broken topic in memory may be too low.
    if topic.life() != Life::Live || topic.check_sound().is_err() || !due(&topic.append.lock()) {
        return Ok(false);
    }
    // At a close the frames may use reserved space: no write comes after them.
    log_end(ctx, topic, true, Staging::new(Level::Written, closes))
}

/// Makes the losses of some topics durable, for a sync, and reports acked records that were lost: each topic
/// once, and one topic in each error, so that a caller who repeats the sync learns of all.
pub(crate) fn report_losses(
    ctx: &Arc<Ctx>,
    find: impl Fn(u64) -> Option<Arc<Topic>>,
    ids: &[u64],
) -> Result<()> {
    for id in ids {
        match find(*id).filter(|t| t.life() == Life::Live && !t.is_broken()) {
            Some(topic) => take_lost(ctx, &topic)?,
            // It was deleted, or it is closed until the next open, and each call on it fails.
            None => {
                ctx.base().losses.lock().remove(id);
            }
        }
    }
    Ok(())
}

/// Logs the losses of a topic and makes them durable. Fails if acked records are among them.
fn take_lost(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<()> {
    if !topic.append.lock().unlogged.is_empty() {
        log_losses(ctx, topic)?;
    }
    // Also if another batch has logged them: its sync may not have begun.
    ctx.wal.sync(ctx.shard(topic.id()))?;
    let mut a = topic.append.lock();
    // The next sync logs what was lost meanwhile. It is reported with the rest: a sync during which more
    // is lost must not succeed.
    if a.unlogged.is_empty() {
        ctx.base().losses.lock().remove(&topic.id());
    }
    a.lost_acks.take().map_or(Ok(()), |lost| Err(lost.error(topic)))
}

/// Logs the lost ranges and the floor of a topic that readers have seen and the log lacks.
fn log_losses(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<()> {
    log_end(ctx, topic, false, Staging::new(Level::Written, false)).map(drop)
}

/// Logs the losses of a topic, and a lowered reservation if `lowers`.
fn log_end(ctx: &Arc<Ctx>, topic: &Arc<Topic>, lowers: bool, staging: Staging) -> Result<bool> {
    let exclusive = topic.exclusive(ctx)?;
    let ticket = {
        let mut a = admit(ctx, topic, &exclusive)?;
        let head = a.head();
        let lowers = lowers && a.reserve.to > head;
        if a.closed || !lowers && a.unlogged.is_empty() {
            return Ok(false);
        }
        let mut frames = Frames::default();
        let unlogged = std::mem::take(&mut a.unlogged);
        unlogged.encode(topic, &mut frames.head);
        if lowers {
            HeadWatermark { reserved_to: head, lowered: true }.encode_frame(
                &mut frames.head,
                topic.id(),
                0,
                0,
            );
        }
        let undo = Undo::Unlogged(unlogged.gaps.clone());
        let staged = topic.log(ctx, &mut a, frames, Staging { undo, ..staging });
        if staged.is_err() {
            a.unlogged = unlogged;
        }
        let ticket = staged?;
        if lowers {
            // From here on a write needs a new reservation, even if this frame fails.
            a.reserve = Reserve::found(head, head, ctx.base().time.mono_ms());
            a.synced_to = a.synced_to.min(head);
        }
        ticket
    };
    ctx.wait(ticket, Level::Written)?;
    drop(exclusive);
    Ok(true)
}
