//! A write: prepared → decided and staged under the append lock → awaited.
//!
//! The blocking and the asynchronous call share every stage; they differ in how they wait.

use std::sync::Arc;

use topics_storage::format::record::{
    Body, EvictWatermark, HeadWatermark, Idempotency, TopicCreate,
};
use topics_storage::segment::TopicKey;
use topics_storage::wal::{FRONT, Level, Room, Ticket};

use super::apply::Removed;
use super::dedupe::{Dedupe, HELD, Remembered};
use super::flight::{Flight, Frames, Order, Undo, encode_gaps};
use super::held::Shown;
use super::lifecycle::Parked;
use super::load::{Hints, Loader};
use super::planned::Planned;
use super::prepare::Prepared;
use super::reserve::Reserve;
use super::retention::{self, Eviction, Need};
use super::state::Evicted;
use super::{Life, Topic};
use crate::api::{Append, Appended, Durability, Gap};
use crate::config::{Discard, TopicConfig, TopicType};
use crate::core::{Core, Wait};
use crate::engine::Completion;
use crate::error::{Error, Result};
use crate::ids::Id;

/// What orders a topic's writes.
#[derive(Debug)]
pub(crate) struct AppendState {
    pub config: Arc<TopicConfig>,
    pub next_seq: u64,
    pub last_ts: u64,
    /// Whether the creation is staged or logged.
    pub logged: bool,
    /// A verb has the topic alone.
    pub held: bool,
    /// The topic is gone: look the name up again.
    pub closed: bool,
    pub reserve: Reserve,
    /// The part of the reservation that is known to be synced.
    pub synced_to: u64,
    /// The newest batch, and the level at which it is applied.
    pub last: Option<(Ticket, Level)>,
    /// How often seqs were given back.
    pub round: u32,
    /// Kept while the topic has a cap.
    pub planned: Option<Box<Planned>>,
    /// Losses that are not in the log yet.
    pub unlogged: Vec<Gap>,
    /// Asynchronous writes that came while the topic was held.
    pub parked: Vec<Parked>,
}

impl AppendState {
    pub(crate) fn new(config: Arc<TopicConfig>) -> Self {
        Self {
            config,
            next_seq: 1,
            last_ts: 0,
            logged: false,
            held: false,
            closed: false,
            reserve: Reserve::default(),
            synced_to: 0,
            last: None,
            round: 0,
            planned: None,
            unlogged: Vec::new(),
            parked: Vec::new(),
        }
    }

    pub(crate) fn head(&self) -> u64 {
        self.next_seq - 1
    }
}

/// Room for the control frames of a write, beside its name and config.
const CONTROL: usize = 1024;

/// The level at which a topic's batches are applied.
pub(super) fn apply_level(class: Durability) -> Level {
    if class == Durability::Fsync { Level::Synced } else { Level::Written }
}

/// A write that is decided.
pub(super) struct Decided {
    answer: Appended,
    /// Nothing to wait for when `None`.
    pub ticket: Option<Ticket>,
    level: Level,
    /// The reservation that is synced when the ticket is, at level `Synced`.
    pub reserved: u64,
    /// A reservation went with it: its sync is started.
    renewed: bool,
}

/// How far one attempt came.
enum Step {
    Decided(Arc<Topic>, Decided),
    /// A verb has the topic alone.
    Held(Arc<Topic>),
    /// The topic is gone: look the name up again.
    Gone,
    /// A topic id must be reserved first.
    Id(Ticket),
    /// The head that was expected is what readers see, and a write is on its way: whether it
    /// becomes the head is known when this ticket has reached this level.
    Contended(Ticket, Level),
}

/// Why nothing is decided yet.
pub(super) enum Halt {
    /// Something must be read.
    Read(Need),
    /// See [`Step::Contended`].
    Until(Ticket, Level),
}

impl From<Need> for Halt {
    fn from(need: Need) -> Self {
        Self::Read(need)
    }
}

