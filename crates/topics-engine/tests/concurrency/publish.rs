//! Ordered publish: what several writers of several topics in one shard let readers see.

use topics_engine::{DeleteRequest, Durability, Error, ReadFrom, ReadRequest};
use topics_sim::{CallFilter, CallKind, FaultKind};

use crate::world::{LONG, World, choose, class, flip, join, spawn};

/// Records of every batch.
const BATCH: u64 = 2;

/// Reads a topic from its start to `total`, and looks at everything that it sees on the way.
fn follow(w: &World, topic: &str, total: u64) {
    let (mut cursor, mut head) = (0, 0);
    while cursor < total {
        let now = w.head(topic);
        assert!(now >= head, "I11: the head goes back from {head} to {now}");
        head = now;
        let req = ReadRequest { from: ReadFrom::After(cursor), ..ReadRequest::default() };
        let batch = w.engine.read(topic, &req).unwrap();
        assert!(batch.tombstone.is_none(), "I4: nothing is missing");
        let records: Vec<_> = batch.iter().map(|r| (r.seq, r.data.to_vec())).collect();
        for (i, (seq, _)) in records.iter().enumerate() {
            assert_eq!(*seq, cursor + 1 + i as u64, "I4: each once, in order");
        }
        assert_eq!(records.len() as u64 % BATCH, 0, "I5: a part of a batch is shown");
        assert!(records.chunks(2).all(|b| b[0].1 == b[1].1), "I5: batches are mixed");
        cursor = batch.next_from_seq;
        assert!(batch.head_seq >= head || batch.head_seq >= cursor, "I11");
        if batch.caught_up && cursor < total {
            assert!(w.engine.wait(topic, cursor, LONG).unwrap());
        }
    }
    assert_eq!(cursor, total, "I2");
}

/// Writers of two topics, of any class, and a reader of each.
pub fn ordered() {
    let w = World::open(false);
    let of = |topic: &'static str| (topic, class());
    let topics = [of("a"), of("b")];
    topics.iter().for_each(|t| w.create(t.0, t.1));
    let write = |topic: &'static str, name: u64| {
        spawn(&w, move |w| {
            for i in 0..2 {
                let done = w.append(topic, &format!("{name}.{i}"), BATCH as usize).unwrap();
                assert!(w.head(topic) >= done.last_seq, "acked and not shown");
            }
        })
    };
    let writers = [write("a", 1), write("a", 2), write("b", 3)];
    let readers = [spawn(&w, |w| follow(w, "a", 8)), spawn(&w, |w| follow(w, "b", 4))];
    join(writers);
    join(readers);
    topics.iter().for_each(|t| drop(w.engine.delete_topic(t.0, false).unwrap()));
    let m = w.engine.metrics();
    assert_eq!((m.live_bytes, m.ephemeral_bytes, m.resident_records), (0, 0, 0), "totals");
    w.engine.close().unwrap();
}

/// Two writers that each expect the head, and one that does not: no head is taken twice, and the
/// one that is refused finds a head that has risen.
pub fn contended() {
    let w = World::open(false);
    w.create("a", class());
    let expecting = |name: u64| {
        spawn(&w, move |w| {
            for i in 0..2 {
                loop {
                    let head = w.head("a");
                    let data = format!("{name}.{i}");
                    match w.append_if("a", &data, BATCH as usize, Some(head)) {
                        Ok(done) => break assert_eq!(done.first_seq, head + 1),
                        Err(Error::HeadMismatch { actual, .. }) => {
                            assert!(actual > head, "refused at the head that was expected");
                            assert!(w.head("a") > head, "refused over a head that is not shown");
                        }
                        Err(e) => panic!("{e}"),
                    }
                }
            }
        })
    };
    let mut writers = vec![expecting(1), expecting(2)];
    writers.push(spawn(&w, |w| w.put("a", "3", BATCH as usize)));
    let reader = spawn(&w, |w| follow(w, "a", 10));
    join(writers);
    join([reader]);
    w.engine.close().unwrap();
}

/// Writes and deletes while a checkpoint is taken, and the process is killed: what the next one
/// finds is what this one showed.
pub fn checkpointed() {
    let w = World::open(false);
    w.create("a", if flip() { Durability::Fsync } else { Durability::Disk });
    (0..2).for_each(|i| w.put("a", &i.to_string(), BATCH as usize));
    let write = spawn(&w, |w| {
        (2..4).for_each(|i| w.put("a", &i.to_string(), BATCH as usize));
    });
    let delete = |before| {
        spawn(&w, move |w| {
            let req = DeleteRequest { before_seq: Some(before), matching: None };
            w.engine.delete("a", &req).unwrap();
        })
    };
    let checkpoint = spawn(&w, |w| (0..2).for_each(|_| w.engine.checkpoint().unwrap()));
    join([write, delete(2), delete(3), checkpoint]);
    let next = w.killed();
    for life in [&w, &next] {
        let state = life.engine.state("a", false).unwrap();
        assert_eq!((state.head_seq, state.earliest_seq, state.count), (8, 3, 6), "I1, I9");
        let req = ReadRequest { from: ReadFrom::After(0), ..ReadRequest::default() };
        let seqs: Vec<u64> = life.engine.read("a", &req).unwrap().iter().map(|r| r.seq).collect();
        assert_eq!(seqs, [3, 4, 5, 6, 7, 8]);
        life.engine.close().unwrap();
    }
}

