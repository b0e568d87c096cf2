//! The machine against a model that looks at every job every time.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;

use proptest::prelude::*;
use topics_model::queue::{self as model, NewJob, Phase};
use topics_storage::format::record::{Lease, LeaseEvent};
use topics_storage::segment::AttrRow;
use topics_storage::snapshot::ReplayPos;

use super::job::NextJob;
use super::order::{Change, Groups, LANES, Lanes, STARVATION_MS};
use super::tally::Tally;
use super::{Fence, Holder, JobHistory, JobView, Queue, RemovalReason, codec};
use crate::types::clock::Now;

fn holder(node: &[u8], lease_ms: u64) -> Holder {
    Holder { node: node.into(), lease_ms, stream: 0 }
}

/// A queue over a plain set of records.
struct Bench {
    q: Queue,
    log: BTreeMap<u64, AttrRow>,
    next: u64,
    now: Now,
    asked: BTreeMap<u64, usize>,
    /// Everything that was applied, as the log has it.
    events: Vec<Lease>,
}

impl Bench {
    fn new() -> Self {
        let mut q = Queue::default();
        q.begin(7, 1);
        let now = Now { mono: 1_000, wall: 1_000_000 };
        let (log, asked, events) = Default::default();
        Self { q, log, next: 1, now, asked, events }
    }

    fn put(&mut self, lane: u8, group: u64, visible_at: u64) -> u64 {
        let row = AttrRow { seq: self.next, visible_at, expires_at: 0, lane, group };
        self.next += 1;
        self.log.insert(row.seq, row);
        self.q.add_options(&row);
        row.seq
    }

    fn plain(&mut self) -> u64 {
        self.put(5, 0, 0)
    }

    fn plains(&mut self, n: usize) {
        for _ in 0..n {
            self.plain();
        }
    }

    fn next(&mut self) -> Option<NextJob> {
        self.q.sweep(self.now);
        let (log, asked) = (&self.log, &mut self.asked);
        let found: Result<_, Infallible> = self.q.next(self.now, |from| {
            let seq = log.range(from..).next().map(|(s, _)| *s);
            *asked.entry(seq.unwrap_or(0)).or_default() += 1;
            Ok(seq)
        });
        found.unwrap()
    }

    fn claim(&mut self, node: &[u8], lease_ms: u64) -> Option<(u64, u64)> {
        let t = self.next()?;
        let id = self.q.reserve(t.seq, &holder(node, lease_ms), self.now);
        let jobs = vec![(t.seq, id, t.deliveries + 1)];
        self.apply(LeaseEvent::Claim, node, lease_ms, jobs);
        Some((t.seq, id))
    }

    fn apply(&mut self, event: LeaseEvent, node: &[u8], lease_ms: u64, jobs: Vec<(u64, u64, u32)>) {
        let event = Lease::new(event, node, lease_ms, jobs);
        self.q.apply(&event, self.now);
        self.events.push(event);
    }

    /// A job is dead; the log has that its lease ran out.
    fn dead(&mut self, seq: u64) {
        let (last, n) = (self.q.last_lease(seq), self.q.deliveries(seq));
        if last != 0 {
            self.apply(LeaseEvent::Nack, b"", 0, vec![(seq, last, n)]);
        }
    }

    /// The queue of another process: a snapshot of this moment, and the lease events from `from` on,
    /// which it reflects. Options are read before them or, where `late`, after the replay.
    fn replayed(&self, from: usize, late: bool) -> Queue {
        let mut q = match codec::encode(&self.q, true, self.now.mono, 0) {
            Some(bytes) => codec::decode(&bytes, self.now.mono, 0).unwrap(),
            None => Queue::default(),
        };
        let options = |q: &mut Queue| self.log.values().for_each(|row| q.add_options(row));
        if !late {
            options(&mut q);
        }
        for event in &self.events[from..] {
            let mut event = event.clone();
            event.jobs.retain(|(seq, ..)| self.log.contains_key(seq));
            q.apply(&event, self.now);
        }
        q.recovered(self.now, true);
        if late {
            options(&mut q);
        }
        q
    }

    fn nack(&mut self, seq: u64, id: u64, delay: u64) {
        self.fail(seq, id, delay, "");
    }

    fn fail(&mut self, seq: u64, id: u64, delay: u64, error: &str) {
        let deliveries = self.q.deliveries(seq);
        let event = Lease::new(LeaseEvent::Nack, b"n", delay, vec![(seq, id, deliveries)]);
        let event = Lease { error: error.into(), ..event };
        self.q.apply(&event, self.now);
        self.events.push(event);
    }

    fn ack(&mut self, seq: u64) {
        self.log.remove(&seq);
        self.q.forget(seq);
    }

    fn pass(&mut self, ms: u64) {
        (self.now.mono, self.now.wall) = (self.now.mono + ms, self.now.wall + ms);
    }

    fn order(&mut self, n: usize) -> Vec<u64> {
        (0..n).map_while(|_| self.claim(b"n", 1_000_000).map(|c| c.0)).collect()
    }
}

