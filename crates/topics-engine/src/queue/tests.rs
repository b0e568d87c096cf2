//! Queues over the simulated disk: every verb, live and after reopening.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use topics_env::sync::Mutex;
use topics_env::{Hook, Site, Verdict};

use crate::topic::tests::*;
use crate::types::api::{Append, Durability, NewRecord};
use crate::types::config::{ConfigPatch, TopicType};
use crate::types::error::{Error, Result};
use crate::types::queue::{
    Claim, Claimed, JobState, LeaseEnd, LeaseOutcome, LeasedJobs, QueueState, Redrive,
};

pub(crate) fn queue() -> ConfigPatch {
    ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() }
}

pub(crate) fn durable() -> ConfigPatch {
    let durability = Some(Durability::Fsync);
    ConfigPatch { leases_durable: Some(true), durability, ..queue() }
}

fn job(data: &str) -> NewRecord<'_> {
    rec(data)
}

pub(crate) fn seqs(c: &Claimed) -> Vec<u64> {
    c.iter().map(|(l, r)| (l.seq == r.seq).then_some(l.seq).unwrap()).collect()
}

fn ids(c: &Claimed) -> Vec<u64> {
    c.iter().map(|(l, _)| l.lease_id).collect()
}

impl World {
    pub(crate) fn jobs(&self, n: usize) {
        let data: Vec<String> = (0..n).map(|i| format!("\"job {i}\"")).collect();
        self.put("q", &data.iter().map(String::as_str).collect::<Vec<_>>());
    }