/// A sync fails while several write: what was acked is shown, what was refused never was.
pub fn lost() {
    let w = World::open(false);
    w.create("a", Durability::Fsync);
    w.append("a", "0", BATCH as usize).unwrap();
    w.fs.fail_nth(CallKind::SyncData, 1 + choose(3) as usize, FaultKind::Errno(5));
    let write = |name: u64| {
        spawn(&w, move |w| {
            let one = |i: u64| w.append("a", &format!("{name}.{i}"), BATCH as usize);
            let acked = (0..2).filter_map(|i| Some((i, one(i).ok()?.last_seq)));
            acked.collect::<Vec<_>>()
        })
    };
    let writers = [write(1), write(2)];
    let reader = spawn(&w, |w| {
        let mut head = 0;
        for _ in 0..6 {
            let now = w.head("a");
            assert!(now >= head && now % BATCH == 0, "I5, I11: from {head} to {now}");
            head = now;
        }
        head
    });
    let acked: Vec<_> = join(writers).into_iter().flatten().collect();
    let seen = join([reader])[0];
    let head = w.head("a");
    assert!(acked.iter().all(|a| a.1 <= head), "acked and not shown");
    assert_eq!(head, BATCH * (1 + acked.len() as u64), "I3: shown and not acked");
    assert!(seen <= head);
    // A log that failed cannot be closed cleanly.
    let _ = w.engine.close();
}

/// What a topic holds: seq and data of every record.
fn held(w: &World, topic: &str) -> Vec<(u64, Vec<u8>)> {
    let req = ReadRequest { from: ReadFrom::After(0), ..ReadRequest::default() };
    let batch = w.engine.read(topic, &req).unwrap();
    assert!(batch.caught_up);
    batch.iter().map(|r| (r.seq, r.data.to_vec())).collect()
}

/// Writes and a delete of one topic beside a batch that fits into no log file that can be had, or
/// whose group is not written for want of space: the delete succeeds, what was acked is there, each seq
/// once.
pub fn unwritable() {
    let w = World::open(false);
    w.create("a", if flip() { Durability::Fsync } else { Durability::Disk });
    w.put("a", "0", 1);
    let mut big = "big";
    let large = "b".repeat(150_000);
    match choose(2) {
        0 => {
            w.fs.fail_from(CallKind::Allocate, 1, FaultKind::ENOSPC);
            big = &large;
        }
        _ => {
            let writes = CallFilter::on_path(CallKind::Write, "wal-");
            w.fs.fail_nth(writes, 1 + choose(3) as usize, FaultKind::ENOSPC);
        }
    }
    let write = |data: &str, times: u64| {
        let data = data.to_owned();
        spawn(&w, move |w| {
            let one = |_| match w.append("a", &data, 1) {
                Ok(done) => Some((done.first_seq, data.clone().into_bytes())),
                Err(Error::StorageUnavailable { reason: "no_space", .. }) => None,
                Err(e) => panic!("{e}"),
            };
            (0..times).filter_map(one).collect::<Vec<_>>()
        })
    };
    let writers = [write(big, 1), write("small", 2), write("other", 2)];
    let delete = spawn(&w, |w| {
        let req = DeleteRequest { before_seq: Some(2), matching: None };
        w.engine.delete("a", &req).map(|d| d.deleted)
    });
    let acked: Vec<_> = join(writers).into_iter().flatten().collect();
    // There is space for it, so that no write before it in the log makes it fail.
    assert_eq!(join([delete]).pop().unwrap().unwrap(), 1, "the delete");
    w.fs.clear_faults();
    w.engine.tick().unwrap();
    w.put("a", "last", 1);
    let there = held(&w, "a");
    for one in &acked {
        assert!(there.contains(one), "I1: seq {} was acked and is not there", one.0);
    }
    assert!(there.windows(2).all(|r| r[0].0 < r[1].0), "I2, I4");
    assert_eq!(there.len(), acked.len() + 1, "nothing else is there");
    let next = w.killed();
    assert_eq!(held(&next, "a"), there, "what the next process finds");
    next.engine.close().unwrap();
    w.engine.close().unwrap();
}