#[test]
fn reclaimed_jobs_go_before_fresh_ones() {
    let mut b = Bench::new();
    b.plains(4);
    let (first, id) = b.claim(b"n", 500).unwrap();
    assert_eq!(first, 1);
    assert_eq!(b.claim(b"n", 9_000).unwrap().0, 2);
    b.pass(500);
    assert_eq!(b.claim(b"m", 9_000).unwrap().0, 1);
    // I6: the fence of the lease that ran out fits nothing any more.
    assert!(!b.q.holds(Fence { node: b"n", seq: 1, id: Some(id) }));
    assert!(!b.q.holds(Fence { node: b"n", seq: 1, id: None }));
    assert!(b.q.holds(Fence { node: b"m", seq: 1, id: None }));
    assert_eq!(b.claim(b"n", 9_000).unwrap().0, 3);
}

#[test]
fn a_reservation_is_nobodys_until_it_is_applied() {
    let mut b = Bench::new();
    b.plain();
    let t = b.next().unwrap();
    let id = b.q.reserve(t.seq, &holder(b"n", 100), b.now);
    assert!(!b.q.holds(Fence { node: b"n", seq: 1, id: Some(id) }));
    b.pass(10_000);
    assert_eq!(b.next(), None, "I6: a reserved job is leased to no other worker");
    b.q.undo(1);
    assert_eq!(b.next(), Some(NextJob { seq: 1, deliveries: 0 }), "an undone claim is no delivery");
}

#[test]
fn a_job_that_leaves_does_not_run_out() {
    let mut b = Bench::new();
    b.plain();
    let (seq, id) = b.claim(b"n", 100).unwrap();
    b.q.suspend_expiry(seq);
    assert!(!b.q.holds(Fence { node: b"n", seq, id: Some(id) }), "it is acked once");
    b.pass(1_000);
    assert_eq!(b.next(), None);
    b.q.resume_expiry(seq);
    assert_eq!(b.next(), Some(NextJob { seq, deliveries: 1 }));
}

#[test]
fn lanes_and_the_turn_of_a_lane_that_waited() {
    let mut b = Bench::new();
    let (low, plain, high) = (b.put(9, 0, 0), b.plain(), b.put(0, 0, 0));
    assert_eq!(b.order(3), [high, plain, low]);
    let waiting = b.put(9, 0, 0);
    let urgent: Vec<u64> = (0..4).map(|_| b.put(1, 0, 0)).collect();
    assert_eq!(b.order(1), urgent[..1]);
    b.pass(STARVATION_MS - 1);
    assert_eq!(b.order(1), urgent[1..2]);
    b.pass(1);
    assert_eq!(b.order(3), [waiting, urgent[2], urgent[3]]);
}

#[test]
fn a_lane_goes_first_only_once() {
    let mut b = Bench::new();
    let low = [b.put(9, 0, 0), b.put(9, 0, 0)];
    let urgent: Vec<u64> = (0..4).map(|_| b.put(1, 0, 0)).collect();
    assert_eq!(b.order(1), urgent[..1]);
    b.pass(STARVATION_MS);
    assert_eq!(b.order(5), [low[0], urgent[1], urgent[2], urgent[3], low[1]]);
}

#[test]
fn one_of_a_group_at_a_time_in_seq_order() {
    let mut b = Bench::new();
    let (a1, a2, other, b1) = (b.put(5, 1, 0), b.put(0, 1, 0), b.plain(), b.put(5, 2, 0));
    assert_eq!(b.order(9), [a1, other, b1], "a2 waits for a1 though its lane is lower");
    let (id, _) = b.q.lease(a1).unwrap();
    b.nack(a1, id, 50);
    assert_eq!(b.order(9), [0_u64; 0], "a delayed job holds its group up: it goes in seq order");
    b.pass(50);
    assert_eq!(b.order(9), [a1]);
    b.ack(a1);
    assert_eq!(b.order(9), [a2]);
}

#[test]
fn a_job_that_is_moved_leaves_the_lease_of_its_group() {
    let mut b = Bench::new();
    let (first, second) = (b.put(5, 1, 0), b.put(5, 1, 0));
    b.put(5, 1, 0);
    // Delivered while the first was dead, say.
    b.apply(LeaseEvent::Claim, b"n", 100, vec![(second, 1, 1)]);
    b.nack(second, 1, 0);
    let lease = b.claim(b"n", 100).unwrap();
    assert_eq!(lease.0, first);
    assert_eq!(b.q.exhausted(1, 9, b.now), [second]);
    b.q.take_exhausted(second, false);
    b.ack(second);
    assert_eq!(b.next(), None, "I6: one lease in a group");
    b.ack(first);
    assert!(b.next().is_some());
}

#[test]
fn a_job_that_is_moved_holds_its_group() {
    let (mut groups, group) = (Groups::default(), 7);
    groups.join(group, 5);
    groups.join(group, 6);
    assert_eq!(groups.refresh(group, |_| true), Change { hide: None, show: Some(5) });
    assert_eq!(groups.refresh(group, |_| true), Change::default(), "nothing has changed");
    groups.block(group, 5);
    assert_eq!(groups.refresh(group, |_| true), Change { hide: Some(5), show: None });
    groups.block(group, 6);
    assert_eq!(groups.leased(group), Some(5), "a lease stays where it is");
    groups.leave(group, 5);
    assert_eq!(groups.refresh(group, |_| true), Change { hide: None, show: Some(6) });
}