/// Appends and waits for the class.
pub(crate) fn append(core: &Arc<Core>, topic: &str, req: &Append<'_>) -> Result<Appended> {
    let began = core.time.mono_ns();
    perform(core, Prepared::new(&core.options, topic, req, core.time.wall(), began)?)
}

/// The same with a write that is prepared.
pub(super) fn perform(core: &Arc<Core>, mut p: Prepared) -> Result<Appended> {
    let wait = if p.patient { Wait::Patient } else { Wait::Bounded };
    loop {
        match step(core, &mut p, wait)? {
            Step::Gone => {}
            Step::Held(topic) => topic.wait_unheld(),
            Step::Id(ticket) => {
                core.wait(ticket, Level::Synced)?;
                core.ids.settle(ticket);
            }
            // If it fails, the head is what was expected, or the next attempt fails too.
            Step::Contended(ticket, level) => drop(core.wait(ticket, level)),
            Step::Decided(topic, d) => {
                start_sync(core, &topic, &d);
                let staged = core.time.mono_ns();
                if let Some(ticket) = d.ticket.filter(|_| d.level > Level::Staged) {
                    core.wait(ticket, d.level)?;
                }
                return Ok(answer(core, &topic, d, p.began, staged));
            }
        }
    }
}

/// Decides and stages; `done` is called when the class is reached. Never blocks, never syncs. Says
/// whether the class is reached by a group that is led, without a sync.
pub(crate) fn append_async(
    core: &Arc<Core>,
    topic: &str,
    req: &Append<'_>,
    done: Completion<Appended>,
) -> bool {
    let began = core.time.mono_ns();
    match Prepared::new(&core.options, topic, req, core.time.wall(), began) {
        Ok(p) => submit(core, p, done),
        Err(e) => {
            done(Err(e));
            false
        }
    }
}

/// Goes on with an asynchronous write, from the beginning or where it was parked.
pub(super) fn submit(core: &Arc<Core>, mut p: Prepared, mut done: Completion<Appended>) -> bool {
    loop {
        match step(core, &mut p, Wait::No) {
            Err(e) => {
                done(Err(e));
                return false;
            }
            Ok(Step::Gone) => {}
            Ok(Step::Held(topic)) => match topic.park(p, done) {
                None => return false,
                Some(back) => (p, done) = back,
            },
            Ok(Step::Id(ticket)) => {
                let at = core.clone();
                let resume = move |outcome: topics_storage::Result<()>| match outcome {
                    Ok(()) => {
                        at.ids.settle(ticket);
                        submit(&at, p, done);
                    }
                    Err(e) => done(Err(e.into())),
                };
                core.wal.notify(ticket, Level::Synced, Box::new(resume));
                return false;
            }
            Ok(Step::Contended(ticket, level)) => {
                let at = core.clone();
                let resume = move |_: topics_storage::Result<()>| {
                    submit(&at, p, done);
                };
                core.wal.notify(ticket, level, Box::new(resume));
                return level < Level::Synced;
            }
            Ok(Step::Decided(topic, d)) => {
                start_sync(core, &topic, &d);
                let staged = core.time.mono_ns();
                let began = p.began;
                let Some(ticket) = d.ticket.filter(|_| d.level > Level::Staged) else {
                    done(Ok(answer(core, &topic, d, began, staged)));
                    return false;
                };
                let (at, level) = (core.clone(), d.level);
                let finish = move |outcome: topics_storage::Result<()>| {
                    done(match outcome {
                        Ok(()) => Ok(answer(&at, &topic, d, began, staged)),
                        Err(e) => Err(e.into()),
                    });
                };
                core.wal.notify(ticket, level, Box::new(finish));
                return level < Level::Synced;
            }
        }
    }
}

/// A reservation that went with the write is synced at once, so that no write has to wait for it.
fn start_sync(core: &Arc<Core>, topic: &Arc<Topic>, d: &Decided) {
    let Some(ticket) = d.ticket.filter(|_| d.renewed) else { return };
    let (topic, to) = (topic.clone(), d.reserved);
    let done = move |outcome: topics_storage::Result<()>| {
        if outcome.is_ok() {
            topic.reservation_synced(to);
        }
    };
    core.wal.notify(ticket, Level::Synced, Box::new(done));
}

