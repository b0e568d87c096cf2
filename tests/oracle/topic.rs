//! One incarnation of a topic: facts, and the events that each of them survives.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::{DeleteRequest, Discard, Durability, TopicConfig};

use super::log::Rec;

/// The worst event that a fact survives, and the worst event that happened: a fact holds if its
/// `Keep` is at least the event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Keep {
    /// The engine keeps running.
    Live,
    /// The process is killed, the machine keeps running.
    Kill,
    /// Any crash.
    Power,
}

impl Keep {
    /// The guarantee of an ack with this class.
    pub fn of(class: Durability) -> Self {
        match class {
            Durability::Ephemeral | Durability::Memory => Self::Live,
            Durability::Disk => Self::Kill,
            Durability::Fsync => Self::Power,
        }
    }
}

/// Why a record is no longer readable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    Deleted,
    Evicted,
    /// Its own TTL has passed; it is back if the clock is set back.
    Expired,
    /// An earlier recovery served without it.
    Gone,
}

/// The removal of a record.
#[derive(Clone, Copy, Debug)]
pub struct Mark {
    pub why: Cause,
    pub keep: Keep,
    pub at: usize,
}

/// An acked or observed record.
#[derive(Clone, Debug)]
pub struct Slot {
    pub attempt: usize,
    pub index: usize,
    /// Commit time, exact after it was observed.
    pub ts: (u64, u64),
    pub class: Durability,
    pub keep: Keep,
    /// The event that made it a fact.
    pub at: usize,
    pub mark: Option<Mark>,
}

/// An acked delete, kept for the attempts that were undetermined at that time.
#[derive(Clone, Debug)]
pub struct Del {
    pub req: DeleteRequest,
    pub begun: usize,
    pub ended: usize,
}

/// A config that was, or is, in force.
#[derive(Clone, Debug)]
pub struct Config {
    pub config: TopicConfig,
    pub keep: Keep,
    pub at: usize,
}

/// A topic with one id.
#[derive(Clone, Debug)]
pub struct Inc {
    pub id: u64,
    pub epoch: Option<u64>,
    pub keep: Keep,
    pub at: usize,
    pub slots: BTreeMap<u64, Slot>,
    pub dels: Vec<Del>,
    pub configs: Vec<Config>,
    /// The topic delete that ended it.
    pub dropped: Option<(Keep, usize)>,
    /// Highest seq acked or shown as head.
    pub head: u64,
    /// A cap may have evicted up to here, given the undetermined calls.
    pub may_floor: u64,
    /// Ranges that a recovery declared lost.
    pub gaps: Vec<(u64, u64)>,
    /// Records up to here may have expired under an earlier config.
    pub lapsed: u64,
    /// The head that the last recovery served: silent losses below were judged then.
    pub judged: u64,
    /// The lowest class of the topic up to then.
    pub lowest: Durability,
}

impl Inc {
    pub fn new(id: u64, config: TopicConfig, keep: Keep, at: usize) -> Self {
        let configs = vec![Config { config, keep, at }];
        Self {
            id,
            epoch: None,
            keep,
            at,
            slots: BTreeMap::new(),
            dels: Vec::new(),
            configs,
            dropped: None,
            head: 0,
            may_floor: 0,
            gaps: Vec::new(),
            lapsed: 0,
            judged: 0,
            lowest: Durability::Fsync,
        }
    }

    /// The config is about to change: expired records stay expired.
    pub fn lapse(&mut self, now: u64) {
        let ttl = self.config().ttl_ms;
        let old = self.slots.iter().rev().find(|(_, s)| ttl > 0 && now > s.ts.0 + ttl);
        self.lapsed = self.lapsed.max(old.map_or(0, |(seq, _)| *seq));
    }

    /// The lowest class that it ever had.
    pub fn lowest_class(&self) -> Durability {
        self.configs.iter().map(|c| c.config.durability).fold(self.lowest, Durability::min)
    }

    /// The class of writes that started after these events; `None`: the topic did not exist.
    pub fn class_at(&self, events: usize) -> Option<Durability> {
        let known = self.configs.iter().rev().find(|c| c.at <= events)?;
        Some(known.config.durability)
    }

