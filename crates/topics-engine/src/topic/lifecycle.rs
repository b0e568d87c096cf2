//! Creating, updating and deleting a topic, and having it alone.
//!
//! Whoever has a topic *alone* has waited until nothing of it is in flight and keeps writes out:
//! blocking ones wait, asynchronous ones are parked and go on afterwards in their order.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::format::record::{
    Body, ConfigUpdate, EvictWatermark, HeadWatermark, TopicCreate, TopicDelete,
};
use topics_storage::wal::{Level, Ticket};

use super::admit::Admission;
use super::append::{self, AppendState, apply_level};
use super::flight::{Flight, Frames, Order, Undo};
use super::load::Hints;
use super::planned::Planned;
use super::prepare::Prepared;
use super::reserve::Reserve;
use super::retention::{self, Caps};
use super::state::Evicted;
use super::{Life, Topic};
use crate::api::{Appended, CreatedTopic, DeletedTopic, Durability};
use crate::config::{ConfigPatch, Discard, TopicConfig};
use crate::core::{Core, Wait, WaitCharge};
use crate::engine::Completion;
use crate::error::{Error, Result};
use crate::name;

/// An asynchronous write that waits until the topic is let go.
pub(crate) struct Parked {
    write: Box<Prepared>,
    done: Completion<Appended>,
    charge: Option<WaitCharge>,
}

impl fmt::Debug for Parked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Parked").field("records", &self.write.count).finish_non_exhaustive()
    }
}

/// A topic that its holder has alone; let go when dropped.
pub(crate) struct Alone {
    core: Arc<Core>,
    topic: Arc<Topic>,
}

impl Drop for Alone {
    fn drop(&mut self) {
        let parked = {
            let mut a = self.topic.append.lock();
            a.held = false;
            std::mem::take(&mut a.parked)
        };
        self.topic.unheld.notify_all();
        for Parked { write, done, charge } in parked {
            drop(charge);
            append::submit(&self.core, *write, done);
        }
    }
}

impl Topic {
    /// Keeps a write until the topic is let go; gives it back when it is free.
    pub(super) fn park(
        &self,
        write: Prepared,
        done: Completion<Appended>,
        charge: Option<WaitCharge>,
    ) -> Option<(Prepared, Completion<Appended>)> {
        let mut a = self.append.lock();
        if a.held {
            a.parked.push(Parked { write: Box::new(write), done, charge });
            None
        } else {
            Some((write, done))
        }
    }

    /// Whether nothing of the topic is in flight and nobody has it alone.
    pub(super) fn quiet(&self) -> bool {
        self.in_flight.load(Ordering::Acquire) == 0 && !self.append.lock().held
    }

    /// Takes the topic alone and waits until nothing of it is in flight.
    pub(crate) fn alone(self: &Arc<Self>, core: &Arc<Core>) -> Result<Alone> {
        let last = {
            let mut a = self.append.lock();
            while a.held {
                self.unheld.wait(&mut a);
            }
            a.held = true;
            a.last
        };
        let alone = Alone { core: core.clone(), topic: self.clone() };
        self.land(core, last)?;
        Ok(alone)
    }

    /// Waits for the newest batch; those before it are done then.
    pub(super) fn land(&self, core: &Core, last: Option<(Ticket, Level)>) -> Result<()> {
        let outcome = last.map_or(Ok(()), |(ticket, level)| core.wait(ticket, level));
        if let Err(Error::Closed) = outcome {
            return outcome;
        }
        // Counted before the first look: the last batch sees it, or this sees the last batch.
        self.landing.fetch_add(1, Ordering::SeqCst);
        let mut a = self.append.lock();
        while self.in_flight.load(Ordering::SeqCst) > 0 {
            self.unheld.wait(&mut a);
        }
        drop(a);
        self.landing.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    }

    /// A batch has been applied, has failed or was dropped by a log that failed.
    pub(super) fn batch_landed(&self) {
        let last = self.in_flight.fetch_sub(1, Ordering::SeqCst) == 1;
        if last && self.landing.load(Ordering::SeqCst) > 0 {
            let _locked = self.append.lock();
            self.unheld.notify_all();
        }
    }

