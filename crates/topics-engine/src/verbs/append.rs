//! A write by topic name: find or create the topic → prepare → decide and stage under the append lock →
//! wait.
//!
//! The blocking and the asynchronous call share every stage; they differ in how they wait.

use std::sync::Arc;

use topics_storage::segment::TopicKey;
use topics_storage::wal::{Level, Ticket};

use super::load::{check_limits, check_load, memory_full};
use crate::catalog::Catalog;
use crate::catalog::ids::Id;
use crate::checkpoint::Store;
use crate::checkpoint::memory::MEMORY_WAIT;
use crate::ctx::{Wait, WaitCharge};
use crate::topic::Topic;
use crate::topic::events::{Base, Ctx};
use crate::topic::load;
use crate::topic::retention;
use crate::topic::until;
use crate::topic::write::append_state::{Decided, Halt};
use crate::topic::write::decide::Decision;
use crate::topic::write::forward::Forwarding;
use crate::topic::write::prepare::Prepared;
use crate::types::api::{Append, Appended, Completion};
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};
use crate::types::pending_calls::{Next, Turn};

/// The result of one attempt to write.
enum Attempt {
    Decided(Arc<Topic>, Decided),
    /// Another verb has the topic exclusively.
    Exclusive(Arc<Topic>),
    /// The topic was deleted: the next attempt looks its name up again.
    Gone,
    /// A topic id must be reserved first.
    Id(Ticket),
    /// Readers see the expected head, but a staged write would raise it. Whether it does is known when
    /// this ticket has reached this level.
    Contended(Ticket, Level),
    /// An asynchronous write must wait for a checkpoint.
    MemoryFull,
}

/// Appends, and waits until the write has reached its class.
pub(crate) fn append(store: &Arc<Store>, topic: &str, req: &Append<'_>) -> Result<Appended> {
    let began = store.base().time.mono_ns();
    perform(
        store,
        Prepared::new(&store.base().options, topic, req, store.base().time.steady(), began)?,
    )
}

/// Appends a prepared write, and waits until it has reached its class.
pub(crate) fn perform(store: &Arc<Store>, mut p: Prepared) -> Result<Appended> {
    let wait = if p.patient { Wait::Patient } else { Wait::Bounded };
    loop {
        match attempt(store, &mut p, wait, Memory::Check)? {
            // A caller that may wait has run the checkpoint.
            Attempt::Gone | Attempt::MemoryFull => {}
            Attempt::Exclusive(topic) => topic.wait_not_exclusive(),
            Attempt::Id(ticket) => {
                store.ctx().wait(ticket, Level::Synced)?;
                store.catalog().ids.on_synced(ticket);
            }
            // If that write fails, the expected head is right again, or the next attempt fails too.
            Attempt::Contended(ticket, level) => drop(store.ctx().wait(ticket, level)),
            Attempt::Decided(topic, d) => {
                start_sync(store.ctx(), &topic, &d);
                let staged = store.base().time.mono_ns();
                if let Some(ticket) = d.ticket.filter(|_| d.level > Level::Staged) {
                    store.ctx().wait(ticket, d.level)?;
                    topic.check_sound()?;
                }
                return Ok(answer(store.base(), &topic, d, p.began, staged));
            }
        }
    }
}

/// Decides and stages a write; `done` is called when it has reached its class. Never blocks, never
/// syncs. Returns whether leading a group suffices for that, without a sync.
pub(crate) fn append_async(
    store: &Arc<Store>,
    topic: &str,
    req: &Append<'_>,
    done: Completion<Appended>,
) -> bool {
    let began = store.base().time.mono_ns();
    match Prepared::new(&store.base().options, topic, req, store.base().time.steady(), began) {
        Ok(p) => submit(store, p, done),
        Err(e) => {
            done(Err(e));
            false
        }
    }
}

/// Attempts an asynchronous write until it is staged or parked.
pub(crate) fn submit(store: &Arc<Store>, p: Prepared, done: Completion<Appended>) -> bool {
    submit_with(store, p, done, Memory::Check)
}

/// Whether a write checks that there is memory for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Memory {
    Check,
    /// The write has waited for it.
    Waited,
}

