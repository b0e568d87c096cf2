//! The topics that wait for a worker: five bands, served by weight, oldest first within a band.
//!
//! Pure: time comes in as an argument, nothing blocks.

use std::collections::BTreeMap;

use crate::types::priority;

/// Bands, the highest last.
pub(crate) const BANDS: usize = 5;
/// Services of a band in one round.
const WEIGHTS: [u32; BANDS] = [1, 1, 2, 4, 8];
/// Interval between two aging passes, ns.
const AGING_NS: u64 = 50_000_000;
/// Topics that an aging pass checks between two services.
const SLICE: usize = 2048;

/// The band of an effective priority.
pub(crate) fn band(p: i32) -> usize {
    match p {
        i32::MIN..0 => 0,
        0..250 => 1,
        250..500 => 2,
        500..750 => 3,
        _ => 4,
    }
}

/// An item of the ready set.
pub(crate) trait Schedule {
    /// The priority without the bonus for waiting.
    fn base(&self, now_ns: u64) -> i32;
    /// Whether the item drops one band while the engine is under strain.
    fn yields(&self) -> bool {
        false
    }
}

/// A topic that waits.
#[derive(Debug)]
pub(crate) struct Waiting<T> {
    pub item: T,
    /// When the topic became dirty, monotonic ns; only a service resets it.
    pub since: u64,
    /// Time of the wait that the topic was coalescing, ns; it does not count as latency.
    pub coalesced_ns: u64,
}

/// Order within a band: when the topic became dirty, then when it was queued.
type Key = (u64, u64);

/// The ready set. The caller ensures that no item is in it twice.
#[derive(Debug)]
pub(crate) struct Ready<T> {
    bands: [BTreeMap<Key, Waiting<T>>; BANDS],
    credit: [u32; BANDS],
    pushed: u64,
    aged: u64,
    /// Position of the aging pass: a band, and the first key to check.
    aging: Option<(usize, Key)>,
}

impl<T> Default for Ready<T> {
    fn default() -> Self {
        let bands = Default::default();
        Self { bands, credit: [0; BANDS], pushed: 0, aged: 0, aging: None }
    }
}

impl<T: Schedule> Ready<T> {
    /// Number of waiting topics.
    pub(crate) fn len(&self) -> usize {
        self.bands.iter().map(BTreeMap::len).sum()
    }

    /// Number of waiting topics by band.
    #[cfg(test)]
    pub(crate) fn depths(&self) -> [usize; BANDS] {
        std::array::from_fn(|b| self.bands[b].len())
    }

    /// Topics that wait in the lowest band.
    pub(crate) fn lowest(&self) -> impl Iterator<Item = &Waiting<T>> {
        self.bands[0].values()
    }

    /// Adds an item that became dirty at `since`.
    pub(crate) fn push(&mut self, item: T, since: u64, now: u64, strained: bool) {
        self.put(Waiting { item, since, coalesced_ns: 0 }, now, strained);
    }

    /// Adds an item that has waited already.
    pub(crate) fn put(&mut self, waiting: Waiting<T>, now: u64, strained: bool) {
        let b = self.place(&waiting.item, waiting.since, now, strained);
        self.pushed += 1;
        self.bands[b].insert((waiting.since, self.pushed), waiting);
    }

    fn place(&self, item: &T, since: u64, now: u64, strained: bool) -> usize {
        let waited = now.saturating_sub(since) / 1_000_000;
        let b = band(item.base(now).saturating_add(priority::age(waited)));
        // An item that yields never drops into the lowest band, which gets no credit under strain.
        if strained && item.yields() && b > 1 { b - 1 } else { b }
    }

    /// Removes and returns the next item to serve. Under strain the lowest band gets no credit.
    pub(crate) fn pop(&mut self, now: u64, strained: bool) -> Option<Waiting<T>> {
        loop {
            self.age(now, strained);
            let next = self.take(strained);
            if next.is_some() || self.aging.is_none() {
                return next;
            }
        }
    }

    fn take(&mut self, strained: bool) -> Option<Waiting<T>> {
        let lowest = usize::from(strained);
        if strained {
            self.credit[0] = 0;
        }
        for _round in 0..2 {
            for b in (lowest..BANDS).rev() {
                if self.credit[b] > 0
                    && let Some((_, w)) = self.bands[b].pop_first()
                {
                    self.credit[b] -= 1;
                    return Some(w);
                }
            }
            // No band with items has credit left: the next round begins.
            self.credit = WEIGHTS;
        }
        None
    }