#[test]
fn a_lane_above_the_last_is_the_last() {
    let mut lanes = Lanes::default();
    let last = LANES as u8 - 1;
    lanes.insert(LANES as u8, 3);
    lanes.insert(u8::MAX, 4);
    assert_eq!(lanes.iter(last).collect::<Vec<_>>(), [3, 4]);
    lanes.remove(LANES as u8 + 1, 3);
    assert_eq!((lanes.first(last), lanes.first(last - 1)), (Some(4), None));
}

#[test]
fn a_dead_job_does_not_hold_its_group_up() {
    let mut b = Bench::new();
    let (first, second) = (b.put(5, 1, 0), b.put(5, 1, 0));
    let t = b.next().unwrap();
    assert_eq!(t.seq, first);
    b.q.mark_dead(first, b.now);
    assert_eq!(b.q.counts(), (0, 0, 1));
    assert_eq!(b.order(9), [second]);
    b.apply(LeaseEvent::Nack, b"", 0, vec![(first, 0, 0)]);
    assert_eq!(b.order(9), [0_u64; 0], "revived, it waits for the lease of its group");
    b.ack(second);
    assert_eq!(b.next(), Some(NextJob { seq: first, deliveries: 0 }));
}

#[test]
fn i6_a_replay_of_what_a_snapshot_reflects_leaves_one_lease_in_a_group() {
    let mut b = Bench::new();
    let (first, second) = (b.put(5, 1, 0), b.put(5, 1, 0));
    // The first job's only delivery runs out, it is dead, the second one is claimed.
    b.claim(b"n", 100).unwrap();
    b.pass(100);
    assert_eq!(b.next(), Some(NextJob { seq: first, deliveries: 1 }));
    b.q.mark_dead(first, b.now);
    b.dead(first);
    let (seq, id) = b.claim(b"n", 100).unwrap();
    assert_eq!(seq, second);
    for from in 0..=b.events.len() {
        for late in [false, true] {
            let mut q = b.replayed(from, late);
            assert_eq!((q.counts(), q.lease(second)), ((1, 0, 0), Some((id, 1))), "{from} {late}");
            q.forget(second);
            let ready = q.preview(9, |_| Ok::<_, Infallible>(None)).unwrap();
            assert_eq!(ready, [first], "{from} {late}");
        }
    }
}

#[test]
fn i6_of_two_leases_in_a_group_the_later_counts() {
    // The end of the first lease was not logged: the setting was another then.
    for late in [false, true] {
        for order in [[0, 1], [1, 0]] {
            let mut b = Bench::new();
            let (first, second) = (b.put(5, 1, 0), b.put(5, 1, 0));
            let claims = [vec![(first, 7, 1)], vec![(second, 9, 1)]];
            b.events = order
                .map(|i| claims[i].clone())
                .map(|jobs| Lease::new(LeaseEvent::Claim, b"n", 100, jobs))
                .to_vec();
            let mut q = b.replayed(0, late);
            assert_eq!((q.counts().0, q.lease(second)), (1, Some((9, 1))), "{order:?} {late}");
            q.forget(second);
            assert_eq!(q.deliveries(first), 1);
            let ready = q.preview(9, |_| Ok::<_, Infallible>(None)).unwrap();
            assert_eq!(ready, [first], "{order:?} {late}");
        }
    }
}

#[test]
fn due_times_go_by_the_wall_delays_by_the_monotonic_clock() {
    let mut b = Bench::new();
    let later = b.put(5, 0, b.now.wall + 100);
    let (seq, id) = {
        b.plain();
        b.claim(b"n", 10_000).unwrap()
    };
    b.nack(seq, id, 60);
    assert_eq!(b.q.counts(), (0, 2, 0));
    b.now.wall += 100;
    assert_eq!(b.order(9), [later]);
    b.now.mono += 60;
    assert_eq!(b.order(9), [seq]);
}

#[test]
fn the_cursor_looks_at_a_job_once() {
    let mut b = Bench::new();
    let far = b.now.wall + 1_000_000;
    for i in 0..1_000 {
        if i % 2 == 0 {
            b.put(5, 0, far);
        } else {
            b.plain();
        }
    }
    assert_eq!(b.order(500).len(), 500);
    (0..50).for_each(|_| assert_eq!(b.next(), None));
    b.asked.remove(&0);
    assert!(b.asked.values().all(|n| *n == 1), "{:?}", b.asked.iter().find(|(_, n)| **n > 1));
}

#[test]
fn state_follows_what_is_in_flight() {
    let mut b = Bench::new();
    b.plains(10_000);
    for _ in 0..5_000 {
        let (seq, _) = b.claim(b"n", 1_000).unwrap();
        b.ack(seq);
    }
    assert_eq!(b.q.known(), 0);
    b.order(7);
    assert_eq!(b.q.known(), 7);
}