    /// The current config, as acked.
    pub fn config(&self) -> &TopicConfig {
        &self.configs[self.configs.len() - 1].config
    }

    /// The configs that may be in force after the worst event.
    pub fn candidates(&self, kind: Keep) -> impl Iterator<Item = &TopicConfig> {
        let first = self.configs.iter().rposition(|c| c.keep >= kind).unwrap_or(0);
        self.configs[first..].iter().map(|c| &c.config)
    }

    /// Whether it is certainly deleted after this event.
    pub fn surely_dropped(&self, kind: Keep) -> bool {
        self.dropped.is_some_and(|(keep, _)| keep >= kind)
    }

    /// Raises all facts before `before` to survive any crash. Unlogged facts are never raised;
    /// `memory` facts only after an explicit sync. If a group fails (`troubled`), the evictions of
    /// its unlogged acked writes are undone with it.
    pub fn raise(&mut self, before: usize, asked: bool, troubled: bool) {
        let lift = |keep: &mut Keep, at: usize, logged: bool| {
            if at < before && (*keep == Keep::Kill || (asked && logged)) {
                *keep = Keep::Power;
            }
        };
        lift(&mut self.keep, self.at, true);
        for slot in self.slots.values_mut() {
            lift(&mut slot.keep, slot.at, slot.class != Durability::Ephemeral);
            let given_up = |m: &Mark| troubled && m.why == Cause::Evicted && m.keep == Keep::Live;
            if let Some(mark) = slot.mark.as_mut().filter(|m| !given_up(m)) {
                lift(&mut mark.keep, mark.at, slot.class != Durability::Ephemeral);
            }
        }
        for config in &mut self.configs {
            lift(&mut config.keep, config.at, true);
        }
        if let Some((keep, at)) = &mut self.dropped {
            lift(keep, *at, true);
        }
    }

    /// Marks the records that a delete removed.
    pub fn delete(&mut self, selected: impl Fn(u64, &Slot) -> bool, keep: Keep, at: usize) -> u64 {
        let mut n = 0;
        for (&seq, slot) in &mut self.slots {
            if slot.mark.is_none() && selected(seq, slot) {
                slot.mark = Some(Mark { why: Cause::Deleted, keep, at });
                n += 1;
            }
        }
        n
    }

    /// Applies the caps of `config` to the records up to `last`: evicts the oldest live ones.
    pub fn evict(
        &mut self,
        config: &TopicConfig,
        last: u64,
        rec: impl Fn(&Slot) -> Arc<[Rec]>,
        keep: Keep,
        at: usize,
    ) {
        for seq in self.over_cap(config, last, |s| s.mark.is_none(), rec, (0, 0)) {
            if let Some(slot) = self.slots.get_mut(&seq) {
                slot.mark = Some(Mark { why: Cause::Evicted, keep, at });
            }
        }
    }

    /// The seqs, oldest first, to evict so that the live records up to `last`, and this many more
    /// (records, bytes), fit.
    pub fn over_cap(
        &self,
        config: &TopicConfig,
        last: u64,
        live: impl Fn(&Slot) -> bool,
        rec: impl Fn(&Slot) -> Arc<[Rec]>,
        more: (u64, u64),
    ) -> Vec<u64> {
        if config.discard != Discard::Old || (config.cap_records == 0 && config.cap_bytes == 0) {
            return Vec::new();
        }
        let live: Vec<(u64, u64)> = self
            .slots
            .range(..=last)
            .filter(|(_, s)| live(s))
            .map(|(&seq, s)| (seq, rec(s)[s.index].bytes()))
            .collect();
        let mut count = live.len() as u64 + more.0;
        let mut bytes = live.iter().map(|l| l.1).sum::<u64>() + more.1;
        let over = |count: u64, bytes: u64| {
            (config.cap_records > 0 && count > config.cap_records)
                || (config.cap_bytes > 0 && bytes > config.cap_bytes)
        };
        let mut gone = Vec::new();
        for (seq, size) in live {
            if !over(count, bytes) {
                break;
            }
            count -= 1;
            bytes -= size;
            gone.push(seq);
        }
        gone
    }
}