/// The class is reached.
fn answer(core: &Core, topic: &Topic, d: Decided, began: u64, staged: u64) -> Appended {
    let now = core.time.mono_ns();
    let mut a = d.answer;
    if d.level == Level::Synced {
        topic.reservation_synced(d.reserved);
        a.fsync_ns = now.saturating_sub(staged);
        a.throttle_ns += core.wal.held_since(core.shard(topic.id()), staged).min(a.fsync_ns);
        core.metrics.sync_wait.record(a.fsync_ns);
    } else {
        a.wal_append_ns = now.saturating_sub(staged);
    }
    core.metrics.append.record(now.saturating_sub(began));
    a
}

/// One attempt: finds the topic, takes room, decides.
fn step(core: &Arc<Core>, p: &mut Prepared, wait: Wait) -> Result<Step> {
    core.check_open()?;
    let topic = match core.named(&p.topic)? {
        Some(topic) => topic,
        None if !p.create => return Err(Error::TopicNotFound(p.topic.to_string())),
        None => match make(core, &p.topic)? {
            Ok(topic) => topic,
            Err(ticket) => return Ok(Step::Id(ticket)),
        },
    };
    if p.forward.as_ref().is_some_and(|f| f.dest != topic.id()) {
        return Err(Error::TopicNotFound(p.topic.to_string()));
    }
    topic.check_sound()?;
    p.throttled_ns += core.check_load(p.bytes, wait)?;
    retention::expire_before_write(core, &topic, wait)?;
    let shard = core.shard(topic.id());
    // Under full pressure waiting for room only makes the queue longer.
    let refuse = wait == Wait::Bounded && core.delivery.is_full();
    let wait = if refuse { Wait::No } else { wait };
    loop {
        let room = core.room(shard, p.frames().len() + CONTROL + p.topic.len(), wait)?;
        p.throttled_ns += room.waited().as_nanos() as u64;
        let mut a = topic.append.lock();
        if a.closed {
            return Ok(Step::Gone);
        }
        if a.held {
            drop(a);
            return Ok(Step::Held(topic));
        }
        let decided = Decision { core, topic: &topic, p }.run(&mut a, room);
        let unlogged = !a.logged;
        if unlogged {
            // The write that was to create the topic was refused: there is none.
            a.closed = true;
        }
        drop(a);
        if unlogged {
            topic.die(core);
        }
        match decided? {
            Ok(d) => return Ok(Step::Decided(topic, d)),
            Err(Halt::Read(need)) => retention::provide(core, &topic, &need)?,
            Err(Halt::Until(ticket, level)) => return Ok(Step::Contended(ticket, level)),
        }
    }
}

/// A topic that is not logged yet; `Err`: an id must be reserved first.
pub(super) fn make(
    core: &Arc<Core>,
    name: &Arc<str>,
) -> Result<std::result::Result<Arc<Topic>, Ticket>> {
    let max = core.options.max_topics;
    if max > 0 && core.topics() as u64 >= max {
        core.metrics.throttled.add(1);
        return Err(Error::Throttled { limit: "topics", max, retry_after_ms: 1000 });
    }
    let id = match core.ids.take(core)? {
        Id::Taken(id) => id,
        Id::After(ticket) => return Ok(Err(ticket)),
    };
    let topic = core.registry.claim(name, || {
        let key = TopicKey { topic_id: id, epoch: id };
        Ok(Arc::new(Topic::new(key, name.clone(), core.config(TopicConfig::default()))))
    })?;
    Ok(Ok(topic))
}

/// What is decided under the append lock.
pub(super) struct Decision<'a> {
    pub core: &'a Arc<Core>,
    pub topic: &'a Arc<Topic>,
    pub p: &'a mut Prepared,
}

