//! The queue machine: claims that wait, leases that run out, and their fences (I6).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use topics_engine::{
    Append, Claim, Claimed, ConfigPatch, Durability, Error, LeasedJobs, NewRecord, TopicType,
};
use topics_env::sync::{Condvar, Mutex};

use crate::world::{LONG, Time, World, flip, join, spawn};

fn queue(w: &World, leases_durable: bool) {
    let config = ConfigPatch {
        kind: Some(TopicType::Queue),
        durability: Some(if flip() { Durability::Memory } else { Durability::Fsync }),
        leases_durable: Some(leases_durable),
        ..ConfigPatch::default()
    };
    w.engine.create_topic("q", &config).unwrap();
}

fn node(name: u64) -> Vec<u8> {
    format!("node {name}").into_bytes()
}

/// Jobs of each of three workers.
const EACH: u64 = 2;

/// Workers that wait before there is a job: each job is given once, and wakes somebody. No time
/// passes, so that nobody is helped by a timer.
pub fn produced() {
    let w = World::open(true);
    queue(&w, flip());
    let work = |name: u64| {
        spawn(&w, move |w| {
            let mut had = Vec::new();
            for _ in 0..EACH {
                let node = node(name);
                let req = Claim { node: &node, max: 1, lease_ms: None, wait: LONG };
                let claimed = w.engine.claim("q", &req).unwrap();
                had.extend(claimed.iter().map(|(l, _)| l.seq));
            }
            had
        })
    };
    let workers = [work(1), work(2), work(3)];
    let write = |name: u64| {
        let one = move |w: &World, i: u64| w.put("q", &format!("{name}.{i}"), 1);
        spawn(&w, move |w| (0..3 * EACH / 2).for_each(|i| one(w, i)))
    };
    join([write(1), write(2)]);
    let mut given: Vec<u64> = join(workers).into_iter().flatten().collect();
    given.sort_unstable();
    assert!(given.into_iter().eq(1..=3 * EACH), "I6: each job once");
    w.engine.close().unwrap();
}

/// The last lease of each job, and the lease that ended with it, by seq.
#[derive(Default)]
struct Board {
    held: BTreeMap<u64, u64>,
    done: BTreeMap<u64, u64>,
}

/// Workers that stall until their leases run out: a stale fence changes nothing.
pub fn leased() {
    const JOBS: u64 = 3;
    let w = World::open(true);
    queue(&w, false);
    (0..JOBS).for_each(|i| w.put("q", &i.to_string(), 1));
    let board = Arc::new(Mutex::new(Board::default()));
    let work = |name: u64| {
        let board = board.clone();
        spawn(&w, move |w| {
            while board.lock().done.len() < JOBS as usize {
                let wait = Duration::from_millis(300);
                let node = node(name);
                let req = Claim { node: &node, max: 1, lease_ms: Some(100), wait };
                let claimed = w.engine.claim("q", &req).unwrap();
                let Some((lease, _)) = claimed.get(0) else { continue };
                let (seq, id) = (lease.seq, lease.lease_id);
                {
                    let mut b = board.lock();
                    // A later lease may have ended with the job since this one was given.
                    let is_before = b.done.get(&seq).is_none_or(|&done| id < done);
                    assert!(is_before, "I6: job {seq} is given after it was done");
                    let held = b.held.entry(seq).or_default();
                    *held = id.max(*held);
                }
                if flip() {
                    // Long enough for the lease, if time passes.
                    (0..3).for_each(|_| topics_env::sync::thread::yield_now());
                }
                let stale = board.lock().held[&seq] != id;
                let held = LeasedJobs { node: &node, seqs: &[seq], lease_ids: Some(&[id]) };
                let settled = w.engine.ack("q", &held).unwrap();
                if settled.done.contains(&seq) {
                    assert!(!stale, "I6: a stale fence acks job {seq}");
                    let before = board.lock().done.insert(seq, id);
                    assert!(before.is_none(), "I6: job {seq} is done twice");
                }
            }
        })
    };
    let workers = [work(1), work(2)];
    let time = Time::run(&w.clock, Duration::from_millis(60));
    join(workers);
    time.stop();
    let left = w.engine.queue_state("q").unwrap();
    assert_eq!((left.ready, left.in_flight), (0, 0));
    w.engine.close().unwrap();
}