fn submit_with(
    store: &Arc<Store>,
    mut p: Prepared,
    mut done: Completion<Appended>,
    memory: Memory,
) -> bool {
    loop {
        let next = attempt(store, &mut p, Wait::No, memory).and_then(|next| {
            // A write that waits has released its staging permit.
            let waits = !matches!(next, Attempt::Gone | Attempt::Decided(..));
            let charge = waits.then(|| store.ctx().charge_wait(p.staging_bytes())).transpose();
            let charge = match (&next, charge) {
                (Attempt::MemoryFull, Err(Error::Throttled { .. })) => Err(memory_full(store)),
                (_, charge) => charge,
            };
            Ok((next, charge?))
        });
        let (next, charge) = match next {
            Ok(next) => next,
            Err(e) => {
                done(Err(e));
                return false;
            }
        };
        match next {
            Attempt::Gone => {}
            Attempt::MemoryFull => {
                wait_for_memory(store, p, done, charge);
                return false;
            }
            Attempt::Exclusive(topic) => {
                let at = store.clone();
                let resume = move |(p, done, charge)| {
                    drop(charge);
                    submit(&at, p, done);
                };
                match topic.park((p, done, charge), resume) {
                    None => return false,
                    Some(back) => (p, done, _) = back,
                }
            }
            Attempt::Id(ticket) => {
                let at = store.clone();
                let resume = move |outcome: topics_storage::Result<()>| match outcome {
                    Ok(()) => {
                        at.catalog().ids.on_synced(ticket);
                        drop(charge);
                        submit(&at, p, done);
                    }
                    Err(e) => done(Err(e.into())),
                };
                store.ctx().wal.on_level(ticket, Level::Synced, Box::new(resume));
                return false;
            }
            Attempt::Contended(ticket, level) => {
                let at = store.clone();
                let resume = move |_: topics_storage::Result<()>| {
                    drop(charge);
                    submit(&at, p, done);
                };
                store.ctx().wal.on_level(ticket, level, Box::new(resume));
                return level < Level::Synced;
            }
            Attempt::Decided(topic, d) => {
                start_sync(store.ctx(), &topic, &d);
                let staged = store.base().time.mono_ns();
                let began = p.began;
                let Some(ticket) = d.ticket.filter(|_| d.level > Level::Staged) else {
                    done(Ok(answer(store.base(), &topic, d, began, staged)));
                    return false;
                };
                let (at, level) = (store.clone(), d.level);
                let finish = move |outcome: topics_storage::Result<()>| {
                    let sound = outcome.map_err(Error::from).and_then(|()| topic.check_sound());
                    done(sound.map(|()| answer(at.base(), &topic, d, began, staged)));
                };
                store.ctx().wal.on_level(ticket, level, Box::new(finish));
                return level < Level::Synced;
            }
        }
    }
}

/// Has a write wait until a checkpoint has made memory free, at most [`MEMORY_WAIT`].
fn wait_for_memory(
    store: &Arc<Store>,
    p: Prepared,
    done: Completion<Appended>,
    charge: Option<WaitCharge>,
) {
    let began = store.base().time.mono_ns();
    let failed_rounds = store.memory.failed_rounds();
    let (waiting, mut behind_others) = store.memory.begin_wait();
    // The table of calls belongs to the store.
    let weak = Arc::downgrade(store);
    let mut write = Some((p, done, charge, waiting));
    let attempt = move |turn| {
        let Some((mut p, done, charge, waiting)) = write.take() else { return Next::Done };
        let Some(store) = weak.upgrade().filter(|store| store.ctx().check_open().is_ok()) else {
            done(Err(Error::Closed));
            return Next::Done;
        };
        // The others are woken first.
        let full = store.is_memory_full() || std::mem::take(&mut behind_others);
        if full && turn == Turn::InTime && store.memory.failed_rounds() == failed_rounds {
            write = Some((p, done, charge, waiting));
            return Next::Wait(store.on_memory());
        }
        if store.is_memory_full() {
            done(Err(memory_full(&store)));
            return Next::Done;
        }
        drop(charge);
        p.throttled_ns += store.base().time.mono_ns().saturating_sub(began);
        // No caller leads the group of a write that is resumed here.
        if submit_with(&store, p, done, Memory::Waited) {
            (0..store.ctx().wal.shards()).for_each(|shard| store.ctx().wal.drive(shard));
        }
        drop(waiting);
        Next::Done
    };
    store.ctx().calls.start(Box::new(attempt), until(store.ctx(), MEMORY_WAIT));
}

/// Starts the sync of a reservation that the write logged, so that no later write waits for it.
fn start_sync(ctx: &Ctx, topic: &Arc<Topic>, d: &Decided) {
    let Some(ticket) = d.ticket.filter(|_| d.renewed) else { return };
    let (topic, to) = (topic.clone(), d.reserved);
    let done = move |outcome: topics_storage::Result<()>| {
        if outcome.is_ok() {
            topic.reservation_synced(to);
        }
    };
    ctx.wal.on_level(ticket, Level::Synced, Box::new(done));
}

