//! The creation, update and deletion of a topic in the log, and exclusive access to it.
//!
//! A verb takes a topic *exclusively*: it waits until no batch of the topic is pending, and keeps other
//! writes out. Blocking writes wait; asynchronous ones are parked and resumed in their order.

use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::format::record::{
    Body, ConfigUpdate, EvictWatermark, HeadWatermark, TopicCreate, TopicDelete,
};
use topics_storage::wal::{Level, Ticket};

use super::load::Hints;
use super::retention::{self, Caps};
use super::state::Evicted;
use super::write::admit::Admission;
use super::write::append::{AppendState, apply_level};
use super::write::pending_batch::{Frames, Order, PendingBatch, Undo};
use super::write::pending_writes::PendingWrites;
use super::write::reserve::Reserve;
use super::{Life, Topic};
use crate::ctx::Wait;
use crate::topic::events::{Base, Ctx};
use crate::types::api::Durability;
use crate::types::config::{ConfigPatch, Discard, TopicConfig};
use crate::types::error::{Error, Result};

/// Exclusive access to a topic; released when dropped.
pub(crate) struct ExclusiveGuard {
    topic: Arc<Topic>,
}

impl Drop for ExclusiveGuard {
    fn drop(&mut self) {
        let parked = {
            let mut a = self.topic.append.lock();
            a.is_exclusive = false;
            a.parked.take(|()| true)
        };
        self.topic.exclusive_released.notify_all();
        parked.into_iter().for_each(|resume| resume());
    }
}

impl Topic {
    /// Parks a write while a verb has the topic exclusively, and has it resumed afterwards. Returns the
    /// write when no verb has the topic.
    pub(crate) fn park<W: Send + 'static>(
        &self,
        waiting: W,
        resume: impl FnOnce(W) + Send + 'static,
    ) -> Option<W> {
        let mut a = self.append.lock();
        if a.is_exclusive {
            a.parked.add((), Box::new(move || resume(waiting)));
            None
        } else {
            Some(waiting)
        }
    }

    /// Whether no batch of the topic is pending and no verb has it exclusively.
    pub(crate) fn quiet(&self) -> bool {
        self.pending_batches.load(Ordering::Acquire) == 0 && !self.append.lock().is_exclusive
    }

    /// Takes the topic exclusively and waits until no batch of it is pending.
    pub(crate) fn exclusive(self: &Arc<Self>, ctx: &Arc<Ctx>) -> Result<ExclusiveGuard> {
        let last = {
            let mut a = self.append.lock();
            while a.is_exclusive {
                self.exclusive_released.wait(&mut a);
            }
            a.is_exclusive = true;
            a.last
        };
        let exclusive = ExclusiveGuard { topic: self.clone() };
        self.wait_idle(ctx, last)?;
        Ok(exclusive)
    }

    /// Waits until the newest batch, and so every batch before it, has finished.
    pub(crate) fn wait_idle(&self, ctx: &Ctx, last: Option<(Ticket, Level)>) -> Result<()> {
        let outcome = last.map_or(Ok(()), |(ticket, level)| ctx.wait(ticket, level));
        if let Err(Error::Closed) = outcome {
            return outcome;
        }
        // The count rises before the check: either the last batch sees it, or this sees that batch finished.
        self.idle_waiters.fetch_add(1, Ordering::SeqCst);
        let mut a = self.append.lock();
        while self.pending_batches.load(Ordering::SeqCst) > 0 {
            self.exclusive_released.wait(&mut a);
        }
        drop(a);
        self.idle_waiters.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// Counts off a batch that was applied, has failed, or was dropped by a failed log.
    pub(crate) fn batch_finished(&self) {
        let last = self.pending_batches.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.idle_waiters.load(Ordering::SeqCst) > 0 {
            let _locked = self.append.lock();
            self.exclusive_released.notify_all();
        }
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
            Err(need) => retention::provide(base, topic, &need)?,
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

/// Logs the lost ranges and the floor of a topic that readers have seen and the log lacks.
pub(crate) fn log_losses(ctx: &Arc<Ctx>, topic: &Arc<Topic>) -> Result<()> {
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