#[test]
fn replaying_events_over_a_later_state_changes_nothing() {
    let mut b = Bench::new();
    b.plains(3);
    let event = |event, lease_ms, jobs| Lease::new(event, b"n", lease_ms, jobs);
    let log = [
        event(LeaseEvent::Claim, 1_000, vec![(1, 11, 1), (2, 12, 1)]),
        event(LeaseEvent::Extend, 2_000, vec![(1, 11, 1)]),
        event(LeaseEvent::Nack, 0, vec![(1, 11, 1)]),
        event(LeaseEvent::Claim, 500, vec![(1, 13, 2), (3, 14, 1)]),
        event(LeaseEvent::Extend, 900, vec![(1, 13, 2)]),
        event(LeaseEvent::Nack, 70, vec![(3, 14, 1)]),
    ];
    let apply = |q: &mut Queue, from: usize| log[from..].iter().for_each(|e| q.apply(e, b.now));
    let mut once = Queue::default();
    apply(&mut once, 0);
    let want: Vec<_> = once.views().collect();
    for from in 0..=log.len() {
        apply(&mut once, from);
        assert_eq!(once.views().collect::<Vec<_>>(), want, "replayed from {from}");
    }
}

#[test]
fn a_section_reads_back() {
    let mut b = Bench::new();
    b.plains(5);
    assert!(codec::encode(&b.q, true, 0, 0).is_none());
    b.order(3);
    let (id, _) = b.q.lease(2).unwrap();
    b.nack(2, id, 400);
    let (id, _) = b.q.lease(3).unwrap();
    b.nack(3, id, 0);
    (b.q.tally.dead_lettered, b.q.tally.expired) = (9, 4);
    let bytes = codec::encode(&b.q, true, b.now.mono, 70).unwrap();
    let back = codec::decode(&bytes, b.now.mono, 3).unwrap();
    assert_eq!(back.views().collect::<Vec<_>>(), b.q.views().collect::<Vec<_>>());
    let counted = ReplayPos { layout: 3, lsn: 70 };
    assert_eq!(back.tally, Tally { dead_lettered: 9, expired: 4, counted });
    for cut in 0..bytes.len() {
        assert!(codec::decode(&bytes[..cut], 0, 3).is_err());
    }
    // Without durable leases only the counts are kept.
    let bytes = codec::encode(&b.q, false, 0, 70).unwrap();
    assert_eq!(codec::decode(&bytes, 0, 3).unwrap().views().count(), 0);
}

#[test]
fn a_section_has_errors_and_promoted_jobs() {
    let mut b = Bench::new();
    let due = b.now.wall + 9_000;
    let (promoted, scheduled, failed) = (b.put(5, 0, due), b.put(5, 0, due), b.put(5, 0, 0));
    b.apply(LeaseEvent::Nack, b"", 0, vec![(promoted, 0, 0)]);
    assert_eq!(b.order(2), [promoted, failed]);
    for (seq, error) in [(promoted, "pröblem"), (failed, "")] {
        let (id, _) = b.q.lease(seq).unwrap();
        b.fail(seq, id, 400, error);
    }
    let bytes = codec::encode(&b.q, true, b.now.mono, 70).unwrap();
    let mut back = codec::decode(&bytes, b.now.mono, 3).unwrap();
    b.log.values().for_each(|row| back.add_options(row));
    assert_eq!(back.views().collect::<Vec<_>>(), b.q.views().collect::<Vec<_>>());
    for seq in [promoted, scheduled, failed] {
        assert_eq!(back.history(seq), b.q.history(seq));
    }
    assert_eq!(back.error(promoted), Some("pröblem"));
    for cut in 0..bytes.len() {
        assert!(codec::decode(&bytes[..cut], 0, 3).is_err());
    }
    // Without durable leases: promoted for good, and nothing else.
    let bytes = codec::encode(&b.q, false, 0, 70).unwrap();
    let mut back = codec::decode(&bytes, 0, 3).unwrap();
    back.recovered(b.now, false);
    b.log.values().for_each(|row| back.add_options(row));
    let history = JobHistory { promoted: true, ..JobHistory::default() };
    assert_eq!(back.history(promoted), history);
    assert_eq!((back.counts(), back.history(failed)), ((0, 1, 0), JobHistory::default()));
}

#[test]
fn a_frame_counts_once() {
    let at = |lsn| ReplayPos { layout: 1, lsn };
    let log = [
        (1, RemovalReason::EXPIRED),
        (2, RemovalReason::REQUESTED),
        (4, RemovalReason::EXPIRED_DEAD_LETTER),
        (8, RemovalReason::DEAD_LETTER),
    ];
    let replay = |tally: &mut Tally, from: usize, to: usize| {
        (from..to).for_each(|i| tally.count(log[i].0, log[i].1, at(i as u64 + 1)));
    };
    for taken in 0..=log.len() {
        let mut q = Queue::default();
        replay(&mut q.tally, 0, taken);
        // A snapshot, and a replay that begins before it.
        for from in 0..=taken {
            let mut back = match codec::encode(&q, false, 0, taken as u64) {
                Some(bytes) => codec::decode(&bytes, 0, 1).unwrap(),
                None => Queue::default(),
            };
            replay(&mut back.tally, from, log.len());
            assert_eq!((back.tally.expired, back.tally.dead_lettered), (5, 12), "{taken} {from}");
        }
    }
}