/// A close, or the end of the queue, while claims wait: each is told.
pub fn dismissed() {
    let w = World::open(true);
    queue(&w, false);
    let work = |name: u64| {
        spawn(&w, move |w| {
            let node = node(name);
            let req = Claim { node: &node, max: 1, lease_ms: None, wait: LONG };
            match w.engine.claim("q", &req) {
                Ok(claimed) => assert!(!claimed.is_empty(), "a wait ended before its time"),
                Err(Error::Closed | Error::TopicNotFound(_)) => {}
                Err(e) => panic!("{e}"),
            }
        })
    };
    let mut threads = vec![work(1), work(2)];
    threads.push(spawn(&w, |w| {
        let record = NewRecord { data: b"1", ..NewRecord::default() };
        let req = Append { records: &[record], create: Some(false), ..Append::default() };
        let _ = w.engine.append("q", &req);
    }));
    if flip() {
        let _ = w.engine.delete_topic("q", false);
    }
    w.engine.close().unwrap();
    join(threads);
}

/// A claim that is cancelled while a job comes: it is answered, or another claim gets the job. No
/// time passes, so that no lease ends by itself.
pub fn cancelled() {
    let w = World::open(true);
    queue(&w, flip());
    let answer = Arc::new((Mutex::new(None), Condvar::new()));
    let node1 = node(1);
    let req = Claim { node: &node1, max: 1, lease_ms: None, wait: LONG };
    let done = {
        let answer = answer.clone();
        move |outcome: topics_engine::Result<Claimed>| {
            *answer.0.lock() = Some(outcome.unwrap().len());
            answer.1.notify_all();
        }
    };
    let id = w.engine.claim_async("q", &req, Box::new(done));
    let threads = [
        spawn(&w, |w| {
            w.put("q", "1", 1);
            false
        }),
        spawn(&w, move |w| w.engine.cancel_claim("q", id)),
    ];
    if join(threads).contains(&true) {
        let node = node(2);
        let req = Claim { node: &node, max: 1, lease_ms: None, wait: LONG };
        let claimed = w.engine.claim("q", &req).unwrap();
        assert_eq!(claimed.len(), 1, "a wait ended before its time");
        assert!(answer.0.lock().is_none(), "a cancelled claim is answered");
    } else {
        let mut got = answer.0.lock();
        while got.is_none() {
            answer.1.wait(&mut got);
        }
        assert_eq!(*got, Some(1), "a wait ended before its time");
    }
    w.engine.close().unwrap();
}

/// A job that fails, and a lease that ends, while nobody claims: both become dead letters.
pub fn unattended() {
    let w = World::open(true);
    let config = ConfigPatch {
        kind: Some(TopicType::Queue),
        max_deliveries: Some(1),
        dead_letter: Some(Some("dead".into())),
        lease_ms: Some(100),
        leases_durable: Some(flip()),
        ..ConfigPatch::default()
    };
    w.engine.create_topic("q", &config).unwrap();
    w.engine.create_topic("dead", &ConfigPatch::default()).unwrap();
    w.put("q", "1", 2);
    let node = node(1);
    let req = Claim { node: &node, max: 2, lease_ms: None, wait: Duration::ZERO };
    assert_eq!(w.engine.claim("q", &req).unwrap().len(), 2);
    let fails = spawn(&w, move |w| {
        let held = LeasedJobs { node: &node, seqs: &[1], lease_ids: None };
        w.engine.nack("q", &held, Some(0)).unwrap();
    });
    // A job that fails needs no time.
    assert!(w.engine.wait("dead", 0, LONG).unwrap());
    join([fails]);
    let time = Time::run(&w.clock, Duration::from_millis(60));
    assert!(w.engine.wait("dead", 1, LONG).unwrap());
    time.stop();
    w.engine.close().unwrap();
}