    fn post(&self, records: &[NewRecord<'_>]) -> Result<u64> {
        let req = Append { records, ..Append::default() };
        Ok(self.engine().append("q", &req)?.first_seq)
    }

    pub(crate) fn claim(&self, node: &str, max: usize) -> Claimed {
        let req = Claim { node: node.as_bytes(), max, ..Claim::default() };
        self.engine().claim("q", &req).unwrap()
    }

    pub(crate) fn ack(&self, node: &str, seqs: &[u64], lease_ids: Option<&[u64]>) -> LeaseOutcome {
        let held = LeasedJobs { node: node.as_bytes(), seqs, lease_ids };
        self.engine().ack("q", &held).unwrap()
    }

    pub(crate) fn nack(&self, node: &str, seqs: &[u64], delay: Option<u64>) -> LeaseOutcome {
        let held = LeasedJobs { node: node.as_bytes(), seqs, lease_ids: None };
        self.engine().nack("q", &held, delay).unwrap()
    }

    fn counts(&self) -> QueueState {
        self.state("q").queue.unwrap()
    }
}

#[test]
fn a_job_is_claimed_acked_and_gone() {
    let mut w = World::new();
    w.create("q", queue());
    w.jobs(3);
    let c = w.claim("a", 2);
    assert_eq!(seqs(&c), [1, 2]);
    assert_eq!(c.get(0).unwrap().1.data, b"\"job 0\"");
    assert_eq!((c.get(0).unwrap().0.deliveries, c.ready), (1, 1));
    let want = QueueState { ready: 1, in_flight: 2, ..QueueState::default() };
    assert_eq!(w.counts(), want);
    // I6: neither another node nor another id acks it.
    assert_eq!(w.ack("b", &[1], None).skipped, [1]);
    assert_eq!(w.ack("a", &[1, 2], Some(&[7, 8])).skipped, [1, 2]);
    let s = w.ack("a", &[2, 1, 1, 9], None);
    assert_eq!((s.done, s.skipped), (vec![1, 2], vec![1, 9]));
    assert_eq!(s.queue, QueueState { ready: 1, ..QueueState::default() });
    for kill in [true, false] {
        if kill {
            w.kill()
        } else {
            w.reopen()
        }
        assert_eq!(w.seqs("q"), [3]);
        assert_eq!(seqs(&w.claim("a", 9)), [3]);
    }
}

#[test]
fn verbs_of_queues_are_refused_by_logs() {
    let w = World::new();
    w.put("q", &["1"]);
    let claim = Claim { node: b"a", ..Claim::default() };
    let code = |e: Error| e.code();
    assert_eq!(w.engine().claim("q", &claim).map_err(code).unwrap_err(), "not_a_queue");
    assert_eq!(
        w.engine().ack("q", &LeasedJobs::default()).map_err(code).unwrap_err(),
        "not_a_queue"
    );
    assert_eq!(w.engine().peek("q", None, 1).map_err(code).unwrap_err(), "not_a_queue");
    assert_eq!(w.engine().work("q", b"a", 1, None).map_err(code).unwrap_err(), "not_a_queue");
    for r in [
        NewRecord { lane: Some(5), ..job("1") },
        NewRecord { group: b"g", ..job("1") },
        NewRecord { delay_ms: 1, ..job("1") },
        NewRecord { deliver_at: 1, ..job("1") },
    ] {
        assert_eq!(w.post(&[r]).map_err(code).unwrap_err(), "not_a_queue");
    }
    assert_eq!(w.seqs("q"), [1]);
    let w = World::new();
    w.create("q", queue());
    assert_eq!(
        w.post(&[NewRecord { lane: Some(10), ..job("1") }]).map_err(code).unwrap_err(),
        "invalid_request"
    );
    assert!(w.post(&[NewRecord { group: &[7; 128], ..job("1") }]).is_ok());
    assert_eq!(
        w.post(&[NewRecord { group: &[7; 129], ..job("1") }]).map_err(code).unwrap_err(),
        "record_too_large"
    );
    assert_eq!(
        w.engine().claim("q", &Claim::default()).map_err(code).unwrap_err(),
        "invalid_request"
    );
    assert_eq!(w.state("q").config.discard.as_str(), "reject");
}

#[test]
fn options_survive_segments_and_restarts() {
    for checkpoint in [false, true] {
        for end in 0..3 {
            let mut w = World::new();
            w.create("q", ConfigPatch { durability: Some(Durability::Fsync), ..queue() });
            let later = w.clock_wall() + 5_000;
            w.post(&[
                job("1"),
                NewRecord { lane: Some(9), ..job("2") },
                NewRecord { lane: Some(0), ..job("3") },
                NewRecord { group: b"g", ..job("4") },
                NewRecord { group: b"g", lane: Some(1), ..job("5") },
                NewRecord { delay_ms: 5_000, ..job("6") },
                NewRecord { deliver_at: later, lane: Some(0), ..job("7") },
                job("8"),
            ])
            .unwrap();
            if checkpoint {
                w.checkpoint();
            }
            match end {
                0 => w.kill(),
                1 => w.power_cut(),
                _ => w.reopen(),
            }
            assert_eq!(w.counts(), QueueState { ready: 6, delayed: 2, ..QueueState::default() });
            assert_eq!(seqs(&w.claim("a", 99)), [3, 1, 4, 8, 2]);
            w.ack("a", &[4], None);
            assert_eq!(seqs(&w.claim("a", 99)), [5]);
            w.clock.advance_ms(5_000);
            assert_eq!(seqs(&w.claim("a", 99)), [7, 6]);
        }
    }
}

#[test]
fn leases_run_out_and_are_extended() {
    let w = World::new();
    w.create("q", ConfigPatch { lease_ms: Some(1_000), ..queue() });
    w.jobs(2);
    let first = w.claim("a", 2);
    w.clock.advance_ms(900);
    let held = LeasedJobs { node: b"a", seqs: &[1], lease_ids: Some(&ids(&first)[..1]) };
    let s = w.engine().extend("q", &held, Some(5_000)).unwrap();
    assert_eq!((s.done, s.deadline), (vec![1], Some(w.clock_wall() + 5_000)));
    w.clock.advance_ms(100);
    let second = w.claim("b", 2);
    assert_eq!(seqs(&second), [2]);
    assert_eq!(second.get(0).unwrap().0.deliveries, 2);
    // I6: the lease of before changes nothing.
    assert_eq!(w.ack("a", &[2], Some(&ids(&first)[1..])).skipped, [2]);
    assert_eq!(w.nack("a", &[2], None).skipped, [2]);
    assert_eq!(w.ack("b", &[2], Some(&ids(&second))).done, [2]);
    w.clock.advance_ms(4_900);
    assert_eq!(seqs(&w.claim("b", 2)), [1]);
}

#[test]
fn nacks_come_back_after_their_delay() {
    let w = World::new();
    w.create("q", queue());
    w.jobs(3);
    w.claim("a", 3);
    w.nack("a", &[1], Some(0));
    w.nack("a", &[2], Some(500));
    w.nack("a", &[3], None);
    assert_eq!(w.counts(), QueueState { ready: 1, delayed: 2, ..QueueState::default() });
    assert_eq!(seqs(&w.claim("a", 9)), [1]);
    w.clock.advance_ms(500);
    assert_eq!(seqs(&w.claim("a", 9)), [2]);
    w.clock.advance_ms(499);
    assert!(w.claim("a", 9).is_empty());
    w.clock.advance_ms(1);
    assert_eq!(seqs(&w.claim("a", 9)), [3], "the queue's backoff is 1 s");
    w.nack("a", &[3], None);
    w.clock.advance_ms(1_999);
    assert!(w.claim("b", 9).is_empty());
    w.clock.advance_ms(1);
    assert_eq!(seqs(&w.claim("b", 9)), [3]);
}

#[test]
fn leases_that_are_not_durable_end_with_the_process() {
    let mut w = World::new();
    w.create("q", queue());
    w.jobs(3);
    let before = w.claim("a", 2);
    w.ack("a", &[1], None);
    w.kill();
    assert_eq!(w.ack("a", &[2], Some(&ids(&before)[1..])).skipped, [2]);
    let after = w.claim("a", 9);
    assert_eq!(seqs(&after), [2, 3]);
    assert_eq!(after.get(0).unwrap().0.deliveries, 1);
    assert!(ids(&after).iter().all(|id| !ids(&before).contains(id)));
    // I6: an id of before never fits.
    assert_eq!(w.ack("a", &[2], Some(&ids(&before)[1..])).skipped, [2]);
}

#[test]
fn durable_leases_begin_anew() {
    for checkpoint in [false, true] {
        for end in 0..3 {
            let mut w = World::new();
            w.create("q", ConfigPatch { lease_ms: Some(1_000), ..durable() });
            w.jobs(4);
            let c = w.claim("a", 3);
            w.nack("a", &[2], Some(700));
            w.nack("a", &[3], Some(0));
            w.clock.advance_ms(600);
            if checkpoint {
                w.checkpoint();
            }
            match end {
                0 => w.kill(),
                1 => w.power_cut(),
                _ => w.reopen(),
            }
            w.clock.advance_ms(99);
            let d = w.claim("b", 9);
            assert_eq!(seqs(&d), [3, 4]);
            assert_eq!(d.get(0).unwrap().0.deliveries, 2, "deliveries are durable too");
            w.clock.advance_ms(900);
            let e = w.claim("b", 9);
            assert_eq!(seqs(&e), [2], "checkpoint {checkpoint}, end {end}");
            // The full time from the open on, under the id that was given.
            assert_eq!(w.ack("a", &[1], Some(&ids(&c)[..1])).done, [1]);
            w.kill();
            assert_eq!(w.seqs("q"), [2, 3, 4]);
        }
    }
}

#[test]
fn a_queue_can_stop_keeping_leases() {
    let mut w = World::new();
    w.create("q", durable());
    w.jobs(2);
    w.claim("a", 1);
    w.create("q", ConfigPatch { leases_durable: Some(false), ..queue() });
    w.kill();
    assert_eq!(seqs(&w.claim("b", 9)), [1, 2]);
}

/// Creates a topic that has one record and takes no other.
pub(super) fn create_full(w: &World, topic: &str) {
    let discard = Some(crate::types::config::Discard::Reject);
    w.create(topic, ConfigPatch { cap_records: Some(1), discard, ..ConfigPatch::default() });
    w.put(topic, &["0"]);
}

pub(crate) fn dead_letters() -> ConfigPatch {
    ConfigPatch {
        max_deliveries: Some(2),
        dead_letter: Some(Some("dead".into())),
        retry_backoff_ms: Some(0),
        ..queue()
    }
}

#[test]
fn over_its_deliveries_a_job_is_a_dead_letter() {
    let mut w = World::new();
    w.create("q", dead_letters());
    w.post(&[
        NewRecord { meta: br#"{"a":"b"}"#, tag: b"t", node: b"n", ..job("1") },
        NewRecord { lane: Some(3), binary: true, ..job("2") },
        job("3"),
    ])
    .unwrap();
    for _ in 0..2 {
        assert_eq!(w.claim("a", 2).len(), 2);
        w.nack("a", &[1, 2], Some(0));
    }
    assert_eq!(seqs(&w.claim("a", 9)), [3]);
    let check = |w: &World| {
        assert_eq!(w.seqs("q"), [3]);
        let dead = w.read("dead", 0);
        let letters: Vec<_> = dead.iter().collect();
        assert_eq!(letters.len(), 2);
        assert_eq!(
            (letters[0].data, letters[0].tag, letters[0].node),
            (&b"1"[..], &b"t"[..], &b"n"[..])
        );
        let meta = std::str::from_utf8(letters[0].meta).unwrap();
        assert_eq!(
            meta,
            concat!(
                r#"{"a":"b","$dead_letter_from":"q","$dead_letter_deliveries":"2","#,
                r#""$dead_letter_src_seq":"1","$dead_letter_reason":"max_deliveries"}"#
            )
        );
        assert!(letters[1].binary && letters[1].data == b"2");
        assert_eq!(w.state("dead").config.kind, TopicType::Log);
    };
    check(&w);
    assert_eq!(w.counts().dead_lettered, 2);
    w.power_cut();
    // The queue is of class `disk`; its deletes were synced before the keys were released.
    assert!(w.seqs("dead").len() == 2, "the copies are synced, whatever their class");
    let dry = Redrive { dry_run: true, ..Redrive::default() };
    let letters = w.engine().redrive("dead", &dry).unwrap();
    assert_eq!((letters.moved, letters.records_scanned), (2, 2));
    let one = Redrive { matching: eq("t"), ..Redrive::default() };
    assert_eq!(w.engine().redrive("dead", &one).unwrap().moved, 1);
    let back = w.read("q", w.seqs("q").last().unwrap() - 1);
    let back = back.get(0).unwrap();
    assert_eq!((back.data, back.meta), (&b"1"[..], &br#"{"a":"b"}"#[..]));
    assert_eq!(w.seqs("dead").len(), 1);
    let c = w.claim("a", 9);
    let mine = c.iter().find(|(l, _)| l.seq == back.seq).unwrap();
    assert_eq!(mine.0.deliveries, 1, "deliveries begin anew");
}

#[test]
fn held_keys_are_released_when_the_delete_is_synced() {
    let mut w = World::new();
    w.create("q", dead_letters());
    w.jobs(1);
    for _ in 0..2 {
        w.claim("a", 1);
        w.nack("a", &[1], Some(0));
    }
    assert!(w.claim("a", 1).is_empty());
    let held = |w: &World| {
        let t = w.engine().find("dead").unwrap();
        let state = t.state.read();
        state.dedupe.as_ref().map_or(0, |d| d.pinned().len())
    };
    assert_eq!(held(&w), 1);
    w.engine().sync().unwrap();
    w.engine().drive();
    assert_eq!(held(&w), 0);
    w.kill();
    assert_eq!(held(&w), 0);
    assert_eq!((w.seqs("q").len(), w.seqs("dead").len()), (0, 1));
}

#[test]
fn without_a_dead_letter_topic_it_is_dead_until_it_is_revived() {
    let mut w = World::new();
    let config = ConfigPatch { max_deliveries: Some(1), ..durable() };
    w.create("q", config);
    w.jobs(2);
    assert_eq!(w.claim("a", 2).len(), 2);
    w.nack("a", &[1, 2], Some(0));
    assert!(w.claim("a", 2).is_empty());
    assert_eq!(w.counts(), QueueState { dead: 2, ..QueueState::default() });
    w.kill();
    assert!(w.claim("a", 2).is_empty());
    let dead: Vec<u64> = {
        let p = w.engine().peek("q", Some(JobState::Dead), 9).unwrap();
        p.iter()
            .map(|(j, r)| (j.seq == r.seq && j.deliveries == 1).then_some(j.seq).unwrap())
            .collect()
    };
    assert_eq!(dead, [1, 2]);
    let one = Redrive { seqs: Some(vec![2]), ..Redrive::default() };
    assert_eq!(w.engine().redrive("q", &one).unwrap().moved, 1);
    w.kill();
    assert_eq!(seqs(&w.claim("a", 2)), [2]);
    assert_eq!(w.engine().redrive("q", &Redrive::default()).unwrap().moved, 1);
    assert_eq!(seqs(&w.claim("a", 2)), [1]);
}

#[test]
fn what_expires_is_a_dead_letter_and_is_counted() {
    for own in [false, true] {
        let w = World::new();
        let ttl = if own { 0 } else { 1_000 };
        w.create("q", ConfigPatch { ttl_ms: Some(ttl), ..dead_letters() });
        let ttl_ms = if own { 1_000 } else { 0 };
        w.post(&[NewRecord { ttl_ms, ..job("1") }, NewRecord { ttl_ms, ..job("2") }]).unwrap();
        w.claim("a", 1);
        w.clock.advance_ms(10_001);
        assert!(w.claim("a", 9).is_empty(), "an expired job is not leased");
        w.engine().tick().unwrap();
        assert_eq!(w.seqs("q"), [0_u64; 0]);
        let dead = w.read("dead", 0);
        assert_eq!(dead.iter().map(|r| r.data).collect::<Vec<_>>(), [b"1", b"2"]);
        let meta = std::str::from_utf8(dead.get(0).unwrap().meta).unwrap();
        assert!(meta.contains(r#""$dead_letter_reason":"expired""#));
        let counts = w.counts();
        assert_eq!((counts.expired, counts.dead_lettered, counts.ready), (2, 2, 0));
    }
}

#[test]
fn a_paused_queue_gives_nothing() {
    let w = World::new();
    w.create("q", ConfigPatch { paused: Some(true), ..queue() });
    w.jobs(1);
    assert!(w.claim("a", 1).is_empty());
    w.create("q", ConfigPatch { paused: Some(false), ..queue() });
    assert_eq!(w.claim("a", 1).len(), 1);
}

#[test]
fn deleted_and_evicted_jobs_are_forgotten() {
    let w = World::new();
    w.create("q", queue());
    w.tagged("q", &["x", "y", "x", "y"]);
    w.claim("a", 2);
    w.delete("q", None, eq("x"));
    assert_eq!(w.counts(), QueueState { ready: 1, in_flight: 1, ..QueueState::default() });
    w.delete("q", Some(3), None);
    assert_eq!(w.counts(), QueueState { ready: 1, ..QueueState::default() });
    assert_eq!(w.ack("a", &[1, 2], None).skipped, [1, 2]);
    assert_eq!(seqs(&w.claim("a", 9)), [4]);
}

#[test]
fn what_is_dead_begins_no_lease_or_delay_anew() {
    for delay in [None, Some(50)] {
        for checkpoint in [false, true] {
            let mut w = World::new();
            w.create("q", ConfigPatch { max_deliveries: Some(1), ..durable() });
            let grouped = |d| NewRecord { group: b"g", ..job(d) };
            w.post(&[grouped("1"), grouped("2")]).unwrap();
            assert_eq!(seqs(&w.claim("a", 1)), [1]);
            if let Some(ms) = delay {
                w.nack("a", &[1], Some(ms));
            }
            if checkpoint {
                w.checkpoint();
                w.kill();
            }
            // The lease or delay runs out, the job is dead and makes way for the next of its group.
            w.clock.advance_ms(60_000);
            assert_eq!(seqs(&w.claim("b", 1)), [2]);
            w.kill();
            // I6: at most one job of a group is leased.
            let state = |w: &World, state| {
                let p = w.engine().peek("q", Some(state), 9).unwrap();
                p.iter().map(|(j, _)| (j.seq, j.deliveries)).collect::<Vec<_>>()
            };
            assert_eq!(state(&w, JobState::Leased), [(2, 1)]);
            assert_eq!(state(&w, JobState::Delayed), []);
            w.ack("b", &[2], None);
            // Found dead again, and revived for good.
            assert!(w.claim("b", 1).is_empty());
            assert_eq!(state(&w, JobState::Dead), [(1, 1)]);
            assert_eq!(w.engine().redrive("q", &Redrive::default()).unwrap().moved, 1);
            w.kill();
            assert_eq!(state(&w, JobState::Ready), [(1, 0)]);
        }
    }
}

#[test]
fn expired_jobs_hide_no_others() {
    for grouped in [false, true] {
        let w = World::new();
        w.create("q", queue());
        let group: &[u8] = if grouped { b"g" } else { b"" };
        let brief = |d| NewRecord { ttl_ms: 100, group, ..job(d) };
        w.post(&[brief("1"), brief("2"), brief("3"), NewRecord { group, ..job("4") }]).unwrap();
        w.engine().tick().unwrap();
        w.clock.advance_ms(101);
        let ready = |w: &World| {
            let p = w.engine().peek("q", Some(JobState::Ready), 1).unwrap();
            p.iter().map(|(j, _)| j.seq).collect::<Vec<_>>()
        };
        if grouped {
            assert_eq!(ready(&w), [4]);
        }
        assert_eq!(seqs(&w.claim("a", 1)), [4], "grouped {grouped}");
        assert_eq!((w.counts().expired, w.counts().ready, ready(&w)), (3, 0, vec![]));
    }
}

#[test]
fn a_peek_touches_nothing() {
    let w = World::new();
    w.create("q", queue());
    w.post(&[
        job("1"),
        NewRecord { lane: Some(0), ..job("2") },
        NewRecord { delay_ms: 500, ..job("3") },
        job("4"),
    ])
    .unwrap();
    let c = w.claim("a", 1);
    let p = w.engine().peek("q", None, 9).unwrap();
    let got: Vec<_> = p.iter().map(|(j, r)| (j.state, j.seq, j.lane, r.data[0])).collect();
    use JobState::*;
    let want =
        [(Ready, 1, 5, b'1'), (Ready, 4, 5, b'4'), (Leased, 2, 0, b'2'), (Delayed, 3, 5, b'3')];
    assert_eq!(got, want);
    let leased = p.iter().nth(2).unwrap().0;
    assert_eq!(leased.lease_id, Some(ids(&c)[0]));
    assert_eq!(leased.deadline, Some(c.get(0).unwrap().0.deadline));
    let ready = w.engine().peek("q", Some(Ready), 1).unwrap();
    assert_eq!(ready.iter().map(|(j, _)| j.seq).collect::<Vec<_>>(), [1]);
    assert_eq!(w.claim("a", 1).get(0).unwrap().0.deliveries, 1);
}

#[test]
fn a_peek_shows_the_group_wherever_the_record_lies() {
    let mut w = World::new();
    w.create("q", queue());
    w.post(&[
        NewRecord { group: b"g", lane: Some(2), ..job("1") },
        NewRecord { group: "ü".as_bytes(), delay_ms: 1000, tag: b"t", ..job("2") },
        NewRecord { lane: Some(1), tag: b"t", ..job("3") },
        job("4"),
    ])
    .unwrap();
    for _ in 0..3 {
        let p = w.engine().peek("q", None, 9).unwrap();
        let mut got: Vec<_> = p.iter().map(|(j, r)| (j.seq, j.group.clone(), r.tag)).collect();
        got.sort_unstable();
        let group = |g: &str| Some(g.as_bytes().to_vec());
        let want =
            [(1, group("g"), &b""[..]), (2, group("ü"), b"t"), (3, None, b"t"), (4, None, b"")];
        assert_eq!(got, want);
        w.checkpoint();
        w.reopen();
    }
}

/// A claim that waits; the engine is driven by hand.
pub(crate) fn wait(w: &World, node: &str, max: usize, ms: u64) -> mpsc::Receiver<Result<Claimed>> {
    let (tx, rx) = mpsc::channel();
    let wait = Duration::from_millis(ms);
    let req = Claim { node: node.as_bytes(), max, wait, ..Claim::default() };
    w.engine().claim_async("q", &req, Box::new(move |r| drop(tx.send(r))));
    rx
}

pub(crate) fn got(rx: &mpsc::Receiver<Result<Claimed>>) -> Option<Vec<u64>> {
    rx.try_recv().ok().map(|r| seqs(&r.unwrap()))
}

#[test]
fn a_claim_waits_for_what_becomes_claimable() {
    let mut w = World::new();
    w.create("q", ConfigPatch { lease_ms: Some(1_000), ..queue() });
    let tick = |w: &World, ms| {
        w.clock.advance_ms(ms);
        w.engine().tick().unwrap();
    };
    // A record.
    let rx = wait(&w, "a", 9, 30_000);
    tick(&w, 10);
    assert_eq!(got(&rx), None);
    w.jobs(1);
    tick(&w, 0);
    assert_eq!(got(&rx), Some(vec![1]));
    // A lease that runs out.
    let rx = wait(&w, "b", 9, 30_000);
    tick(&w, 999);
    assert_eq!(got(&rx), None);
    tick(&w, 1);
    assert_eq!(got(&rx), Some(vec![1]));
    // A release, and its delay.
    let rx = wait(&w, "c", 9, 30_000);
    w.nack("b", &[1], Some(50));
    tick(&w, 49);
    assert_eq!(got(&rx), None);
    tick(&w, 1);
    assert_eq!(got(&rx), Some(vec![1]));
    // Another job of the group is done.
    w.post(&[NewRecord { group: b"g", ..job("2") }, NewRecord { group: b"g", ..job("3") }])
        .unwrap();
    assert_eq!(seqs(&w.claim("c", 9)), [2]);
    let rx = wait(&w, "d", 9, 30_000);
    w.ack("c", &[2], None);
    tick(&w, 0);
    assert_eq!(got(&rx), Some(vec![3]));
    // A claim that reaches its timeout.
    w.ack("d", &[3], None);
    w.ack("c", &[1], None);
    let rx = wait(&w, "e", 9, 200);
    tick(&w, 199);
    assert_eq!(got(&rx), None);
    tick(&w, 1);
    assert_eq!(got(&rx), Some(vec![]));
    // The end of the queue, of the engine.
    let rx = wait(&w, "e", 9, 30_000);
    w.engine().delete_topic("q", false).unwrap();
    tick(&w, 0);
    assert_eq!(rx.try_recv().unwrap().unwrap_err().code(), "topic_not_found");
    w.create("q", queue());
    let rx = wait(&w, "e", 9, 30_000);
    w.close();
    assert_eq!(rx.try_recv().unwrap().unwrap_err().code(), "shutting_down");
}

#[test]
fn a_withdrawn_claim_is_never_answered() {
    let w = World::new();
    w.create("q", queue());
    let (tx, rx) = mpsc::channel();
    let req = Claim { node: b"a", wait: Duration::from_secs(30), ..Claim::default() };
    let id = w.engine().claim_async("q", &req, Box::new(move |r| drop(tx.send(r))));
    w.engine().cancel_claim("q", id);
    w.jobs(1);
    w.engine().tick().unwrap();
    assert!(rx.try_recv().is_err());
    assert_eq!(w.claim("b", 1).len(), 1);
}

/// Cancels a claim at the first sync that it sees once it is armed.
#[derive(Debug, Default)]
struct CancelAtSync(Mutex<Option<(crate::engine::Engine, u64)>>);

impl Hook for CancelAtSync {
    fn visit(&self, site: Site) -> Verdict {
        if matches!(site, Site::Sync(_))
            && let Some((engine, id)) = self.0.lock().take()
        {
            engine.cancel_claim("q", id);
        }
        Verdict::Run
    }
}

#[test]
fn a_claim_that_is_cancelled_while_its_lease_is_logged_holds_nothing() {
    let cancel = Arc::new(CancelAtSync::default());
    let mut w = World::new();
    w.hook = Some(cancel.clone());
    w.reopen();
    w.create("q", durable());
    let (tx, rx) = mpsc::channel();
    let req = Claim { node: b"a", wait: Duration::from_secs(30), ..Claim::default() };
    let id = w.engine().claim_async("q", &req, Box::new(move |r| drop(tx.send(r))));
    w.jobs(1);
    *cancel.0.lock() = Some((w.engine().clone(), id));
    w.engine().tick().unwrap();
    assert!(cancel.0.lock().is_none(), "the lease is synced");
    assert!(rx.try_recv().is_err(), "a cancelled claim is answered");
    assert_eq!((w.counts().ready, w.counts().in_flight), (1, 0));
    w.kill();
    assert_eq!((w.counts().ready, w.counts().in_flight), (1, 0));
    assert_eq!(seqs(&w.claim("b", 1)), [1]);
}

#[test]
fn a_claim_that_is_cancelled_while_others_are_answered_holds_nothing() {
    let w = World::new();
    w.create("q", queue());
    let (tx, rx) = mpsc::channel();
    let wait = Duration::from_secs(30);
    let id = Arc::new(std::sync::atomic::AtomicU64::new(0));
    // The first claim's answer cancels the second one, for which a job is reserved already.
    let (engine, second) = (w.engine().clone(), id.clone());
    let req = Claim { node: b"a", wait, ..Claim::default() };
    let first = move |r: Result<Claimed>| {
        assert_eq!(seqs(&r.unwrap()), [1]);
        engine.cancel_claim("q", second.load(std::sync::atomic::Ordering::SeqCst));
    };
    w.engine().claim_async("q", &req, Box::new(first));
    let req = Claim { node: b"b", wait, ..Claim::default() };
    let claimed = w.engine().claim_async("q", &req, Box::new(move |r| drop(tx.send(r))));
    id.store(claimed, std::sync::atomic::Ordering::SeqCst);
    w.jobs(2);
    w.engine().tick().unwrap();
    assert!(rx.try_recv().is_err(), "a cancelled claim is answered");
    assert_eq!((w.counts().ready, w.counts().in_flight), (1, 1));
    assert_eq!(seqs(&w.claim("c", 2)), [2]);
}

#[test]
fn a_job_without_deliveries_left_is_a_dead_letter_without_a_claim() {
    for config in [dead_letters(), ConfigPatch { leases_durable: Some(true), ..dead_letters() }] {
        let mut w = World::new();
        w.create("q", ConfigPatch { max_deliveries: Some(1), lease_ms: Some(500), ..config });
        w.jobs(4);
        assert_eq!(seqs(&w.claim("a", 3)), [1, 2, 3]);
        // It fails, with a delay or without one: nothing comes after it.
        w.nack("a", &[1], Some(60_000));
        w.nack("a", &[2], Some(0));
        w.engine().tick().unwrap();
        assert_eq!((w.seqs("q"), w.seqs("dead").len()), (vec![3, 4], 2));
        // Its lease ends.
        w.clock.advance_ms(499);
        w.engine().tick().unwrap();
        assert_eq!(w.engine().metrics().lease_expiries, 0);
        w.clock.advance_ms(1);
        w.engine().tick().unwrap();
        assert_eq!(w.engine().metrics().lease_expiries, 1);
        assert_eq!((w.seqs("q"), w.seqs("dead").len()), (vec![4], 3));
        let want = QueueState { ready: 1, dead_lettered: 3, ..QueueState::default() };
        assert_eq!(w.counts(), want);
        w.kill();
        assert_eq!((w.seqs("q"), w.seqs("dead").len(), w.counts()), (vec![4], 3, want));
    }
}

#[test]
fn a_job_without_deliveries_left_is_dead_without_a_claim() {
    let mut w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), lease_ms: Some(500), ..durable() });
    w.jobs(2);
    assert_eq!(w.claim("a", 2).len(), 2);
    w.nack("a", &[1], None);
    w.engine().tick().unwrap();
    let dead = |w: &World| {
        let found = w.engine().peek("q", Some(JobState::Dead), 9).unwrap();
        found.iter().map(|(j, _)| j.seq).collect::<Vec<_>>()
    };
    assert_eq!(dead(&w), [1]);
    w.clock.advance_ms(500);
    w.engine().tick().unwrap();
    assert_eq!(dead(&w), [1, 2]);
    w.kill();
    w.engine().tick().unwrap();
    assert_eq!(dead(&w), [1, 2], "an open looks at what was dead");
    // A limit that is lowered takes the jobs that have reached it.
    w.create(
        "r",
        ConfigPatch { max_deliveries: Some(5), dead_letter: Some(Some("dead".into())), ..queue() },
    );
    w.put("r", &["1"]);
    let req = Claim { node: b"a", ..Claim::default() };
    assert_eq!(w.engine().claim("r", &req).unwrap().len(), 1);
    let held = LeasedJobs { node: b"a", seqs: &[1], lease_ids: None };
    w.engine().nack("r", &held, Some(0)).unwrap();
    w.engine().tick().unwrap();
    assert_eq!(w.seqs("r"), [1]);
    w.create("r", ConfigPatch { max_deliveries: Some(1), ..ConfigPatch::default() });
    w.engine().tick().unwrap();
    assert_eq!((w.seqs("r").len(), w.seqs("dead").len()), (0, 1));
}

#[test]
fn dead_letters_that_have_nowhere_to_go_are_tried_again() {
    let w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..dead_letters() });
    create_full(&w, "dead");
    w.jobs(1);
    assert_eq!(w.claim("a", 1).len(), 1);
    w.nack("a", &[1], Some(0));
    w.engine().tick().unwrap();
    assert_eq!((w.seqs("q"), w.counts().ready), (vec![1], 1));
    w.delete("dead", Some(2), None);
    w.clock.advance_ms(1_000);
    w.engine().tick().unwrap();
    assert_eq!((w.seqs("q").len(), w.seqs("dead")), (0, vec![2]));
}

#[test]
fn the_thread_of_an_engine_ends_leases_while_nobody_claims() {
    let w = World::with(crate::types::options::Options { background: true, ..small() });
    w.create("q", ConfigPatch { max_deliveries: Some(1), lease_ms: Some(500), ..dead_letters() });
    w.create("dead", ConfigPatch::default());
    w.jobs(1);
    assert_eq!(w.claim("a", 1).len(), 1);
    w.clock.advance_ms(500);
    // The thread waits by the wall; what it decides goes by the clock of the engine.
    while w.seqs("dead").is_empty() {
        std::thread::yield_now();
    }
    w.engine().close().unwrap();
}

#[test]
fn claims_within_the_window_share() {
    let w = World::new();
    w.create("q", ConfigPatch { claim_jitter_ms: Some(20), ..queue() });
    w.jobs(6);
    let a = wait(&w, "a", 8, 0);
    w.clock.advance_ms(10);
    let b = wait(&w, "b", 4, 0);
    w.engine().tick().unwrap();
    assert_eq!((got(&a), got(&b)), (None, None));
    w.clock.advance_ms(10);
    w.engine().tick().unwrap();
    let (a, b) = (got(&a).unwrap(), got(&b).unwrap());
    assert_eq!((a.len(), b.len()), (4, 2), "in proportion to what was asked for");
    assert!(b[0] < a[3], "in turns");
}

#[test]
fn a_stream_holds_no_more_than_it_may_and_gives_back() {
    for config in [queue(), durable()] {
        let w = World::new();
        w.create("q", config);
        w.jobs(5);
        let work = w.engine().work("q", b"a", 2, None).unwrap();
        assert_eq!(seqs(&work.next(Duration::ZERO).unwrap()), [1, 2]);
        assert!(work.next(Duration::ZERO).unwrap().is_empty());
        let (tx, rx) = mpsc::channel();
        work.next_async(Duration::from_secs(9), Box::new(move |r| drop(tx.send(r))));
        w.engine().tick().unwrap();
        assert_eq!(got(&rx), None);
        w.ack("a", &[1], None);
        w.engine().tick().unwrap();
        assert_eq!(got(&rx), Some(vec![3]));
        drop(work);
        assert_eq!(seqs(&w.claim("b", 9)), [2, 3, 4, 5]);
    }
}

#[test]
fn threads_share_a_queue() {
    let options = crate::types::options::Options { background: true, ..small() };
    let w = Arc::new(World::with(options));
    w.create("q", queue());
    let n = 400;
    let workers: Vec<_> = (0..4)
        .map(|i| {
            let e = w.engine().clone();
            std::thread::spawn(move || {
                let node = format!("w{i}");
                let mut mine = Vec::new();
                let wait = Duration::from_secs(2);
                let req = Claim { node: node.as_bytes(), max: 3, wait, ..Claim::default() };
                loop {
                    let got = match e.claim("q", &req) {
                        Ok(got) => seqs(&got),
                        // Only the close ends a worker.
                        Err(e) => break assert_eq!(e.code(), "shutting_down"),
                    };
                    let held = LeasedJobs { node: node.as_bytes(), seqs: &got, lease_ids: None };
                    assert_eq!(e.ack("q", &held).unwrap().done, got);
                    mine.extend(got);
                }
                mine
            })
        })
        .collect();
    for _ in 0..n {
        w.jobs(1);
    }
    while w.counts() != QueueState::default() {
        std::thread::yield_now();
    }
    w.engine().close().unwrap();
    let mut all: Vec<u64> = workers.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort_unstable();
    // I6: each job was one worker's, and none was lost.
    assert_eq!(all, (1..=n).collect::<Vec<_>>());
}

#[test]
fn a_job_that_is_released_was_not_delivered() {
    for config in [queue(), durable()] {
        let mut w = World::new();
        w.create("q", ConfigPatch { max_deliveries: Some(2), ..config });
        w.jobs(2);
        w.claim("a", 1);
        w.nack("a", &[1], Some(0));
        for _ in 0..5 {
            let c = w.claim("a", 2);
            let deliveries: Vec<u32> = c.iter().map(|(lease, _)| lease.deliveries).collect();
            assert_eq!((seqs(&c), deliveries), (vec![1, 2], vec![2, 1]));
            let held = LeasedJobs { node: b"a", seqs: &[1, 2, 3], lease_ids: None };
            let released = w.engine().release("q", &held).unwrap();
            assert_eq!((released.done, released.skipped), (vec![1, 2], vec![3]));
            assert_eq!((released.queue.ready, released.queue.dead), (2, 0));
        }
        if w.state("q").config.leases_durable {
            w.checkpoint();
            w.claim("a", 2);
            let held = LeasedJobs { node: b"a", seqs: &[1, 2], lease_ids: None };
            w.engine().release("q", &held).unwrap();
            w.kill();
            let deliveries = |w: &World| -> Vec<u32> {
                w.engine().peek("q", None, 9).unwrap().iter().map(|(j, _)| j.deliveries).collect()
            };
            assert_eq!(deliveries(&w), [1, 0], "as the log says");
        }
    }
}

#[test]
fn a_stream_that_released_its_jobs_gets_no_more() {
    let w = World::new();
    w.create("q", queue());
    w.jobs(3);
    let work = w.engine().work("q", b"a", 2, None).unwrap();
    assert_eq!(seqs(&work.next(Duration::ZERO).unwrap()), [1, 2]);
    let longer = w.engine().extend_stream("q", b"a", work.stream(), Some(60_000)).unwrap();
    assert_eq!(longer.done, [1, 2]);
    w.clock.advance_ms(59_000);
    let released = w.engine().release_stream("q", b"a", work.stream()).unwrap();
    assert_eq!((released.done, released.queue.ready), (vec![1, 2], 3));
    assert!(work.next(Duration::ZERO).unwrap().is_empty());
    drop(work);
    let next = w.engine().work("q", b"a", 2, None).unwrap();
    let c = next.next(Duration::ZERO).unwrap();
    assert!(c.iter().all(|(lease, _)| lease.deliveries == 1));
    // A stream that breaks may have begun its jobs.
    drop(next);
    assert!(w.claim("a", 2).iter().all(|(lease, _)| lease.deliveries == 2));
}

#[test]
fn a_skipped_job_has_a_reason() {
    for config in [queue(), durable()] {
        let mut w = World::new();
        w.create("q", ConfigPatch { lease_ms: Some(1_000), ..config });
        w.jobs(3);
        let c = w.claim("a", 3);
        w.ack("a", &[1], None);
        w.nack("a", &[2], Some(0));
        let reasons = |w: &World| w.ack("b", &seqs(&c), Some(&ids(&c))).reasons;
        assert_eq!(reasons(&w), [LeaseEnd::Gone, LeaseEnd::Ended, LeaseEnd::Ended]);
        let is_durable = w.state("q").config.leases_durable;
        w.kill();
        let after = match is_durable {
            true => [LeaseEnd::Gone, LeaseEnd::Ended, LeaseEnd::Ended],
            false => [LeaseEnd::Restarted; 3],
        };
        assert_eq!(reasons(&w), after);
        assert_eq!(
            w.ack("a", &[3], None).reasons,
            if is_durable { vec![] } else { vec![LeaseEnd::Ended] }
        );
    }
}