    /// Stages control frames, and says when they are committed as the topic's class demands.
    fn log(
        self: &Arc<Self>,
        core: &Arc<Core>,
        a: &mut Admission<'_>,
        frames: Frames,
        staging: Staging,
    ) -> Result<Ticket> {
        let mut flight = Flight::plain(core, self, staging.hints, Undo::None);
        flight.birth = staging.birth;
        let ts = a.last_ts.max(core.time.steady());
        let order = Order { ts, level: staging.level, frees_space: staging.frees_space };
        Ok(a.stage(flight, frames, order)?.0)
    }
}

struct Staging {
    hints: Hints,
    birth: bool,
    level: Level,
    frees_space: bool,
}

impl Staging {
    fn new(level: Level, frees_space: bool) -> Self {
        Self { hints: Hints::default(), birth: false, level, frees_space }
    }
}

/// Admits a few control frames of a topic that the caller has alone.
fn admit<'t>(core: &Core, topic: &'t Topic, alone: &Alone) -> Result<Admission<'t>> {
    topic.admit_exclusive(core, 2048, Wait::Bounded, alone)
}

/// Creates a topic, or updates the named fields of one that is there.
pub(crate) fn create(core: &Arc<Core>, topic: &str, patch: &ConfigPatch) -> Result<CreatedTopic> {
    name::check(topic)?;
    let patch = patch.checked(topic)?;
    let name: Arc<str> = topic.into();
    loop {
        core.check_open()?;
        let topic = match core.named(&name)? {
            Some(topic) => topic,
            None => match append::make(core, &name)? {
                Ok(topic) => topic,
                Err(ticket) => {
                    core.wait(ticket, Level::Synced)?;
                    core.ids.settle(ticket);
                    continue;
                }
            },
        };
        topic.check_sound()?;
        // Jobs that have expired are dead letters as the config of before says, if they can be.
        let letters = topic.state.read().config.dead_letter.is_some();
        if letters && let Err(e) = retention::expire(core, &topic) {
            log::warn!("topic {name:?}: what has expired goes without a dead letter: {e}");
        }
        let alone = topic.alone(core)?;
        let (closed, logged) = {
            let a = topic.append.lock();
            (a.closed, a.logged)
        };
        if closed {
            continue;
        }
        if logged {
            let config = update(core, &topic, &patch, &alone)?;
            drop(alone);
            // A limit of deliveries may be lower than it was.
            super::announce_again(core, &topic);
            return Ok(CreatedTopic { topic_id: topic.id(), created: false, config });
        }
        let config = TopicConfig::created(&patch);
        let logged = log_creation(core, &topic, config.clone(), &alone);
        drop(alone);
        logged?;
        return Ok(CreatedTopic { topic_id: topic.id(), created: true, config });
    }
}

fn log_creation(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    config: TopicConfig,
    alone: &Alone,
) -> Result<()> {
    let class = config.durability;
    let staged = admit(core, topic, alone).and_then(|mut a| {
        let staging = Staging { birth: true, ..Staging::new(apply_level(class), false) };
        let reserve = Reserve::first(class, 1, core.time.mono_ms());
        let mut frames = Frames::default();
        TopicCreate {
            name: topic.name.to_string(),
            epoch: topic.key.epoch,
            config: config.encode(),
            reserved_to: reserve.to,
        }
        .encode_frame(&mut frames.head, topic.id(), 0, 0);
        let ticket = topic.log(core, &mut a, frames, staging)?;
        a.config = core.config(config);
        a.logged = true;
        a.reserve = reserve;
        a.synced_to = reserve.to;
        Ok(ticket)
    });
    match staged {
        Ok(ticket) => core.wait(ticket, apply_level(class)),
        Err(e) => {
            topic.append.lock().closed = true;
            topic.die(core);
            Err(e)
        }
    }
}