/// What a write brings along.
pub(super) struct Plan {
    config: Arc<TopicConfig>,
    birth: bool,
    first: u64,
    last: u64,
    ts: u64,
    reserve: Option<Reserve>,
    eviction: Option<Eviction>,
    sizes: Option<Vec<u32>>,
    hints: Hints,
}

impl Decision<'_> {
    /// `Err` inside: something must be read, or waited for, first.
    pub(super) fn run(
        &mut self,
        a: &mut AppendState,
        room: Room,
    ) -> Result<std::result::Result<Decided, Halt>> {
        if !a.logged && !self.p.create {
            return Err(Error::TopicNotFound(self.p.topic.to_string()));
        }
        if let Some(repeat) = self.repeat(a)? {
            return Ok(Ok(repeat));
        }
        if let Some(until) = self.contended(a) {
            return Ok(Err(until));
        }
        let plan = match self.plan(a)? {
            Ok(plan) => plan,
            Err(need) => return Ok(Err(need.into())),
        };
        self.stage(a, plan, room).map(Ok)
    }

    /// The answer to an earlier call with the same key.
    fn repeat(&self, a: &AppendState) -> Result<Option<Decided>> {
        let Some(key) = self.p.key else { return Ok(None) };
        let mut state = self.topic.state.write();
        let Some(dedupe) = &mut state.dedupe else { return Ok(None) };
        dedupe.expire(self.core.time.steady());
        let Some(r) = dedupe.get(key.hash).copied() else { return Ok(None) };
        drop(state);
        if r.request != key.request {
            return Err(Error::IdempotencyMismatch { topic: self.p.topic.to_string() });
        }
        self.core.metrics.dedupe_hits.add(1);
        let level = self.wait_level(a, r.last_seq, false);
        // With `sync`, everything acked before counts: the newest batch stands for it.
        let ticket = if self.p.sync { a.last.map(|(t, _)| t) } else { r.ticket };
        let mut answer = self.answer(a, r.first_seq, r.last_seq);
        answer.head_seq = a.head().max(r.last_seq);
        answer.deduped = true;
        Ok(Some(Decided { answer, ticket, level, reserved: r.last_seq, renewed: false }))
    }

    /// A caller that is refused over a head which nobody can read yet would only ask again: it
    /// gets its answer when that write is through and shown, or has failed. Once: a head that has
    /// become visible meanwhile is above the expected one for good.
    fn contended(&mut self, a: &AppendState) -> Option<Halt> {
        let expected = self.p.expect_head.filter(|e| *e < a.head() && !self.p.waited)?;
        let (ticket, applied) = a.last?;
        if expected < self.topic.gate.head() {
            return None;
        }
        self.p.waited = true;
        // What goes beyond the reservation is shown when that is synced.
        let shown = self.wait_level(a, a.head(), false);
        Some(Halt::Until(ticket, applied.max(shown)))
    }

    fn answer(&self, a: &AppendState, first: u64, last: u64) -> Appended {
        Appended {
            topic_id: self.topic.id(),
            first_seq: first,
            last_seq: last,
            head_seq: last,
            count: last + 1 - first,
            created: false,
            deduped: false,
            durability: a.config.durability,
            wal_append_ns: 0,
            fsync_ns: 0,
            throttle_ns: self.p.throttled_ns,
        }
    }

    /// What the caller waits for.
    fn wait_level(&self, a: &AppendState, last: u64, birth: bool) -> Level {
        let class = a.config.durability;
        let reserved = class == Durability::Fsync || birth || last <= a.synced_to;
        match class {
            _ if self.p.sync || class == Durability::Fsync || !reserved => Level::Synced,
            Durability::Disk => Level::Written,
            // A creation is shown when it is written, and what was written to it meanwhile with it.
            _ if birth || self.topic.life() != Life::Live => Level::Written,
            _ => Level::Staged,
        }
    }

    /// Conditions, caps, seqs, reservation; changes nothing.
    pub(super) fn plan(&mut self, a: &mut AppendState) -> Result<std::result::Result<Plan, Need>> {
        let p = &*self.p;
        let birth = !a.logged;
        let config = match &p.config {
            _ if birth => {
                let patch = p.config.as_deref().cloned().unwrap_or_default();
                self.core.config(TopicConfig::created(&patch))
            }
            Some(patch) => {
                if let Some((field, actual, wanted)) = patch.conflict(&a.config) {
                    let topic = p.topic.to_string();
                    return Err(Error::TopicExistsIncompatible { topic, field, actual, wanted });
                }
                a.config.clone()
            }
            None => a.config.clone(),
        };
        if p.jobs && config.kind != TopicType::Queue {
            return Err(Error::NotAQueue(p.topic.to_string()));
        }
        if let Some(expected) = p.expect_head.filter(|e| *e != a.head()) {
            let (topic, actual) = (p.topic.to_string(), a.head());
            return Err(Error::HeadMismatch { topic, expected, actual });
        }
        let (first, last) = (a.next_seq, a.next_seq + p.count - 1);
        let mut plan = Plan {
            birth,
            first,
            last,
            ts: a.last_ts.max(self.core.time.wall()),
            reserve: None,
            eviction: None,
            sizes: None,
            hints: p.part.as_ref().map_or_else(Hints::default, |part| part.hints.clone()),
            config,
        };
        let now = self.core.time.mono_ms();
        let class = plan.config.durability;
        plan.reserve = if birth {
            Some(Reserve::first(class, p.count, now))
        } else {
            a.reserve.next(class, last, now)
        };
        if plan.config.cap_records == 0 && plan.config.cap_bytes == 0 {
            a.planned = None;
            return Ok(Ok(plan));
        }
        self.caps(a, plan)
    }

    /// Fits the write into the topic's caps.
    fn caps(&self, a: &mut AppendState, mut plan: Plan) -> Result<std::result::Result<Plan, Need>> {
        let p = &*self.p;
        let caps = retention::Caps::of(&plan.config);
        let sizes = p.sizes();
        let state = self.topic.state.read();
        let planned = a.planned.get_or_insert_default();
        let outlook = planned.outlook(&state);
        if plan.config.discard == Discard::Reject && p.part.is_some() {
            // Checked when the transaction was decided.
        } else if plan.config.discard == Discard::Reject {
            if let Some((what, got, max)) = caps.over(p.count, p.bytes) {
                return Err(Error::RecordTooLarge { index: 0, what, got, max });
            }
            if let Some((what, _, max)) =
                caps.over(outlook.count + p.count, outlook.bytes + p.bytes)
            {
                return Err(Error::TopicFull { topic: p.topic.to_string(), what, max });
            }
        } else {
            match retention::evict_to_fit(&state, planned, outlook, (plan.first, &sizes), &caps) {
                Ok(eviction) => plan.eviction = eviction,
                Err(need) => return Ok(Err(need)),
            }
            plan.hints.windows.extend(state.window.clone());
        }
        plan.sizes = Some(sizes);
        Ok(Ok(plan))
    }

    /// Logs the plan. From here on the write happens, or fails and leaves no trace.
    fn stage(&mut self, a: &mut AppendState, plan: Plan, room: Room) -> Result<Decided> {
        let class = self.class(&plan);
        let charge = match class {
            Durability::Ephemeral => Some(self.core.ephemeral.take(self.p.frames().len() as u64)?),
            _ => None,
        };
        self.remember(&plan)?;
        let gaps = std::mem::take(&mut a.unlogged);
        let mut frames = self.control_frames(&plan, &gaps);
        let mut records = std::mem::take(&mut self.p.records);
        let shown = match class {
            Durability::Ephemeral => {
                records.drain(..FRONT);
                Some(records)
            }
            Durability::Memory => {
                let shown = records.get(FRONT..).map(<[u8]>::to_vec);
                frames.records = records;
                shown
            }
            _ => {
                frames.records = records;
                None
            }
        };
        let ticket = if frames.records.is_empty() && frames.head.is_empty() {
            Ok(None)
        } else {
            let flight = Flight {
                core: self.core.clone(),
                topic: self.topic.clone(),
                hints: plan.hints.clone(),
                undo: Undo::Write {
                    first: plan.first,
                    last: plan.last,
                    key: self.p.key.map(|k| k.hash),
                    round: a.round,
                    shown: shown.is_some(),
                    logged: class != Durability::Ephemeral,
                    gaps: gaps.clone(),
                },
                birth: plan.birth,
                removed: Removed::default(),
            };
            let level = match class {
                _ if self.p.part.is_some() => Level::Synced,
                // Nobody waits for it: the shard's thread sees to it.
                Durability::Memory if !plan.birth && !self.p.sync => Level::Staged,
                _ => apply_level(class),
            };
            let order = Order { ts: plan.ts, level, frees_space: false };
            flight.stage(a, frames, order, room).map(|(t, _)| Some(t))
        };
        let ticket = match ticket {
            Ok(ticket) => ticket,
            Err(e) => {
                a.unlogged = gaps;
                self.forget(&plan);
                return Err(e);
            }
        };
        self.staged(a, plan, ticket, shown.map(|s| (s, charge)))
    }

    /// How the records are logged and shown: those of a transaction are logged in every class, and
    /// shown when they are.
    fn class(&self, plan: &Plan) -> Durability {
        match &self.p.part {
            Some(_) => plan.config.durability.max(Durability::Disk),
            None => plan.config.durability,
        }
    }

    /// Puts the key into the topic, before anything can be applied.
    fn remember(&self, plan: &Plan) -> Result<()> {
        let Some(key) = self.p.key else { return Ok(()) };
        let mut state = self.topic.state.write();
        let dedupe = state.dedupe.get_or_insert_with(|| Box::new(Dedupe::new(&self.core.keys)));
        dedupe.reserve().inspect_err(|_| self.core.metrics.throttled.add(1))?;
        dedupe.insert(
            key.hash,
            Remembered {
                request: key.request,
                first_seq: plan.first,
                last_seq: plan.last,
                expires_at: self.expires_at(plan),
                ticket: None,
                settled: false,
                logged: false,
            },
        );
        Ok(())
    }

    fn forget(&self, plan: &Plan) {
        if let Some(key) = self.p.key
            && let Some(dedupe) = &mut self.topic.state.write().dedupe
        {
            dedupe.forget(key.hash, plan.first);
        }
    }

    fn expires_at(&self, plan: &Plan) -> u64 {
        if self.p.held {
            return HELD;
        }
        self.core.time.steady().saturating_add(plan.config.idempotency_window_ms)
    }

    /// The control frames of the write. An `ephemeral` one logs only what outlives its records.
    fn control_frames(&self, plan: &Plan, gaps: &[Gap]) -> Frames {
        let id = self.topic.id();
        let mut f = Frames::default();
        let reserved_to = plan.reserve.map_or(0, |r| r.to);
        if plan.birth {
            TopicCreate {
                name: self.topic.name.to_string(),
                epoch: self.topic.key.epoch,
                config: plan.config.encode(),
                reserved_to,
            }
            .encode_frame(&mut f.head, id, 0, 0);
        } else if reserved_to > 0 {
            HeadWatermark { reserved_to, lowered: false }.encode_frame(&mut f.head, id, 0, 0);
        }
        encode_gaps(&mut f.head, id, gaps);
        if let Some(forward) = &self.p.forward {
            forward.encode(&mut f.head, plan.first);
        }
        if let Some(part) = &self.p.part {
            part.encode(&mut f.head, self.topic, plan.first, plan.first - 1);
        }
        if self.class(plan) == Durability::Ephemeral {
            let floor = plan.eviction.map_or(0, |e| e.floor);
            if self.topic.state.read().logged_below(floor) {
                // I11: records of a class before must not come back.
                let (evict_floor, reason) = (floor, Evicted::CAP.code());
                EvictWatermark { evict_floor, earliest_seq: evict_floor, reason }.encode_frame(
                    &mut f.head,
                    id,
                    0,
                    0,
                );
            }
            return f;
        }
        if let Some(key) = self.p.key {
            Idempotency {
                key: key.hash,
                request: key.request,
                first_seq: plan.first,
                last_seq: plan.last,
                expires_at: self.expires_at(plan),
            }
            .encode_frame(&mut f.tail, id, 0, 0);
        }
        if let Some(e) = &plan.eviction {
            let (evict_floor, reason) = (e.floor, Evicted::CAP.code());
            EvictWatermark { evict_floor, earliest_seq: evict_floor, reason }.encode_frame(
                &mut f.tail,
                id,
                0,
                0,
            );
        }
        f
    }

    /// The batch is in the queue: the plan becomes what later writes build on.
    fn staged(
        &self,
        a: &mut AppendState,
        plan: Plan,
        ticket: Option<Ticket>,
        shown: Option<(Vec<u8>, Option<crate::quota::Charge>)>,
    ) -> Result<Decided> {
        assert!(plan.first == a.next_seq, "I2: seqs were given out of turn");
        a.next_seq = plan.last + 1;
        a.last_ts = a.last_ts.max(plan.ts);
        a.logged = true;
        a.config = plan.config.clone();
        if let Some(reserve) = plan.reserve {
            a.reserve = reserve;
            if plan.birth {
                a.synced_to = reserve.to;
            }
        }
        let eviction = plan.eviction.unwrap_or_default();
        if let (Some(planned), Some(sizes)) = (&mut a.planned, plan.sizes) {
            planned.write(plan.first, sizes, eviction.floor, eviction.gone);
        }
        if self.p.key.is_some() || shown.is_some() {
            let mut state = self.topic.state.write();
            if let (Some(key), Some(dedupe)) = (self.p.key, &mut state.dedupe) {
                let settled = plan.config.durability == Durability::Ephemeral;
                dedupe.staged(key.hash, plan.first, ticket, settled);
            }
            if let Some((records, charge)) = shown {
                // A creation is applied later; its records are shown as its config says.
                state.config = plan.config.clone();
                let loader = Loader {
                    segs: &self.core.segments,
                    key: self.topic.key,
                    hints: Some(&plan.hints),
                    reads: Some(&self.core.metrics.apply_reads),
                };
                let floor = eviction.floor;
                let shown = Shown { records, first: plan.first, ts: plan.ts, charge, floor };
                let before = state.weight();
                let gone = state.show(shown, &loader)?;
                self.core.weighed(before, state.weight());
                self.core.metrics.append_records.add(self.p.count);
                self.core.metrics.evicted_records.add(gone);
                let head = state.visible();
                drop(state);
                self.topic.gate.publish(head);
            }
        }
        self.core.metrics.append_bytes.add(self.p.bytes);
        let level = self.wait_level(a, plan.last, plan.birth);
        let mut answer = self.answer(a, plan.first, plan.last);
        answer.created = plan.birth;
        let renewed = plan.reserve.is_some() && !plan.birth;
        // Without a batch of its own, a write that must wait waits for the newest one.
        let ticket = ticket.or(a.last.map(|(t, _)| t).filter(|_| level > Level::Staged));
        Ok(Decided { answer, ticket, level, reserved: a.reserve.to, renewed })
    }
}

impl Topic {
    /// Everything up to a reservation may be shown: it is synced.
    pub(super) fn reservation_synced(&self, to: u64) {
        {
            let mut a = self.append.lock();
            if a.config.durability == Durability::Fsync || to <= a.synced_to {
                return;
            }
            a.synced_to = to;
        }
        let head = {
            let mut state = self.state.write();
            state.reserved_synced = state.reserved_synced.max(to);
            state.visible()
        };
        if self.life() != Life::Dead {
            self.gate.publish(head);
        }
    }
}
