//! The oracle detects wrong states: each test compares a wrong one with a correct one.

use std::sync::Arc;

use topics_engine::{
    DeleteRequest, Deleted, Durability, Gap, GapReason, Tombstone, TopicConfig, TopicState,
};

use topics_tests::oracle::{
    Body, Event, Keep, Observation, Op, Rec, Reply, Seen, TopicObs, World, tag_of,
};

const WALL: u64 = 1_000;

struct Story {
    world: World,
    calls: usize,
}

fn config(class: Durability) -> TopicConfig {
    TopicConfig { durability: class, ..TopicConfig::default() }
}

impl Story {
    /// A topic `t` with id 1 of this class, created by its first write of two records.
    fn new(class: Durability) -> Self {
        let world = World { shards: 1, ..World::default() };
        let mut story = Self { world, calls: 0 };
        story.append(2, Some(1), class);
        story
    }

    fn tell(&mut self, body: Body) {
        self.world.apply(&Event { life: 0, at: 0, wall: WALL, body });
        assert_eq!(self.world.problems, Vec::<String>::new());
    }

    /// A write of `n` records, acked at this seq, or failed.
    fn append(&mut self, n: usize, first: Option<u64>, class: Durability) {
        let attempt = self.world.attempts.len();
        let patch = topics_engine::ConfigPatch {
            durability: Some(class),
            ..topics_engine::ConfigPatch::default()
        };
        let recs: Arc<[Rec]> = (0..n)
            .map(|i| Rec { data: tag_of(attempt, i).into_bytes(), ..Rec::default() })
            .collect();
        self.calls += 1;
        let op = Op::Append {
            topic: "t".into(),
            attempt,
            recs,
            key: Some(b"k".to_vec()),
            expect_head: None,
            sync: false,
            config: Some(patch),
        };
        self.tell(Body::Begin(self.calls, Box::new(op)));
        let reply = match first {
            Some(first_seq) => Reply::Appended {
                topic_id: 1,
                first_seq,
                created: first_seq == 1,
                deduped: false,
                class,
            },
            None => Reply::Failed("disk".into()),
        };
        self.tell(Body::End(self.calls, reply));
    }

    fn delete(&mut self, before: u64, seen: &Observation) {
        self.calls += 1;
        let req = DeleteRequest { before_seq: Some(before), matching: None };
        self.tell(Body::Begin(self.calls, Box::new(Op::Delete { topic: "t".into(), req })));
        let state = seen.topics[0].state.clone();
        let deleted = Deleted { deleted: before - 1, records_scanned: 0, state };
        self.tell(Body::End(self.calls, Reply::Deleted(Box::new(deleted))));
    }

    /// The observation of an engine with these records (seq, attempt, index) and gaps.
    fn seen(&self, class: Durability, recs: &[(u64, usize, usize)], gaps: &[Gap]) -> Observation {
        let one = |&(seq, attempt, index): &(u64, usize, usize)| Seen {
            seq,
            ts: WALL,
            node: Vec::new(),
            tag: Vec::new(),
            meta: Vec::new(),
            data: tag_of(attempt, index).into_bytes(),
            binary: false,
        };
        let records: Vec<Seen> = recs.iter().map(one).collect();
        let last = recs.last().map_or(0, |r| r.0).max(gaps.last().map_or(0, |g| g.to));
        let earliest_seq = recs.first().map_or(last + 1, |r| r.0);
        let tombstone = |g: &Gap| Tombstone {
            gap_from: g.from,
            gap_to: g.to,
            reason: g.reason,
            missed_estimate: 0,
            earliest_seq,
            head_seq: last,
        };
        let state = TopicState {
            topic: "t".into(),
            topic_id: 1,
            epoch: 1,
            head_seq: last,
            earliest_seq,
            evict_floor: 1,
            next_seq: last + 1,
            count: records.len() as u64,
            bytes: records.iter().map(|r| r.data.len() as u64).sum(),
            gaps: gaps.to_vec(),
            config: config(class),
            effective_priority: 0,
            last_write_ts: None,
            last_read_ts: None,
            queue: None,
        };
        let tombstones = gaps.iter().map(tombstone).collect();
        let topics = vec![TopicObs { state, records, tombstones }];
        Observation { wall: WALL, topics }
    }

    fn accepts(&self, seen: &Observation, kind: Keep) {
        assert_eq!(self.world.check(seen, kind), Vec::<String>::new());
    }

    fn rejects(&self, seen: &Observation, kind: Keep, why: &str) {
        let found = self.world.check(seen, kind);
        assert!(found.iter().any(|f| f.contains(why)), "{why:?} is not in {found:#?}");
    }
}

fn crash(from: u64, to: u64) -> [Gap; 1] {
    [Gap { from, to, reason: GapReason::Crash }]
}

