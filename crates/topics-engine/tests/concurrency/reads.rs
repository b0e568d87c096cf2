//! Reads that wait without a thread: of topics, and of consumers.

use std::sync::Arc;

use topics_engine::{
    Consumer, ConsumerMode, ConsumerRead, ConsumerStart, Durability, Error, ReadFrom, ReadRequest,
    Result,
};
use topics_env::sync::{Condvar, Mutex};

use crate::world::{LONG, World, class, flip, join, spawn};

/// The outcome of a read: how many records, once it is there.
#[derive(Clone, Default)]
struct Outcome(Arc<(Mutex<Option<Result<usize>>>, Condvar)>);

impl Outcome {
    fn set(&self, outcome: Result<usize>) {
        let before = self.0.0.lock().replace(outcome);
        assert!(before.is_none(), "a read is completed twice");
        self.0.1.notify_all();
    }

    fn wait_until_set(&self) {
        let mut outcome = self.0.0.lock();
        while outcome.is_none() {
            self.0.1.wait(&mut outcome);
        }
    }

    fn wait(&self) -> Result<usize> {
        self.wait_until_set();
        self.0.0.lock().take().unwrap()
    }

    fn is_there(&self) -> bool {
        self.0.0.lock().is_some()
    }
}

fn consumer(w: &World, mode: ConsumerMode) -> Arc<Consumer> {
    let opened = w.engine.consumer("t", "c", Some(mode), ConsumerStart::Start, false);
    Arc::new(opened.unwrap())
}

fn read(w: &World, strong: bool) -> (Outcome, u64) {
    let outcome = Outcome::default();
    let set = outcome.clone();
    let request = ReadRequest { from: ReadFrom::After(0), strong, ..ReadRequest::default() };
    let done =
        move |o: Result<(ReadRequest, topics_engine::ReadBatch)>| set.set(o.map(|r| r.1.len()));
    let id = w.engine.read_async("t", request, LONG, Box::new(done));
    (outcome, id)
}

/// A read of one record that waits for it.
fn one_record() -> ConsumerRead {
    ConsumerRead { wait: LONG, max_records: 1, ..ConsumerRead::default() }
}

fn read_consumer(consumer: &Arc<Consumer>) -> (Outcome, u64) {
    let outcome = Outcome::default();
    let set = outcome.clone();
    let req = one_record();
    let done = move |o: Result<topics_engine::ReadBatch>| set.set(o.map(|batch| batch.len()));
    let id = consumer.read_async(req, Box::new(done));
    (outcome, id)
}

/// Records end the reads that wait for them, in every order of reads and writes. No time passes, so that
/// no read is ended by a deadline.
pub fn awaited() {
    let w = World::open(true);
    let class = class();
    w.create("t", class);
    // What is never durable ends no strong read.
    let strong = class > Durability::Ephemeral && flip();
    let mode = if flip() { ConsumerMode::AtMostOnce } else { ConsumerMode::AtLeastOnce };
    let of_topic = spawn(&w, move |w| {
        let (outcome, _) = read(w, strong);
        assert!(outcome.wait().unwrap() > 0, "a wait ended before its time");
    });
    let of_consumer = |n: usize| {
        spawn(&w, move |w| {
            let c = consumer(w, mode);
            for _ in 0..n {
                // By this thread, or by a callback.
                let records = if flip() {
                    c.read(&one_record()).unwrap().len()
                } else {
                    read_consumer(&c).0.wait().unwrap()
                };
                assert_eq!(records, 1, "a wait ended before its time");
            }
        })
    };
    let mut threads = vec![of_topic, of_consumer(1)];
    if mode == ConsumerMode::AtMostOnce {
        // Two readers share the records: one waits for the other's lock.
        threads.push(of_consumer(1));
    }
    let write = |name: &'static str| {
        spawn(&w, move |w| {
            w.put("t", name, 1);
            if strong {
                w.engine.sync().unwrap();
            }
        })
    };
    join([write("1"), write("2")]);
    join(threads);
    w.engine.close().unwrap();
}

/// Reads that wait while a record comes or not, the topic is deleted, the wait is ended or cancelled, or the
/// engine is closed: each is completed once, unless it was cancelled before.
pub fn dismissed() {
    let w = World::open(true);
    w.create("t", class());
    let c = consumer(&w, if flip() { ConsumerMode::AtMostOnce } else { ConsumerMode::AtLeastOnce });
    let reads = [read(&w, flip()), read_consumer(&c)];
    let writer = flip().then(|| {
        spawn(&w, |w| {
            // The engine may be closed, the topic gone.
            let _ = w.append("t", "1", 1);
        })
    });
    let [of_topic, of_consumer] = reads.each_ref().map(|(outcome, id)| (outcome.clone(), *id));
    let by_handle = |end: bool| {
        spawn(&w, move |w| {
            [of_topic, of_consumer].map(|(outcome, id)| match end {
                true => {
                    w.engine.end_wait(id);
                    // No record, delete or close is needed for it.
                    outcome.wait_until_set();
                    None
                }
                false => Some(w.engine.cancel_wait(id)),
            })
        })
    };
    let handle = flip().then(|| by_handle(flip()));
    if flip() {
        let _ = w.engine.delete_topic("t", false);
    }
    // A call that is being attempted when it is cancelled may be completed, or not.
    let was_cancelled = handle.map_or([None; 2], |handle| handle.join().unwrap());
    w.engine.close().unwrap();
    join(writer);
    for ((outcome, _), cancelled) in reads.into_iter().zip(was_cancelled) {
        if let Some(cancelled) = cancelled {
            assert!(!cancelled || !outcome.is_there(), "a cancelled read is completed");
            continue;
        }
        match outcome.wait() {
            Ok(_) | Err(Error::Closed | Error::TopicNotFound(_)) => {}
            // A cursor that a close or a delete kept from the log.
            Err(
                Error::ConsumerNotFound { .. }
                | Error::Throttled { .. }
                | Error::StorageUnavailable { .. },
            ) => {}
            Err(e) => panic!("{e}"),
        }
    }
}