#[test]
fn a_new_life() {
    let mut b = Bench::new();
    let special = b.put(3, 0, 0);
    b.plains(3);
    assert_eq!(b.order(2), [special, 2]);
    let mut durable = {
        let bytes = codec::encode(&b.q, true, b.now.mono, 0).unwrap();
        codec::decode(&bytes, 0, 0).unwrap()
    };
    let mut open = Now { mono: 50, wall: b.now.wall };
    durable.add_options(&b.log[&special]);
    durable.recovered(open, true);
    assert!(durable.views().all(|(_, n, s)| {
        n == 1
            && matches!(s, JobView::Leased { deadline, lease_ms, .. } if deadline == 50 + lease_ms)
    }));
    // Not durable: every job that was not acked is simply claimable again.
    b.q.recovered(open, false);
    open.mono = 0;
    b.now = open;
    assert_eq!(b.order(9), [special, 2, 3, 4]);
    assert_eq!(b.q.lease(2).unwrap().1, 1);
}

#[test]
fn ids_of_another_life_never_fit() {
    let id = |generation| {
        let mut b = Bench::new();
        b.q.begin(generation, 1);
        b.plain();
        b.claim(b"n", 100).unwrap().1
    };
    assert!(id(1) != id(2) && id(2) < 1 << 53 && id((1 << 21) - 1) < 1 << 53);
}

#[test]
fn ids_of_another_topic_never_fit() {
    let mut seen = BTreeMap::new();
    for topic_id in 1..200 {
        let mut b = Bench::new();
        b.q.begin(1, topic_id);
        for _ in 0..100 {
            let seq = b.plain();
            let (claimed, id) = b.claim(b"n", 100).unwrap();
            assert_eq!((claimed, seen.insert(id, topic_id)), (seq, None));
        }
    }
}

#[test]
fn lease_ids_do_not_run_out() {
    let mut b = Bench::new();
    // Its counter begins right below the last one.
    b.q.begin(1, 0xcd91_1986_0000_0000);
    b.plain();
    let counters: Vec<u64> = (0..3)
        .map(|_| {
            let (seq, id) = b.claim(b"n", 100).unwrap();
            assert!(b.q.holds(Fence { node: b"n", seq, id: Some(id) }));
            b.nack(seq, id, 0);
            id - (1 << 32)
        })
        .collect();
    assert_eq!(counters, [0xffff_ffff, 1, 2]);
}

#[derive(Clone, Debug)]
enum Op {
    Put {
        lane: u8,
        group: u64,
        delay: u64,
    },
    Claim {
        node: u8,
        lease: u64,
    },
    Bury,
    /// Takes out jobs that were delivered so often: they are dead, or stay after all.
    Exhaust(u64, bool),
    Undo,
    Ack(usize),
    Stale(usize),
    Nack(usize, u64),
    Release(usize),
    Extend(usize, u64),
    Floor(usize),
    Revive(usize),
    Promote(usize),
    Remove {
        pick: usize,
        force: bool,
        /// The delete fails: the job is as it was.
        fails: bool,
    },
    Pass(u64),
    Reopen(bool),
    /// Another process, whose replay begins this number of lease events before its snapshot.
    Replay(usize, bool),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        6 => (prop_oneof![4 => Just(5u8), 1 => 0u8..10], prop_oneof![4 => Just(0u64), 1 => 1u64..3],
            prop_oneof![4 => Just(0u64), 1 => 1u64..500])
            .prop_map(|(lane, group, delay)| Op::Put { lane, group, delay }),
        6 => (0u8..3, 1u64..3_000).prop_map(|(node, lease)| Op::Claim { node, lease }),
        1 => Just(Op::Bury),
        1 => (1u64..4, any::<bool>()).prop_map(|(max, dead)| Op::Exhaust(max, dead)),
        1 => Just(Op::Undo),
        3 => (0usize..50).prop_map(Op::Ack),
        1 => (0usize..50).prop_map(Op::Stale),
        3 => (0usize..50, prop_oneof![Just(0u64), 1u64..1_000]).prop_map(|(i, d)| Op::Nack(i, d)),
        2 => (0usize..50).prop_map(Op::Release),
        2 => (0usize..50, 1u64..3_000).prop_map(|(i, d)| Op::Extend(i, d)),
        1 => (0usize..50).prop_map(Op::Floor),
        1 => (0usize..50).prop_map(Op::Revive),
        2 => (0usize..50).prop_map(Op::Promote),
        2 => (0usize..50, any::<bool>(), any::<bool>())
            .prop_map(|(pick, force, fails)| Op::Remove { pick, force, fails }),
        3 => prop_oneof![1u64..400, Just(STARVATION_MS)].prop_map(Op::Pass),
        1 => any::<bool>().prop_map(Op::Reopen),
        1 => (0usize..40, any::<bool>()).prop_map(|(n, late)| Op::Replay(n, late)),
    ]
}

struct Duel {
    b: Bench,
    m: model::Queue,
    stale: Vec<(u64, u64, u8)>,
    lives: u64,
}