/// The answer to a write that has reached its class.
fn answer(base: &Base, topic: &Topic, d: Decided, began: u64, staged: u64) -> Appended {
    let now = base.time.mono_ns();
    let mut a = d.answer;
    if d.level == Level::Synced {
        topic.reservation_synced(d.reserved);
        a.fsync_ns = now.saturating_sub(staged);
        base.metrics.sync_wait.record(a.fsync_ns);
    } else {
        a.wal_append_ns = now.saturating_sub(staged);
    }
    base.metrics.append.record(now.saturating_sub(began));
    a
}

/// One attempt: finds the topic, takes a permit, decides.
fn attempt(store: &Arc<Store>, p: &mut Prepared, wait: Wait, memory: Memory) -> Result<Attempt> {
    store.ctx().check_open()?;
    let found = store.catalog().named(&p.topic)?;
    if found.is_none() && !p.create {
        return Err(Error::TopicNotFound(p.topic.to_string()));
    }
    // Before the topic is made: a write that waits leaves none behind.
    match memory {
        Memory::Waited => check_limits(store, p.bytes)?,
        Memory::Check => match check_load(store, p.bytes, wait)? {
            Some(ns) => p.throttled_ns += ns,
            None => return Ok(Attempt::MemoryFull),
        },
    }
    let topic = match found {
        Some(topic) => topic,
        None => match make(store.catalog(), &p.topic)? {
            Ok(topic) => topic,
            Err(ticket) => return Ok(Attempt::Id(ticket)),
        },
    };
    if p.forward.as_ref().is_some_and(|f| f.dest != topic.id()) {
        return Err(Error::TopicNotFound(p.topic.to_string()));
    }
    topic.check_sound()?;
    retention::expire_before_write(store.ctx(), &topic, wait)?;
    // Under full pressure a wait for a permit only makes the queue longer.
    let refuse = wait == Wait::Bounded && store.base().pressure.is_full();
    let wait = if refuse { Wait::No } else { wait };
    loop {
        let Some(mut a) = topic.try_admit(store.ctx(), p.staging_bytes(), wait)? else {
            return Ok(Attempt::Exclusive(topic.clone()));
        };
        p.throttled_ns += a.waited().as_nanos() as u64;
        if a.closed {
            return Ok(Attempt::Gone);
        }
        let decided = Decision { ctx: store.ctx(), topic: &topic, p }.run(&mut a);
        let unlogged = !a.logged;
        if unlogged {
            // The write that was to create the topic was refused, so the topic does not exist.
            a.closed = true;
        }
        drop(a);
        if unlogged {
            topic.retire(store.base());
        }
        match decided? {
            Ok(d) => return Ok(Attempt::Decided(topic, d)),
            Err(Halt::Read(need)) => load::provide(store.base(), &topic, &need)?,
            Err(Halt::Until(ticket, level)) => return Ok(Attempt::Contended(ticket, level)),
        }
    }
}

/// Refuses so many further topics over `max_topics`. Who creates several checks this for all of them
/// before the first.
pub(crate) fn check_topics(catalog: &Catalog, further: u64) -> Result<()> {
    let max = catalog.base().options.max_topics;
    catalog.base().check_limit("max_topics", max, catalog.topics() as u64, further)
}

/// A topic of this name that is not logged yet. The inner `Err`: an id must be reserved first, which
/// this ticket's sync does.
pub(crate) fn make(
    catalog: &Arc<Catalog>,
    name: &Arc<str>,
) -> Result<std::result::Result<Arc<Topic>, Ticket>> {
    check_topics(catalog, 1)?;
    let id = match catalog.ids.take(catalog)? {
        Id::Taken(id) => id,
        Id::After(ticket) => return Ok(Err(ticket)),
    };
    let topic = catalog.table.loaded.claim(name, || {
        let key = TopicKey { topic_id: id, epoch: id };
        Ok(Arc::new(Topic::new(key, name.clone(), catalog.base().config(TopicConfig::default()))))
    })?;
    Ok(Ok(topic))
}

/// Appends copies of a router; `done` is called when they have reached the destination's class. Never
/// blocks.
pub(crate) fn forward(
    store: &Arc<Store>,
    dest: &Topic,
    req: &Append<'_>,
    forwarding: Forwarding,
    done: Completion<Appended>,
) {
    let began = store.base().time.mono_ns();
    match Prepared::of_copies(
        &store.base().options,
        &dest.name,
        req,
        store.base().time.steady(),
        began,
    ) {
        Ok(mut p) => {
            p.forward = Some(Box::new(forwarding));
            submit(store, p, done);
        }
        Err(e) => done(Err(e)),
    }
}

#[cfg(test)]
#[path = "memory_tests.rs"]
mod tests;
