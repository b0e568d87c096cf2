//! Decides a write under the append lock: repeats, conditions, caps, seqs, the reservation.

use std::sync::Arc;

use topics_storage::wal::Level;

use super::admit::Admission;
use super::append_state::{AppendState, Decided, Halt};
use super::prepare::Prepared;
use super::reserve::Reserve;
use crate::topic::events::Ctx;
use crate::topic::load::Hints;
use crate::topic::load::Need;
use crate::topic::retention::{self, Eviction};
use crate::topic::{Life, Topic};
use crate::types::api::{Appended, Durability};
use crate::types::config::{Discard, TopicConfig, TopicType};
use crate::types::error::{Error, Result};

/// The decision of a write, under the append lock.
pub(crate) struct Decision<'a> {
    pub ctx: &'a Arc<Ctx>,
    pub topic: &'a Arc<Topic>,
    pub p: &'a mut Prepared,
}

/// The plan of a write.
pub(crate) struct Plan {
    pub(crate) config: Arc<TopicConfig>,
    pub(crate) creation: bool,
    pub(crate) first: u64,
    pub(crate) last: u64,
    pub(crate) ts: u64,
    pub(crate) reserve: Option<Reserve>,
    pub(crate) eviction: Option<Eviction>,
    pub(crate) sizes: Option<Vec<u32>>,
    pub(crate) hints: Hints,
}

impl Decision<'_> {
    /// Decides and stages the write. The inner `Err`: the caller must read or wait first.
    pub(crate) fn run(
        &mut self,
        a: &mut Admission<'_>,
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
        self.stage(a, plan).map(Ok)
    }

    /// The answer to an earlier call with the same key.
    fn repeat(&self, a: &AppendState) -> Result<Option<Decided>> {
        let Some(key) = self.p.key else { return Ok(None) };
        let mut state = self.topic.state.write();
        let Some(dedupe) = &mut state.dedupe else { return Ok(None) };
        dedupe.expire(self.ctx.base().time.steady());
        let Some(r) = dedupe.get(key.hash).copied() else { return Ok(None) };
        drop(state);
        if r.request != key.request {
            return Err(Error::IdempotencyMismatch { topic: self.p.topic.to_string() });
        }
        self.ctx.base().metrics.dedupe_hits.add(1);
        let level = self.wait_level(a, r.last_seq, false);
        // With `sync`, every record acked before must be durable: the newest batch covers them.
        let ticket = if self.p.sync { a.last.map(|(t, _)| t) } else { r.ticket };
        let mut answer = self.answer(a, r.first_seq, r.last_seq);
        answer.head_seq = a.head().max(r.last_seq);
        answer.deduped = true;
        Ok(Some(Decided { answer, ticket, level, reserved: r.last_seq, renewed: false }))
    }

    /// Waits once if the expected head is below a staged write that readers do not see yet: that write
    /// may fail. A visible head above the expected one is final, so there is no second wait.
    fn contended(&mut self, a: &AppendState) -> Option<Halt> {
        let expected = self.p.expect_head.filter(|e| *e < a.head() && !self.p.waited)?;
        let (ticket, applied) = a.last?;
        if expected < self.topic.gate.head() {
            return None;
        }
        self.p.waited = true;
        // Records above the synced reservation are shown when the reservation is synced.
        let shown = self.wait_level(a, a.head(), false);
        Some(Halt::Until(ticket, applied.max(shown)))
    }

    pub(crate) fn answer(&self, a: &AppendState, first: u64, last: u64) -> Appended {
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

    /// The level that the caller waits for.
    pub(crate) fn wait_level(&self, a: &AppendState, last: u64, creation: bool) -> Level {
        let class = a.config.durability;
        let reserved = class == Durability::Fsync || creation || last <= a.synced_to;
        match class {
            _ if self.p.sync || class == Durability::Fsync || !reserved => Level::Synced,
            Durability::Disk => Level::Written,
            // A creation is shown when it is written, with the records that were appended meanwhile.
            _ if creation || self.topic.life() != Life::Live => Level::Written,
            _ => Level::Staged,
        }
    }

    /// Checks the conditions and plans seqs, reservation and eviction; changes nothing.
    pub(crate) fn plan(&mut self, a: &mut AppendState) -> Result<std::result::Result<Plan, Need>> {
        let p = &*self.p;
        let creation = !a.logged;
        let config = match &p.config {
            _ if creation => {
                let patch = p.config.as_deref().cloned().unwrap_or_default();
                self.ctx.base().config(TopicConfig::created(
                    &patch,
                    self.ctx.base().options.default_durability,
                ))
            }
            Some(patch) => {
                if let Some((field, actual, wanted)) = patch.conflict(&a.config) {
                    let (topic, actual, wanted) =
                        (p.topic.to_string(), actual.into(), wanted.into());
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
            creation,
            first,
            last,
            ts: a.last_ts.max(self.ctx.base().time.steady()),
            reserve: None,
            eviction: None,
            sizes: None,
            hints: p.part.as_ref().map_or_else(Hints::default, |part| part.hints.clone()),
            config,
        };
        let now = self.ctx.base().time.mono_ms();
        let class = plan.config.durability;
        plan.reserve = if creation {
            Some(Reserve::first(class, p.count, now))
        } else {
            a.reserve.next(class, last, now)
        };
        if plan.config.cap_records == 0 && plan.config.cap_bytes == 0 {
            a.pending_writes = None;
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
        let pending_writes = a.pending_writes.get_or_insert_default();
        let projected_usage = pending_writes.projected_usage(&state);
        if plan.config.discard == Discard::Reject && p.part.is_some() {
            // The transaction checked the caps when it was decided.
        } else if plan.config.discard == Discard::Reject {
            if let Some((what, got, max)) = caps.over(p.count, p.bytes) {
                let unit = if what == "cap_records" { "records" } else { "bytes" };
                let topic = p.topic.to_string();
                return Err(Error::WriteOverCap { topic, what, unit, got, max });
            }
            if let Some((what, _, max)) =
                caps.over(projected_usage.count + p.count, projected_usage.bytes + p.bytes)
            {
                return Err(Error::TopicFull { topic: p.topic.to_string(), what, max });
            }
        } else {
            match retention::evict_to_fit(
                &state,
                pending_writes,
                projected_usage,
                (plan.first, &sizes),
                &caps,
            ) {
                Ok(eviction) => plan.eviction = eviction,
                Err(need) => return Ok(Err(need)),
            }
            plan.hints.windows.extend(state.retention.windows.iter().cloned());
        }
        plan.sizes = Some(sizes);
        Ok(Ok(plan))
    }
}