impl Duel {
    fn pick(&self, i: usize) -> Option<u64> {
        let n = self.m.jobs.len();
        (n > 0).then(|| *self.m.jobs.keys().nth(i % n).unwrap())
    }

    fn leased(&self, i: usize) -> Option<(u64, u64, u8)> {
        let all = self.m.leased();
        let at = i.checked_rem(all.len())?;
        self.lease(all[at])
    }

    fn lease(&self, seq: u64) -> Option<(u64, u64, u8)> {
        match self.m.jobs[&seq].phase {
            Phase::Leased { id, node, .. } => Some((seq, id, node as u8)),
            _ => None,
        }
    }

    fn run(&mut self, op: &Op) {
        let now = self.b.now;
        match *op {
            Op::Put { lane, group, delay } => {
                let at = if delay == 0 { 0 } else { now.wall + delay };
                let seq = self.b.put(lane, group, at);
                let (name, group) = (String::new(), group as usize);
                let new = NewJob { name, lane, group, visible_at: at, expires_at: 0 };
                assert_eq!(self.m.put(new), seq);
            }
            Op::Claim { node, lease } => self.claim(node, lease),
            Op::Bury => {
                if let Some(t) = self.expected() {
                    self.b.q.mark_dead(t.seq, now);
                    self.b.dead(t.seq);
                    self.m.pass(t.seq, now.mono);
                    self.m.jobs.get_mut(&t.seq).unwrap().phase = Phase::Dead;
                }
            }
            Op::Exhaust(max, dead) => {
                self.b.q.sweep(now);
                self.m.sweep(now.mono, now.wall);
                let mut taken = self.b.q.exhausted(max, 1_000, now);
                taken.sort_unstable();
                assert_eq!(taken, self.m.used_up(max));
                for seq in taken {
                    self.b.q.take_exhausted(seq, dead);
                    match dead {
                        true => self.b.dead(seq),
                        false => self.b.q.undo(seq),
                    }
                    let phase = if dead { Phase::Dead } else { Phase::Waiting };
                    self.m.jobs.get_mut(&seq).unwrap().phase = phase;
                }
            }
            Op::Undo => {
                if let Some(t) = self.expected() {
                    self.b.q.reserve(t.seq, &holder(b"u", 5), now);
                    self.m.pass(t.seq, now.mono);
                    self.b.q.undo(t.seq);
                }
            }
            Op::Ack(i) => {
                if let Some((seq, id, node)) = self.leased(i) {
                    assert!(self.b.q.holds(Fence { node: &[node], seq, id: Some(id) }));
                    self.b.ack(seq);
                    self.m.remove(seq, true);
                    self.stale.push((seq, id, node));
                }
            }
            Op::Stale(i) => {
                if let Some(&(seq, id, node)) = self.stale.get(i) {
                    // I6: a stale fence fits nothing.
                    assert!(!self.b.q.holds(Fence { node: &[node], seq, id: Some(id) }));
                    let logged = self.b.events.len();
                    self.b.nack(seq, id, 10);
                    self.b.apply(LeaseEvent::Extend, b"x", 10, vec![(seq, id, 1)]);
                    self.b.events.truncate(logged);
                }
            }
            Op::Nack(i, delay) => {
                if let Some((seq, id, node)) = self.leased(i) {
                    let error = if id % 3 == 0 { String::new() } else { format!("e{id}") };
                    self.b.fail(seq, id, delay, &error);
                    self.m.nack(seq, (delay > 0).then(|| now.mono + delay), &error);
                    self.stale.push((seq, id, node));
                }
            }
            Op::Release(i) => {
                if let Some((seq, id, node)) = self.leased(i) {
                    self.m.release(seq);
                    let jobs = vec![(seq, id, self.m.jobs[&seq].deliveries)];
                    self.b.apply(LeaseEvent::Nack, &[node], 0, jobs);
                    self.stale.push((seq, id, node));
                }
            }
            Op::Extend(i, ms) => {
                if let Some((seq, id, node)) = self.leased(i) {
                    self.b.apply(LeaseEvent::Extend, &[node], ms, vec![(seq, id, 1)]);
                    self.m.extend(seq, ms, now.mono);
                }
            }
            Op::Floor(i) => {
                if let Some(seq) = self.pick(i % 4) {
                    self.b.log.retain(|s, _| *s >= seq);
                    self.b.q.forget_below(seq);
                    self.m.jobs.retain(|s, _| *s >= seq);
                }
            }
            Op::Revive(i) => {
                if let Some(seq) = self.pick(i).filter(|s| self.m.jobs[s].phase == Phase::Dead) {
                    self.b.apply(LeaseEvent::Nack, b"", 0, vec![(seq, 0, 0)]);
                    self.m.revive(seq);
                }
            }
            Op::Promote(i) => self.promote(i),
            Op::Remove { pick, force, fails } => self.remove(pick, force, fails),
            Op::Pass(ms) => self.b.pass(ms),
            Op::Reopen(durable) => self.reopen(durable),
            Op::Replay(n, late) => self.replay(n, late),
        }
    }