    /// Moves items that have waited long enough to a higher band. A call checks a bounded number of
    /// items, because callers that mark a topic wait for the lock of the set.
    fn age(&mut self, now: u64, strained: bool) {
        if self.aging.is_none() && now.saturating_sub(self.aged) >= AGING_NS {
            self.aged = now;
            // From the top band down, so that a raised item is not checked again.
            self.aging = Some((BANDS - 2, (0, 0)));
        }
        let mut left = SLICE;
        while let Some((b, from)) = self.aging {
            let (mut risen, mut last) = (Vec::new(), None);
            for (key, w) in self.bands[b].range(from..).take(left) {
                let to = self.place(&w.item, w.since, now, strained);
                risen.extend((to > b).then_some((*key, to)));
                (last, left) = (Some(*key), left - 1);
            }
            for (key, to) in risen {
                if let Some(w) = self.bands[b].remove(&key) {
                    self.bands[to].insert(key, w);
                }
            }
            match last.filter(|_| left == 0) {
                Some((since, n)) => {
                    self.aging = Some((b, (since, n + 1)));
                    return;
                }
                None => self.aging = b.checked_sub(1).map(|b| (b, (0, 0))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[derive(Debug, Clone, Copy, PartialEq)]
    struct Topic {
        id: u32,
        priority: i32,
        router: bool,
    }

    impl Schedule for Topic {
        fn base(&self, _: u64) -> i32 {
            self.priority
        }
        fn yields(&self) -> bool {
            self.router
        }
    }

    fn topic(id: u32, priority: i32) -> Topic {
        Topic { id, priority, router: false }
    }

    #[test]
    fn full_bands_are_served_by_weight_within_one_round() {
        let mut r = Ready::default();
        for (i, p) in [-1000, 0, 250, 500, 750].into_iter().enumerate() {
            for k in 0..100 {
                r.push(topic(i as u32 * 1000 + k, p), u64::from(k), 0, false);
            }
        }
        for round in 0..5 {
            let mut served = [0; BANDS];
            for _ in 0..16 {
                let w = r.pop(1, false).unwrap();
                served[band(w.item.priority)] += 1;
                // The band stays full.
                r.push(w.item, 1, 1, false);
            }
            assert_eq!(served, [1, 1, 2, 4, 8], "round {round}");
        }
    }

    #[test]
    fn an_empty_band_gives_its_share_away() {
        let mut r = Ready::default();
        for k in 0..50 {
            r.push(topic(k, -5), 0, 0, false);
            r.push(topic(100 + k, 10), 0, 0, false);
        }
        let low = (0..40).filter(|_| r.pop(0, false).unwrap().item.priority < 0).count();
        assert_eq!(low, 20);
    }

    #[test]
    fn oldest_first_within_a_band() {
        let mut r = Ready::default();
        for (id, since) in [(1, 30), (2, 10), (3, 20), (4, 10)] {
            r.push(topic(id, 0), since, 30, false);
        }
        let order: Vec<_> = (0..4).map(|_| r.pop(30, false).unwrap().item.id).collect();
        assert_eq!(order, [2, 4, 3, 1]);
    }

    #[test]
    fn whoever_waits_ten_seconds_has_credit_whatever_the_pressure() {
        for (priority, router) in [(-1000, false), (-1000, true), (-250, false), (-250, true)] {
            let mut r = Ready::default();
            r.push(Topic { id: 7, priority, router }, 0, 0, true);
            // Others that always come first keep the workers busy.
            let mut served_at = None;
            for ms in (0..12_000u64).step_by(5) {
                let now = ms * 1_000_000;
                while r.len() < 40 {
                    r.push(topic(1, 1000), now, now, true);
                }
                if ms >= 10_000 && served_at.is_none() {
                    r.age(now, true);
                    let b = r.bands.iter().position(|q| q.values().any(|w| w.item.id == 7));
                    if let Some(b) = b {
                        assert!(b >= 1, "{priority}: band {b} after 10 s");
                    }
                }
                if r.pop(now, true).unwrap().item.id == 7 {
                    served_at = Some(ms);
                    break;
                }
            }
            // A round of 16 services of 5 ms.
            let at = served_at.unwrap();
            assert!(at <= 10_000 + 50 + 80, "{priority}: served at {at} ms");
        }
        for p in (-1000..=1000).step_by(7) {
            let aged = p + priority::age(10_000);
            assert!(band(aged) >= 1);
            assert!(p < -250 || band(aged) == 4);
        }
    }

    #[test]
    fn under_strain_the_lowest_band_pauses_and_routers_yield() {
        let mut r = Ready::default();
        r.push(topic(1, -10), 0, 0, true);
        assert!(r.pop(0, true).is_none());
        assert_eq!(r.pop(0, false).unwrap().item.id, 1);
        r.push(Topic { id: 2, priority: 500, router: true }, 0, 0, true);
        assert_eq!(r.depths(), [0, 0, 1, 0, 0]);
        r.push(Topic { id: 3, priority: 10, router: true }, 0, 0, true);
        assert_eq!(r.depths(), [0, 1, 1, 0, 0]);
    }

    #[test]
    fn many_age_in_slices_and_all_of_them_in_order() {
        const N: u32 = 10_000;
        let mut r = Ready::default();
        for id in 0..N {
            r.push(topic(id, -10), u64::from(id), 0, true);
        }
        assert!(r.pop(0, true).is_none(), "the lowest band has no credit");
        // A little later all of them are served, though one slice does not see them all.
        let now = SECOND / 5;
        for id in 0..N {
            assert_eq!(r.pop(now, true).unwrap().item.id, id);
            let waiting: usize = r.depths().iter().sum();
            assert_eq!(waiting, (N - id - 1) as usize);
        }
        // What was not looked at yet when others are served is looked at later.
        for id in 0..N {
            r.push(topic(id, -10), now + u64::from(id), now, false);
        }
        r.push(topic(N, 900), now, now, false);
        assert_eq!(r.pop(now, false).unwrap().item.id, N);
        let mut pops = 0;
        while r.depths()[0] > 0 && pops < 50 {
            r.pop(now + SECOND, true).unwrap();
            pops += 1;
        }
        assert!((2..=6).contains(&pops), "{pops} slices");
    }

    #[test]
    fn a_hundred_thousand_wait_once_each() {
        let mut r = Ready::default();
        for id in 0..100_000u32 {
            r.push(topic(id, id as i32 % 2001 - 1000), u64::from(id), 0, false);
        }
        let mut now = 0;
        let mut seen = vec![false; 100_000];
        while let Some(w) = r.pop(now, false) {
            now += SECOND / 10_000;
            assert!(!std::mem::replace(&mut seen[w.item.id as usize], true));
            assert!(r.len() < 100_000);
        }
        assert!(seen.into_iter().all(|s| s));
    }
}
