//! In which order jobs that may be claimed are: lanes with their turns, groups.

use std::collections::{BTreeSet, HashMap};

/// Lanes are 0…9.
pub(crate) const LANES: usize = 10;
/// A lane that was passed over for this long goes first, once.
pub(crate) const STARVATION_MS: u64 = 10_000;

/// Jobs that may be claimed, by lane, and since when a lane is passed over.
#[derive(Debug, Default)]
pub(crate) struct Lanes {
    ready: [BTreeSet<u64>; LANES],
    passed: [Option<u64>; LANES],
}

impl Lanes {
    pub fn insert(&mut self, lane: u8, seq: u64) {
        self.ready[slot(lane)].insert(seq);
    }

    pub fn remove(&mut self, lane: u8, seq: u64) {
        self.ready[slot(lane)].remove(&seq);
    }

    /// The first job of a lane.
    pub fn first(&self, lane: u8) -> Option<u64> {
        self.ready[slot(lane)].first().copied()
    }

    pub fn iter(&self, lane: u8) -> impl Iterator<Item = u64> + '_ {
        self.ready[slot(lane)].iter().copied()
    }

    /// The lane whose turn it is: one that was passed over for too long, the longest first, else
    /// the lowest. `more` says which lanes have jobs besides those in here.
    pub fn next_lane(&self, now: u64, more: impl Fn(u8) -> bool) -> Option<u8> {
        let has = |lane: u8| !self.ready[slot(lane)].is_empty() || more(lane);
        let waited = |lane: u8| {
            self.passed[slot(lane)].filter(|at| now.saturating_sub(*at) >= STARVATION_MS)
        };
        let starved = (0..LANES as u8).filter(|l| has(*l));
        let starved = starved.filter_map(|l| waited(l).map(|at| (at, l))).min();
        starved.map(|(_, l)| l).or_else(|| (0..LANES as u8).find(|l| has(*l)))
    }

    /// A job of this lane was given: lanes above it that have some were passed over.
    pub fn record_take(&mut self, lane: u8, now: u64, more: impl Fn(u8) -> bool) {
        for other in 0..LANES as u8 {
            let at = slot(other);
            if other == lane || (self.ready[at].is_empty() && !more(other)) {
                self.passed[at] = None;
            } else if other > lane {
                self.passed[at].get_or_insert(now);
            }
        }
    }
}

fn slot(lane: u8) -> usize {
    usize::from(lane).min(LANES - 1)
}

/// The jobs of one group: at most one is leased, the next is the one with the lowest seq.
#[derive(Debug, Default)]
pub(crate) struct Group {
    members: BTreeSet<u64>,
    leased: Option<u64>,
    shown: Option<u64>,
}

/// What must change in the lanes: a job that leaves, one that enters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Change {
    pub hide: Option<u64>,
    pub show: Option<u64>,
}

/// Groups by the hash of their name.
#[derive(Debug, Default)]
pub(crate) struct Groups(HashMap<u64, Group>);

impl Groups {
    pub fn join(&mut self, group: u64, seq: u64) {
        self.0.entry(group).or_default().members.insert(seq);
    }

    pub fn leave(&mut self, group: u64, seq: u64) {
        let Some(g) = self.0.get_mut(&group) else { return };
        g.members.remove(&seq);
        if g.leased == Some(seq) {
            g.leased = None;
        }
        if g.members.is_empty() && g.shown.is_none() {
            self.0.remove(&group);
        }
    }

    pub fn lease(&mut self, group: u64, seq: u64) {
        if let Some(g) = self.0.get_mut(&group) {
            g.leased = Some(seq);
        }
    }

    /// The job of the group that is leased or being moved.
    pub fn leased(&self, group: u64) -> Option<u64> {
        self.0.get(&group)?.leased
    }

    /// A job is being moved elsewhere: no other is claimed meanwhile, unless one is leased already.
    pub fn block(&mut self, group: u64, seq: u64) {
        if let Some(g) = self.0.get_mut(&group) {
            g.leased.get_or_insert(seq);
        }
    }

    /// Which of the group's jobs may be claimed now; `waiting` says whether one could be.
    pub fn refresh(&mut self, group: u64, waiting: impl Fn(u64) -> bool) -> Change {
        let Some(g) = self.0.get_mut(&group) else { return Change::default() };
        let head = match g.leased {
            None => g.members.first().copied().filter(|s| waiting(*s)),
            Some(_) => None,
        };
        let change = match (g.shown, head) {
            (old, new) if old == new => Change::default(),
            (old, new) => Change { hide: old, show: new },
        };
        g.shown = head;
        if g.members.is_empty() {
            self.0.remove(&group);
        }
        change
    }
}