    fn promote(&mut self, i: usize) {
        self.b.q.sweep(self.b.now);
        self.sweep();
        let Some(seq) = self.pick(i) else { return };
        let promotion = self.b.q.promotion(seq);
        assert_eq!(promotion.is_some(), self.m.promote(seq), "{:?}", self.m.jobs[&seq].phase);
        if let Some((id, deliveries)) = promotion {
            self.b.apply(LeaseEvent::Nack, b"", 0, vec![(seq, id, deliveries)]);
        }
    }

    fn remove(&mut self, pick: usize, force: bool, fails: bool) {
        self.b.q.sweep(self.b.now);
        self.sweep();
        let Some(seq) = self.pick(pick) else { return };
        let lease = self.lease(seq);
        let is_free = self.b.q.begin_removal(seq, force);
        assert_eq!(is_free, force || lease.is_none(), "{:?}", self.m.jobs[&seq].phase);
        if !is_free {
            return;
        }
        assert!(!self.b.q.begin_removal(seq, true), "it is reserved once");
        let log = &self.b.log;
        let fresh = |from: u64| Ok::<_, Infallible>(log.range(from..).next().map(|(s, _)| *s));
        let shown = self.b.q.preview(1_000, fresh).unwrap();
        assert!(!shown.contains(&seq), "no claim gets what is being removed");
        if let Some((seq, id, node)) = lease {
            assert!(!self.b.q.holds(Fence { node: &[node], seq, id: Some(id) }));
        }
        if fails {
            self.b.q.undo(seq);
            return;
        }
        self.b.ack(seq);
        assert!(self.m.remove(seq, force).is_some());
        self.stale.extend(lease);
    }

    fn sweep(&mut self) {
        self.m.sweep(self.b.now.mono, self.b.now.wall);
    }

    fn expected(&mut self) -> Option<NextJob> {
        self.sweep();
        let want = self.m.next(self.b.now.mono);
        let got = self.b.next();
        assert_eq!(got.map(|t| t.seq), want);
        got.inspect(|t| assert_eq!(t.deliveries, self.m.jobs[&t.seq].deliveries))
    }

    fn claim(&mut self, node: u8, lease: u64) {
        let now = self.b.now;
        for (seq, job) in &self.m.jobs {
            if let Phase::Leased { id, deadline, node, .. } = job.phase
                && deadline <= now.mono
            {
                self.stale.push((*seq, id, node as u8));
            }
        }
        let Some(t) = self.expected() else { return };
        let id = self.b.q.reserve(t.seq, &holder(&[node], lease), now);
        let jobs = vec![(t.seq, id, t.deliveries + 1)];
        self.b.apply(LeaseEvent::Claim, &[node], lease, jobs);
        let taken = self.m.take(usize::from(node), 1, lease, now.mono);
        assert_eq!((taken.jobs, taken.over), (vec![t.seq], vec![]));
        if let Phase::Leased { id: of, .. } = &mut self.m.jobs.get_mut(&t.seq).unwrap().phase {
            *of = id;
        }
    }

    fn reopen(&mut self, durable: bool) {
        let now = self.b.now;
        let mut q = match codec::encode(&self.b.q, durable, now.mono, 0) {
            Some(bytes) => codec::decode(&bytes, now.mono, 0).unwrap(),
            None => Queue::default(),
        };
        self.b.log.values().for_each(|row| q.add_options(row));
        q.recovered(now, durable);
        self.lives += 1;
        q.begin(7 + self.lives, 1);
        q.sweep(now);
        self.b.q = q;
        self.b.events.clear();
        self.m.durable = durable;
        self.m.restarted();
        for (seq, _, shown) in self.b.q.views() {
            let job = self.m.jobs.get_mut(&seq).map(|job| &mut job.phase);
            if let (Some(Phase::Leased { deadline, .. }), JobView::Leased { deadline: at, .. }) =
                (job, shown)
            {
                *deadline = at;
            }
        }
        self.sweep();
    }