const BOTH: [(u64, usize, usize); 2] = [(1, 0, 0), (2, 0, 1)];
const FOUR: [(u64, usize, usize); 4] = [(1, 0, 0), (2, 0, 1), (3, 1, 0), (4, 1, 1)];

#[test]
fn i1_what_was_acked_is_there_as_its_class_promises() {
    for class in [Durability::Disk, Durability::Fsync] {
        let mut s = Story::new(class);
        s.append(2, Some(3), class);
        for kind in [Keep::Live, Keep::Kill, Keep::Power] {
            s.accepts(&s.seen(class, &FOUR, &[]), kind);
            s.rejects(&s.seen(class, &BOTH, &[]), kind, "I2: head 2 is below the acked 4");
        }
        let lost = s.seen(class, &BOTH, &crash(3, 1024));
        s.rejects(&lost, Keep::Kill, "reported lost");
        if class == Durability::Disk {
            s.accepts(&lost, Keep::Power);
        } else {
            s.rejects(&lost, Keep::Power, "reported lost");
        }
    }
}

#[test]
fn i2_a_seq_keeps_its_value_and_is_not_given_again() {
    let mut s = Story::new(Durability::Disk);
    s.append(2, Some(3), Durability::Disk);
    let mut changed = s.seen(Durability::Disk, &FOUR, &[]);
    changed.topics[0].records[1].tag = b"x".to_vec();
    s.rejects(&changed, Keep::Power, "is not what was written");
    let swapped = [(1, 0, 0), (2, 0, 1), (3, 1, 1), (4, 1, 0)];
    s.rejects(&s.seen(Durability::Disk, &swapped, &[]), Keep::Power, "I2: seq 3 was record 0");
    let mut reused = s.seen(Durability::Disk, &BOTH, &crash(3, 3));
    s.rejects(&reused, Keep::Power, "I2: next_seq 4");
    reused.topics[0].state.topic_id = 2;
    s.rejects(&reused, Keep::Power, "was invented");
}

#[test]
fn i4_a_missing_seq_is_announced() {
    let mut s = Story::new(Durability::Disk);
    s.append(2, Some(3), Durability::Disk);
    let mut silent = s.seen(Durability::Disk, &FOUR, &[]);
    silent.topics[0].records.remove(2);
    s.rejects(&silent, Keep::Power, "I4: seq 3 was acked");
    let unknown = [(1, 0, 0), (2, 0, 1), (3, 1, 0), (4, 1, 1), (6, 2, 0)];
    s.rejects(&s.seen(Durability::Disk, &unknown, &[]), Keep::Power, "of a later attempt");
}

#[test]
fn i5_batches_are_whole_and_losses_are_tails() {
    let mut s = Story::new(Durability::Disk);
    s.append(2, Some(3), Durability::Disk);
    let half = s.seen(Durability::Disk, &FOUR[..3], &crash(4, 1024));
    s.rejects(&half, Keep::Power, "I5: seq 4 of attempt 1");
    let mut middle = s.seen(Durability::Disk, &FOUR, &[]);
    middle.topics[0].records.drain(..2);
    let mut t = s.seen(Durability::Disk, &[], &crash(1, 2)).topics[0].tombstones.clone();
    middle.topics[0].tombstones.append(&mut t);
    s.rejects(&middle, Keep::Power, "survived the loss of 1");
}

#[test]
fn a_failed_write_is_there_as_a_whole_or_not_at_all() {
    let mut s = Story::new(Durability::Fsync);
    s.append(2, None, Durability::Fsync);
    s.accepts(&s.seen(Durability::Fsync, &FOUR, &[]), Keep::Power);
    s.accepts(&s.seen(Durability::Fsync, &BOTH, &[]), Keep::Power);
    s.rejects(&s.seen(Durability::Fsync, &FOUR[..3], &[]), Keep::Power, "I5: seq 4");
    let twice = [&FOUR[..], &[(5, 1, 0), (6, 1, 1)]].concat();
    s.rejects(&s.seen(Durability::Fsync, &twice, &[]), Keep::Power, "there twice");
    // Another write took its seqs: the attempt is dead once a reader saw that.
    s.append(2, Some(3), Durability::Fsync);
    let other = [(1, 0, 0), (2, 0, 1), (3, 2, 0), (4, 2, 1)];
    s.accepts(&s.seen(Durability::Fsync, &other, &[]), Keep::Power);
    s.rejects(&s.seen(Durability::Fsync, &FOUR, &[]), Keep::Power, "I2: seq 3 was record 0");
}

#[test]
fn a_delete_acked_under_fsync_does_not_come_undone() {
    for class in [Durability::Disk, Durability::Fsync] {
        let mut s = Story::new(class);
        let before = s.seen(class, &BOTH, &[]);
        let after = s.seen(class, &BOTH[1..], &[]);
        s.delete(2, &after);
        s.accepts(&after, Keep::Power);
        s.rejects(&before, Keep::Kill, "I1: seq 1 is back");
        match class {
            Durability::Fsync => s.rejects(&before, Keep::Power, "I1: seq 1 is back"),
            _ => s.accepts(&before, Keep::Power),
        }
    }
}