/// Updates the named fields; the caller has the topic alone.
fn update(
    core: &Arc<Core>,
    topic: &Arc<Topic>,
    patch: &ConfigPatch,
    alone: &Alone,
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
    // I11: what has expired stays so, whatever the new time to live is.
    retention::log_expired(core, topic, Some(alone), u64::MAX)?;
    let (from, to) = (old.durability, new.durability);
    if from == Durability::Fsync && to != Durability::Fsync {
        reserve_first(core, topic, alone)?;
    }
    let hints = fit(core, topic, &new)?;
    // Whoever enters class `fsync` must find everything before durable. Whoever leaves it must be
    // known to have left: a topic that is recovered as `fsync` has lost nothing (I2).
    let level = match Durability::Fsync {
        fsync if from == fsync || to == fsync => Level::Synced,
        _ => Level::Written,
    };
    let mut staging = Staging::new(level, true);
    let mut frames = Frames::default();
    topic.state.read().encode_floor(&mut frames.head, topic.id());
    ConfigUpdate { config: new.encode() }.encode_frame(&mut frames.head, topic.id(), 0, 0);
    if let Some((floor, hints)) = hints {
        let reason = Evicted::CAP.code();
        EvictWatermark { evict_floor: floor, earliest_seq: floor, reason }.encode_frame(
            &mut frames.head,
            topic.id(),
            0,
            0,
        );
        staging.hints = hints;
    }
    let ticket = {
        let mut a = admit(core, topic, alone)?;
        if to == Durability::Fsync && from != to {
            HeadWatermark { reserved_to: a.head(), lowered: true }.encode_frame(
                &mut frames.head,
                topic.id(),
                0,
                0,
            );
        }
        topic.log(core, &mut a, frames, staging)?
    };
    core.wait(ticket, level)?;
    let mut a = topic.append.lock();
    a.config = Arc::new(new.clone());
    if to == Durability::Fsync && from != to {
        a.reserve = Reserve::default();
        a.synced_to = 0;
    }
    if to == Durability::Ephemeral {
        // What is held in memory from now on must not hide how far the log is synced.
        a.synced_to = a.synced_to.min(a.reserve.to);
    }
    Ok(new)
}

/// Leaving class `fsync`: seqs must be reserved, durably, before one is given.
fn reserve_first(core: &Arc<Core>, topic: &Arc<Topic>, alone: &Alone) -> Result<()> {
    let staging = Staging::new(Level::Synced, false);
    let (ticket, reserve) = {
        let mut a = admit(core, topic, alone)?;
        let now = core.time.mono_ms();
        let reserve = Reserve::found(a.head() + super::reserve::MIN, a.head(), now);
        let mut frames = Frames::default();
        HeadWatermark { reserved_to: reserve.to, lowered: false }.encode_frame(
            &mut frames.head,
            topic.id(),
            0,
            0,
        );
        (topic.log(core, &mut a, frames, staging)?, reserve)
    };
    core.wait(ticket, Level::Synced)?;
    topic.append.lock().reserve = reserve;
    let mut state = topic.state.write();
    state.reserved_synced = state.reserved_synced.max(reserve.to);
    drop(state);
    topic.append.lock().synced_to = reserve.to;
    Ok(())
}

/// The floor that new caps demand of what is stored, with what apply needs to know for it. A topic
/// that rejects at a cap evicts nothing for one: it takes no writes until there is room.
fn fit(core: &Arc<Core>, topic: &Topic, config: &TopicConfig) -> Result<Option<(u64, Hints)>> {
    if config.discard == Discard::Reject {
        return Ok(None);
    }
    let caps = Caps::of(config);
    loop {
        let found = {
            let state = topic.state.read();
            let mut none = Planned::default();
            let outlook = none.outlook(&state);
            let eviction = retention::evict_to_fit(&state, &none, outlook, (0, &[]), &caps);
            let windows = state.windows.clone();
            eviction.map(|e| e.map(|e| (e.floor, Hints { windows, ..Hints::default() })))
        };
        match found {
            Ok(found) => return Ok(found),
            Err(need) => retention::provide(core, topic, &need)?,
        }
    }
}

