//! The ready set and the subscription queue: what writers mark, workers serve and watchers take.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::ReadFrom;
use topics_engine::{Durability, Error, Event, Watch, WatchOptions, WatchRequest, WatchStart};
use topics_env::sync::{Condvar, Mutex};

use crate::world::{World, choose, flip, join, spawn};

const TOTAL: u64 = 6;

fn start() -> WatchStart {
    WatchStart { from: ReadFrom::After(0), topic_id: None }
}

/// A watch with room for a frame or two, so that it lags.
fn narrow(topics: &[&str]) -> WatchRequest {
    WatchRequest {
        topics: topics.iter().map(|t| ((*t).to_owned(), start())).collect(),
        queue_frames: 2 + choose(2) as usize,
        options: WatchOptions { limit: 1 + choose(2) as usize, ..WatchOptions::default() },
        ..WatchRequest::default()
    }
}

/// What a watcher has of each topic; each record once, in order.
#[derive(Default)]
struct Had(BTreeMap<String, u64>);

impl Had {
    fn take(&mut self, event: Event) {
        match event {
            Event::Records(frame) => {
                let at = self.0.entry(frame.topic().to_string()).or_default();
                for r in frame.batch().iter() {
                    assert_eq!(r.seq, *at + 1, "I4: each once, in order");
                    *at = r.seq;
                }
            }
            Event::CaughtUp { topic, seq, .. } => {
                let at = self.0.get(&*topic).copied().unwrap_or(0);
                assert_eq!(at, seq, "caught up with what was not delivered");
            }
            other => panic!("{other:?}"),
        }
    }

    fn total(&self) -> u64 {
        self.0.values().sum()
    }
}

fn take_all(watch: &mut Watch, total: u64) {
    let mut had = Had::default();
    while had.total() < total {
        had.take(watch.next(None).unwrap().unwrap());
    }
    assert_eq!(had.total(), total);
}

/// Marks while the worker serves, watchers that lag and resume: every record once. No time
/// passes, so that nobody is helped by a timer.
pub fn delivered() {
    let w = World::open(true);
    ["a", "b"].iter().for_each(|t| w.create(t, Durability::Memory));
    let watching = |topics: &'static [&'static str], total: u64| {
        spawn(&w, move |w| {
            let mut watch = w.engine.watch(&narrow(topics)).unwrap();
            take_all(&mut watch, total);
        })
    };
    let watchers = [watching(&["a"], 4), watching(&["a", "b"], TOTAL)];
    let write = |topic: &'static str, name: u64| {
        spawn(&w, move |w| {
            for i in 0..2 {
                w.append(topic, &format!("{name}.{i}"), 1).unwrap();
                let waiting = w.engine.metrics().ready_topics;
                assert!(waiting <= 2, "a topic is twice in the ready set");
            }
        })
    };
    let writers = [write("a", 1), write("a", 2), write("b", 3)];
    join(writers);
    join(watchers);
    w.engine.close().unwrap();
}

/// A watcher that is called when there is something, and takes until there is nothing.
pub fn called() {
    let w = World::open(true);
    w.create("a", Durability::Memory);
    let watcher = spawn(&w, |w| {
        let mut watch = w.engine.watch(&narrow(&["a"])).unwrap();
        let bell = Arc::new((Mutex::new(0u32), Condvar::new()));
        let rung = bell.clone();
        watch.on_ready(move || {
            *rung.0.lock() += 1;
            rung.1.notify_all();
        });
        let mut had = Had::default();
        loop {
            while let Some(event) = watch.try_next().unwrap() {
                had.take(event);
            }
            if had.total() == 4 {
                return;
            }
            let mut n = bell.0.lock();
            while *n == 0 {
                bell.1.wait(&mut n);
            }
            *n -= 1;
            assert_eq!(*n, 0, "called twice for one time that nothing was left");
        }
    });
    let write = |name: u64| {
        let one = move |w: &World, i: u64| {
            w.append("a", &format!("{name}.{i}"), 1).unwrap();
            let waiting = w.engine.metrics().ready_topics;
            assert!(waiting <= 1, "the topic is twice in the ready set");
        };
        spawn(&w, move |w| (0..2).for_each(|i| one(w, i)))
    };
    join([write(1), write(2)]);
    join([watcher]);
    w.engine.close().unwrap();
}

/// Topics that are created while a pattern is being watched: none is missed, nor joined twice.
pub fn topic_created() {
    let w = World::open(true);
    let watcher = spawn(&w, |w| {
        let req = WatchRequest {
            patterns: vec![("t*".into(), start())],
            topics: vec![("u".into(), start())],
            lenient: true,
            ..narrow(&[])
        };
        take_all(&mut w.engine.watch(&req).unwrap(), TOTAL);
    });
    let write = |topic: &'static str| {
        spawn(&w, move |w| (0..2).for_each(|i| w.put(topic, &i.to_string(), 1)))
    };
    join([write("t1"), write("t2"), write("u")]);
    join([watcher]);
    w.engine.close().unwrap();
}

/// Watchers that wait for ever, and a handle, a deleted topic or a close that ends it.
pub fn ended() {
    let w = World::open(true);
    w.create("a", Durability::Memory);
    let handle = flip().then(|| Arc::new(Mutex::new(None)));
    let slot = handle.clone();
    let watcher = spawn(&w, move |w| {
        let Ok(mut watch) = w.engine.watch(&narrow(&["a"])) else { return };
        if let Some(slot) = slot {
            *slot.lock() = Some(watch.closer());
        }
        loop {
            match watch.next(None) {
                Ok(Some(Event::TopicDeleted { .. })) => {}
                Ok(Some(event)) => assert!(!matches!(event, Event::Failed { .. }), "{event:?}"),
                Ok(None) => panic!("a wait without a limit ended"),
                Err(Error::Closed) => return,
                Err(e) => panic!("{e}"),
            }
        }
    });
    let writer = spawn(&w, |w| {
        // The engine may be closed, the topic gone.
        let _ = w.append("a", "1", 1);
    });
    if flip() {
        let _ = w.engine.delete_topic("a", false);
    }
    if let Some(closer) = handle.and_then(|h| h.lock().take()) {
        closer.close();
    }
    let other = spawn(&w, |w| w.engine.close().unwrap());
    w.engine.close().unwrap();
    join([watcher, writer, other]);
}