    /// What ran out since the replay's first event begins anew; nothing else changes.
    fn replay(&mut self, n: usize, late: bool) {
        let now = self.b.now;
        self.b.q.sweep(now);
        self.sweep();
        let from = self.b.events.len().saturating_sub(n);
        let mut q = self.b.replayed(from, late);
        self.lives += 1;
        q.begin(7 + self.lives, 1);
        q.sweep(now);
        self.b.q = q;
        self.m.durable = true;
        self.m.restarted();
        let shown: BTreeMap<u64, JobView> =
            self.b.q.views().map(|(seq, _, shown)| (seq, shown)).collect();
        for (seq, job) in &mut self.m.jobs {
            let last = self.b.events.iter().rev().find(|e| e.jobs.iter().any(|j| j.0 == *seq));
            let phase = match shown.get(seq) {
                Some(JobView::Leased { id, node, deadline, .. }) => {
                    let node = usize::from(node[0]);
                    Phase::Leased { id: *id, node, lease_ms: 0, deadline: *deadline }
                }
                Some(JobView::Delayed(at)) => Phase::Delayed(*at),
                Some(JobView::Scheduled(at)) => Phase::Scheduled(*at),
                _ => Phase::Waiting,
            };
            let kept = match (&job.phase, &phase) {
                (Phase::Leased { id, node, .. }, Phase::Leased { id: i, node: n, .. }) => {
                    (id, node) == (i, n)
                }
                (Phase::Leased { .. }, _) => false,
                (Phase::Delayed(_), p) => matches!(p, Phase::Delayed(_)),
                (Phase::Scheduled(at), p) => *p == Phase::Scheduled(*at),
                (Phase::Waiting | Phase::Dead, Phase::Leased { .. } | Phase::Delayed(_)) => {
                    let begun = |e: &Lease| (e.event == LeaseEvent::Nack, e.lease_ms > 0);
                    last.map(begun) == Some((matches!(phase, Phase::Delayed(_)), true))
                }
                (Phase::Waiting | Phase::Dead, p) => *p == Phase::Waiting,
            };
            assert!(kept, "{seq} was {:?}, is {phase:?}", job.phase);
            job.phase = phase;
        }
        // No later replay begins before this one.
        self.b.events.drain(..from);
        let groups = self.m.jobs.values().filter(|job| job.leased());
        let mut groups: Vec<usize> = groups.map(|job| job.new.group).filter(|g| *g > 0).collect();
        groups.sort_unstable();
        assert!(groups.windows(2).all(|g| g[0] < g[1]), "I6: leases in the groups {groups:?}");
        let valid = |l: &(u64, u64, u8)| self.b.q.lease(l.0).is_some_and(|(id, _)| id == l.1);
        self.stale.retain(|l| !valid(l));
    }

    fn agree(&mut self) {
        assert_eq!(self.b.q.counts(), self.m.counts());
        let log = &self.b.log;
        let fresh = |from: u64| Ok::<_, Infallible>(log.range(from..).next().map(|(s, _)| *s));
        let shown = self.b.q.preview(1_000, fresh).unwrap();
        let want: Vec<u64> = self.m.ready().into_iter().map(|(_, seq)| seq).collect();
        assert_eq!(shown, want);
        for (seq, job) in &self.m.jobs {
            assert_eq!(self.b.q.error(*seq), job.error.as_deref(), "{seq}");
        }
        self.b.q.deadline_passed();
        let deadline = self.m.deadline(3);
        assert_eq!(self.b.q.earlier_deadline(3), deadline);
        assert_eq!(self.b.q.earlier_deadline(3), None, "it is told once");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 600, ..ProptestConfig::default() })]

    /// The machine gives exactly the job that looking at all of them would give.
    #[test]
    fn as_the_model(ops in proptest::collection::vec(op(), 1..120)) {
        let mut d = Duel { b: Bench::new(), m: model::Queue::default(), stale: Vec::new(), lives: 0 };
        for op in &ops {
            d.run(op);
            d.agree();
        }
    }
}

#[test]
fn streams_know_their_load() {
    let mut b = Bench::new();
    b.plains(3);
    let h = Holder { node: Arc::from(&b"w"[..]), lease_ms: 100, stream: 4 };
    for _ in 0..2 {
        let t = b.next().unwrap();
        let id = b.q.reserve(t.seq, &h, b.now);
        b.apply(LeaseEvent::Claim, b"w", 100, vec![(t.seq, id, 1)]);
    }
    assert_eq!((b.q.stream_capacity(4, 9), b.q.of_stream(4)), (7, vec![1, 2]));
    b.ack(1);
    b.pass(100);
    b.q.sweep(b.now);
    assert_eq!(b.q.stream_capacity(4, 9), 9);
}

/// The snapshot has a delayed job, and a later lease of its group. The events before both are replayed.
#[test]
fn a_replay_keeps_how_a_job_failed_though_its_group_was_leased_later() {
    let put = Op::Put { lane: 5, group: 1, delay: 0 };
    let claim = || Op::Claim { node: 0, lease: 1 };
    let mut d = Duel { b: Bench::new(), m: model::Queue::default(), stale: Vec::new(), lives: 0 };
    // The first job is dead when the second one fails. The replay brings it back before that one.
    for op in [put.clone(), Op::Bury, put, claim(), Op::Nack(0, 1), Op::Replay(2, false), claim()] {
        d.run(&op);
        d.agree();
    }
    let before: Vec<_> = d.b.q.views().collect();
    assert!(matches!(before[..], [(1, 1, JobView::Leased { .. }), (2, 1, JobView::Delayed(_))]));
    d.run(&Op::Replay(3, false));
    d.agree();
    assert_eq!(d.b.q.views().collect::<Vec<_>>(), before);
}

/// The same for a job that was promoted, failed without a retry, and is a dead letter.
#[test]
fn a_replay_keeps_an_error_though_its_group_was_leased_later() {
    let put = |delay| Op::Put { lane: 5, group: 1, delay };
    let claim = || Op::Claim { node: 0, lease: 1 };
    let mut d = Duel { b: Bench::new(), m: model::Queue::default(), stale: Vec::new(), lives: 0 };
    let failed = [Op::Pass(1), put(1), Op::Promote(0), claim(), Op::Nack(0, 0)];
    for op in failed.into_iter().chain([put(0), Op::Bury, claim(), Op::Replay(4, false)]) {
        d.run(&op);
        d.agree();
    }
    assert!(d.b.q.error(1).is_some(), "the id of its lease gives it one");
}