#[test]
fn a_sync_raises_what_came_before_it() {
    let mut s = Story::new(Durability::Disk);
    s.tell(Body::Begin(100, Box::new(Op::Sync)));
    s.tell(Body::End(100, Reply::Done));
    s.append(2, Some(3), Durability::Disk);
    s.accepts(&s.seen(Durability::Disk, &BOTH, &crash(3, 1024)), Keep::Power);
    s.rejects(&s.seen(Durability::Disk, &[], &crash(1, 1024)), Keep::Power, "seq 1 was acked");
}

#[test]
fn what_a_recovery_served_is_there_for_good() {
    let mut s = Story::new(Durability::Disk);
    s.append(2, Some(3), Durability::Disk);
    let served = s.seen(Durability::Disk, &BOTH, &crash(3, 1024));
    s.tell(Body::Died(Keep::Power));
    s.tell(Body::Opened { seen: Arc::new(served.clone()), shards: 1 });
    s.accepts(&served, Keep::Power);
    s.rejects(&s.seen(Durability::Disk, &FOUR, &[]), Keep::Power, "seq 3 is back");
    s.rejects(&s.seen(Durability::Disk, &BOTH, &[]), Keep::Power, "no longer reported");
    s.rejects(&s.seen(Durability::Disk, &[], &crash(1, 1024)), Keep::Power, "seq 1 was acked");
}

#[test]
fn a_change_of_class_that_failed_may_leave_a_reservation() {
    for (class, change, may_skip) in [
        (Durability::Fsync, None, false),
        (Durability::Fsync, Some(Durability::Fsync), false),
        (Durability::Fsync, Some(Durability::Memory), true),
        (Durability::Fsync, Some(Durability::Disk), true),
    ] {
        let mut s = Story::new(class);
        let served = s.seen(class, &BOTH, &[]);
        if change.is_some() {
            let patch = topics_engine::ConfigPatch { durability: change, ..Default::default() };
            let op = Op::Create { topic: "t".into(), patch };
            s.tell(Body::Begin(100, Box::new(op)));
            s.tell(Body::End(100, Reply::Failed("no space".into())));
        }
        // The next process has the reservation, and a power cut after that says so.
        s.tell(Body::Died(Keep::Kill));
        s.tell(Body::Opened { seen: Arc::new(served), shards: 1 });
        s.tell(Body::Died(Keep::Power));
        let skipped = s.seen(class, &BOTH, &crash(3, 1026));
        if may_skip {
            s.accepts(&skipped, Keep::Power);
        } else {
            s.rejects(&skipped, Keep::Power, "nothing can have been lost");
        }
    }
}

#[test]
fn topics_do_not_vanish_or_come_back() {
    let mut s = Story::new(Durability::Fsync);
    let there = s.seen(Durability::Fsync, &BOTH, &[]);
    let none = Observation { wall: WALL, topics: Vec::new() };
    s.rejects(&none, Keep::Power, "t (1) is missing");
    s.tell(Body::Begin(100, Box::new(Op::Drop { topic: "t".into() })));
    s.accepts(&none, Keep::Power);
    s.accepts(&there, Keep::Power);
    s.tell(Body::End(100, Reply::Dropped { existed: true }));
    s.accepts(&none, Keep::Power);
    s.rejects(&there, Keep::Power, "was deleted and is back");
}

#[test]
fn the_state_is_exact() {
    let s = Story::new(Durability::Disk);
    for wrong in [
        |t: &mut TopicState| t.count += 1,
        |t: &mut TopicState| t.bytes -= 1,
        |t: &mut TopicState| t.earliest_seq = 2,
        |t: &mut TopicState| t.config.ttl_ms = 1,
    ] {
        let mut seen = s.seen(Durability::Disk, &BOTH, &[]);
        wrong(&mut seen.topics[0].state);
        assert!(!s.world.check(&seen, Keep::Live).is_empty(), "{:?}", seen.topics[0].state);
    }
}

#[test]
fn a_retry_dedups_as_far_as_the_records_survived() {
    let s = Story::new(Durability::Disk);
    let seen = s.seen(Durability::Disk, &BOTH, &[]);
    let lost = s.seen(Durability::Disk, &[], &crash(1, 1024));
    let check = |seen, answer| s.world.check_retries(seen, &[(0, answer)], Keep::Power);
    assert!(check(&seen, Ok((1, 1, true))).is_empty());
    assert!(!check(&seen, Ok((1, 3, false))).is_empty());
    assert!(!check(&seen, Ok((1, 2, true))).is_empty());
    assert!(check(&lost, Ok((1, 1025, false))).is_empty());
    assert!(!check(&seen, Err("idempotency_mismatch")).is_empty());
}