/// Deletes a topic.
pub(crate) fn delete(core: &Arc<Core>, name: &str, if_empty: bool) -> Result<DeletedTopic> {
    name::check(name)?;
    core.check_open()?;
    let Some(topic) = core.named(name)?.filter(|t| t.life() == Life::Live) else {
        return Ok(DeletedTopic::default());
    };
    topic.check_sound()?;
    if if_empty {
        retention::expire(core, &topic)?;
    }
    let alone = topic.alone(core)?;
    if topic.append.lock().closed {
        return Ok(DeletedTopic::default());
    }
    let count = topic.state.read().count;
    if if_empty && count > 0 {
        return Err(Error::TopicNotEmpty { topic: name.to_owned(), count });
    }
    // The end of a transaction that wrote to it is durable first: without it the next open would
    // finish the transaction again, and answer its repeat without a topic that the answer named.
    if core.txns.ended_behind(core.wal.positions(0).synced) {
        core.wal.sync(0)?;
    }
    let routers_removed = core.routers.of(topic.id());
    let level = apply_level(topic.append.lock().config.durability);
    let staging = Staging::new(level, true);
    let ticket = {
        let mut a = admit(core, &topic, &alone)?;
        let mut frames = Frames::default();
        TopicDelete { epoch: topic.key.epoch }.encode_frame(&mut frames.head, topic.id(), 0, 0);
        topic.log(core, &mut a, frames, staging)?
    };
    core.wait(ticket, level)?;
    topic.append.lock().closed = true;
    Ok(DeletedTopic { deleted: true, routers_removed })
}

/// Deletes a topic whose name a later one has, durably: its own delete was lost, and when that of
/// the later one is known only the earlier would be left of the two.
pub(crate) fn bury(core: &Arc<Core>, topic: &Arc<Topic>) {
    let (name, id) = (&topic.name, topic.id());
    log::warn!("topic {name:?} (id {id}) is another now: its records are gone");
    let buried = topic.admit(core, 2048, Wait::Bounded).and_then(|mut a| {
        let staging = Staging::new(Level::Synced, true);
        let mut frames = Frames::default();
        TopicDelete { epoch: topic.key.epoch }.encode_frame(&mut frames.head, id, 0, 0);
        let ticket = topic.log(core, &mut a, frames, staging)?;
        drop(a);
        core.wait(ticket, Level::Synced)
    });
    if let Err(e) = buried {
        log::error!("topic {name:?} (id {id}) is gone until the next open only: {e}");
        topic.die(core);
    }
}

/// Lowers the reservation of a topic to its head, if there is something to lower and nothing was
/// reserved for `idle_ms`.
pub(crate) fn lower(core: &Arc<Core>, topic: &Arc<Topic>, idle_ms: u64) -> Result<bool> {
    let due = |a: &AppendState| {
        !a.held && !a.closed && a.reserve.idle(a.head(), core.time.mono_ms(), idle_ms)
    };
    // What memory says of the head of a broken topic may be too low.
    if topic.life() != Life::Live || topic.check_sound().is_err() || !due(&topic.append.lock()) {
        return Ok(false);
    }
    let alone = topic.alone(core)?;
    // A close needs no space but for this, and no write comes after it.
    let staging = Staging::new(Level::Written, idle_ms == 0);
    let ticket = {
        let mut a = admit(core, topic, &alone)?;
        let head = a.head();
        if a.closed || a.reserve.to <= head {
            return Ok(false);
        }
        let mut frames = Frames::default();
        HeadWatermark { reserved_to: head, lowered: true }.encode_frame(
            &mut frames.head,
            topic.id(),
            0,
            0,
        );
        let ticket = topic.log(core, &mut a, frames, staging)?;
        // From here on a write needs a new reservation, whatever becomes of this frame.
        a.reserve = Reserve::found(head, head, core.time.mono_ms());
        a.synced_to = a.synced_to.min(head);
        ticket
    };
    core.wait(ticket, Level::Written)?;
    drop(alone);
    Ok(true)
}
