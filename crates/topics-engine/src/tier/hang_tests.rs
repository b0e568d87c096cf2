//! A store that hangs: readers, other objects, read-only engines, opens and closes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use topics_env::{Hook, Site};
use topics_remote::store::detached::DetachedStore;
use topics_sim::{Bucket, Mutant};
use topics_storage::segment::{Fetch, FileKind};

use crate::delivery::{Event, WatchRequest, WatchStart};
use crate::engine::Engine;
use crate::topic::tests::{DIR, World, after, rec};
use crate::types::api::{Append, ReadFrom, ReadRequest};
use crate::types::error::Error;
use crate::types::options::{Options, RemoteLimits, RemoteOptions};

/// Longer than anything here takes on a busy machine: what is not over then never ends.
const WATCHDOG: Duration = Duration::from_secs(120);

fn limits() -> RemoteLimits {
    RemoteLimits {
        pack_bytes: 600,
        hot_segments: 1,
        single_writer: true,
        cold_timeout: Duration::from_millis(300),
        ..RemoteLimits::default()
    }
}

fn remote(bucket: &Arc<Bucket>) -> RemoteOptions {
    let store = Arc::new(DetachedStore::new(Arc::new(bucket.client(1))));
    RemoteOptions { store, limits: limits() }
}

/// A world with cold segments of these topics, whose engine has threads and the real clock.
fn threaded(topics: &[&str]) -> (World, Arc<Bucket>) {
    threaded_with(topics, (limits(), true), 1)
}

/// The same with these limits, the real clock or one that stands, and records of about this many bytes.
fn threaded_with(
    topics: &[&str],
    (limits, real_time): (RemoteLimits, bool),
    bytes: usize,
) -> (World, Arc<Bucket>) {
    let (mut w, bucket) = World::over_bucket(limits.clone());
    for topic in topics {
        for i in 0..33 {
            let data = format!("{topic}-{i}-{}", "x".repeat(bytes));
            let records = [rec(&data)];
            let append = Append { records: &records, ..Default::default() };
            w.engine().append(topic, &append).unwrap();
        }
    }
    w.checkpoint();
    assert!(w.engine().archive().unwrap().cooled > 0);
    w.close();
    let remote = RemoteOptions { limits, ..remote(&bucket) };
    w.options = Options { background: true, remote: Some(remote), ..w.options.clone() };
    w.real_time = real_time;
    w.open();
    (w, bucket)
}

/// Runs `f` on a thread; its result comes within the watchdog's time or not at all.
fn on_thread<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (send, receive) = channel();
    std::thread::spawn(move || send.send(f()));
    receive
}

fn read(engine: &Engine, topic: &str) -> Result<u64, Error> {
    engine.read(topic, &after(0)).map(|b| b.next_from_seq)
}

fn is_cold_error(outcome: &Result<u64, Error>) -> bool {
    outcome.as_ref().is_err_and(|e| e.code() == "cold_unavailable")
}

#[test]
fn objects_that_hang_do_not_stop_the_reads_of_others() {
    let names: Vec<String> = (0..6).map(|i| format!("t{i}")).collect();
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    // Each segment is an object.
    let (w, bucket) = threaded_with(&topics, (RemoteLimits { pack_bytes: 1, ..limits() }, true), 1);
    for topic in &topics[..4] {
        let id = w.state(topic).topic_id;
        for pack in w.engine().open_engine().base().packs.all() {
            if pack.segments.iter().any(|s| s.topic.topic_id == id) {
                bucket.hang(&pack.object().key);
            }
        }
    }
    for round in 0..3 {
        let reads = names[..4].iter().map(|topic| {
            let (engine, topic) = (w.engine().clone(), topic.clone());
            on_thread(move || read(&engine, &topic))
        });
        for r in reads.collect::<Vec<_>>() {
            let outcome = r.recv_timeout(WATCHDOG).expect("a read of a hung object ends");
            assert!(is_cold_error(&outcome), "{outcome:?}");
        }
        for topic in &topics[4..] {
            let mut outcome = read(w.engine(), topic);
            // Its own request may have waited behind those that hang.
            let until = Instant::now() + WATCHDOG;
            while outcome.is_err() && Instant::now() < until {
                outcome = read(w.engine(), topic);
            }
            assert!(outcome.is_ok(), "round {round}: {outcome:?}");
        }
    }
    bucket.release();
}

#[test]
fn a_close_answers_readers_and_leaves_what_hangs() {
    let (mut w, bucket) = threaded(&["a"]);
    bucket.hang("");
    w.put("a", &["goes on"]);
    let engine = w.engine().clone();
    let archive = on_thread(move || engine.archive().map(drop));
    let engine = w.engine().clone();
    let reader = on_thread(move || read(&engine, "a"));
    std::thread::sleep(Duration::from_millis(50)); // lets both begin; either order is right
    let engine = w.engine().clone();
    let closed = on_thread(move || engine.close());
    closed.recv_timeout(WATCHDOG).expect("the close returns").unwrap();
    let read = reader.recv_timeout(WATCHDOG).expect("the reader is answered");
    assert!(read.is_err(), "{read:?}");
    archive.recv_timeout(WATCHDOG).expect("the pass ends").unwrap_err();
    w.close();
    bucket.release();
    w.options.remote = Some(remote(&bucket));
    w.open();
    w.engine().archive().unwrap();
    assert_eq!(w.state("a").head_seq, 34);
}

#[test]
fn a_read_only_engine_has_the_same_deadline() {
    let (mut w, bucket) = threaded(&["a"]);
    w.close();
    bucket.hang("/p");
    let options = Options { remote: Some(remote(&bucket)), ..w.options.clone() };
    let engine = Engine::open_read_only(w.env(), DIR.as_ref(), options).unwrap();
    let reading = engine.clone();
    let outcome = on_thread(move || read(&reading, "a")).recv_timeout(WATCHDOG);
    let outcome = outcome.expect("the read ends");
    assert!(is_cold_error(&outcome), "{outcome:?}");
    bucket.release();
    engine.close().unwrap();
}

/// Readers that ask and do not come back, such as those of a watch whose client pauses: what was fetched for
/// them takes no more memory than the setting says.
#[test]
fn what_nobody_takes_stays_below_the_memory_limit() {
    let names = names(40);
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    let bound = 20_000;
    let limits = RemoteLimits { cold_memory_bytes: bound, cold_timeout: WATCHDOG, ..limits() };
    let (w, _) = threaded_with(&topics, (limits, true), 100);
    let cold = w.engine().open_engine().base().cold.clone().unwrap();
    let mut fetches = Vec::new();
    for topic in &topics {
        if let Err(Error::ColdPending(fetch)) = w.engine().read_present(topic, &after(0)) {
            fetches.push(fetch);
        }
        assert!(cold.memory() <= bound, "{}", cold.memory());
    }
    assert!(fetches.len() > 30, "{}", fetches.len());
    for fetch in fetches {
        fetch.wait().unwrap();
        assert!(cold.memory() <= bound, "{}", cold.memory());
    }
    // Every later read succeeds.
    for topic in &topics {
        assert!(read(w.engine(), topic).is_ok());
    }
}

fn names(n: usize) -> Vec<String> {
    (0..n).map(|i| format!("t{i:02}")).collect()
}

/// The fetch that a read of a topic needs.
fn begin(w: &World, topic: &str) -> Arc<Fetch> {
    match w.engine().read_present(topic, &after(0)) {
        Err(Error::ColdPending(fetch)) => fetch,
        other => panic!("{topic}: {other:?}"),
    }
}

/// Memory for one block at a time, and a store that hangs. Returns how many of twelve reads end with an error
/// when the time of the first eleven is over, and when that of the last one is.
fn ended_by_deadlines(hook: Option<Arc<dyn Hook>>) -> [usize; 2] {
    let names = names(12);
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    let limits = RemoteLimits { cold_memory_bytes: 0, cold_timeout: WATCHDOG, ..limits() };
    let (mut w, bucket) = threaded_with(&topics, (limits.clone(), false), 1);
    w.close();
    w.hook = hook;
    w.options.remote = Some(RemoteOptions { limits, ..remote(&bucket) });
    w.open();
    let cold = w.engine().open_engine().base().cold.clone().unwrap();
    let timeout_ms = WATCHDOG.as_millis() as u64;
    bucket.hang("/p");
    let mut fetches: Vec<_> = topics[..11].iter().map(|t| begin(&w, t)).collect();
    w.clock.advance_ms(timeout_ms - 1);
    cold.expire();
    fetches.push(begin(&w, topics[11]));
    assert!(fetches.iter().all(|f| f.outcome().is_none()), "a read ends before its time");
    let ended = [1, timeout_ms].map(|ms| {
        w.clock.advance_ms(ms);
        cold.expire();
        let outcomes = fetches.iter().filter_map(|f| f.outcome());
        outcomes.inspect(|o| assert!(o.is_err(), "a read is told to try again")).count()
    });
    bucket.release();
    ended
}

#[test]
fn a_read_that_waits_for_memory_has_the_deadline_of_its_first_attempt() {
    assert_eq!(ended_by_deadlines(None), [11, 12]);
}

#[test]
fn a_mutant_without_deadlines_is_caught() {
    let mutant = Arc::new(Mutant::remove(Site::Check("cold.deadline"), None));
    assert_eq!(ended_by_deadlines(Some(mutant)), [0, 0]);
}

/// Memory for one block at a time, and a store that answers: the reads are served in the order they came.
/// That takes longer than the timeout, which is one for the store.
#[test]
fn reads_that_wait_for_memory_are_served_in_order() {
    let names = names(12);
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    let limits = RemoteLimits { cold_memory_bytes: 0, cold_timeout: WATCHDOG, ..limits() };
    let timeout_ms = WATCHDOG.as_millis() as u64;
    let (w, bucket) = threaded_with(&topics, (limits, false), 1);
    let cold = w.engine().open_engine().base().cold.clone().unwrap();
    bucket.hang("/p");
    let mut waiting: Vec<_> = topics[..10].iter().map(|t| (*t, begin(&w, t))).collect();
    bucket.release();
    let (mut served, began, until) = (Vec::new(), w.clock_wall(), Instant::now() + WATCHDOG);
    while served.len() < topics.len() {
        assert!(Instant::now() < until, "{served:?}");
        if !cold.is_idle() {
            std::thread::yield_now();
            continue;
        }
        // One at a time: each leaves memory to the next. The clock goes on when one was answered: between
        // two reads the thread of the next one may not have begun.
        let Some(at) = waiting.iter().position(|(_, fetch)| fetch.outcome().is_some()) else {
            std::thread::yield_now();
            continue;
        };
        let (topic, fetch) = waiting.remove(at);
        fetch.outcome().unwrap().unwrap_or_else(|e| panic!("{topic} after {served:?}: {e}"));
        served.push(topic);
        // Those who come later wait behind the others.
        if served.len() == 3 && waiting.len() + served.len() < topics.len() {
            waiting.extend(topics[10..].iter().map(|t| (*t, begin(&w, t))));
        }
        w.clock.advance_ms(timeout_ms / 3);
        cold.expire();
    }
    assert_eq!(served, topics);
    assert!(w.clock_wall() - began > timeout_ms);
}

/// Readers of several topics take turns. Each block is fetched about once.
#[test]
fn readers_that_take_turns_do_not_fetch_blocks_again() {
    let topics = ["a", "b", "c", "d"];
    let limits = RemoteLimits {
        pack_bytes: 16 << 20,
        cold_memory_bytes: 8 << 20,
        cold_timeout: WATCHDOG,
        ..limits()
    };
    let (w, _) = threaded_with(&topics, (limits, false), 200_000);
    let cold = w.engine().open_engine().base().cold.clone().unwrap();
    let mut at = [0; 4];
    let mut bytes = 0;
    while at.iter().any(|at| *at < 30) {
        for (topic, at) in topics.iter().zip(&mut at) {
            let request = ReadRequest { max_bytes: 400_000, ..after(*at) };
            let batch = w.engine().read(topic, &request).unwrap();
            bytes += batch.iter().map(|r| r.data.len() as u64).sum::<u64>();
            *at = batch.next_from_seq;
        }
    }
    let fetched = cold.counters.bytes.get();
    println!("{fetched} bytes fetched for {bytes}");
    assert!(fetched * 10 <= bytes * 12, "{fetched} bytes were fetched to read {bytes}");
}

/// A reader that has read a segment to its end finds the begin of the next one requested, in another pack too, and
/// its index where the directory lacks it.
#[test]
fn the_begin_of_the_next_segment_is_requested_ahead() {
    for lacks_index in [false, true] {
        let limits = RemoteLimits { pack_bytes: 12 << 20, cold_timeout: WATCHDOG, ..limits() };
        let (w, _) = threaded_with(&["a"], (limits, false), 1_000_000);
        let cold = w.engine().open_engine().base().cold.clone().unwrap();
        if lacks_index {
            cold.wait_for_sides();
        }
        let mut segments: Vec<_> = cold.packs.all().into_iter().flat_map(|p| p.segments).collect();
        segments.sort_by_key(|s| s.first_seq);
        assert!(cold.packs.len() > 1 && segments.len() > 4);
        let mut at = 0;
        for segment in &segments[..segments.len() - 1] {
            while at < segment.last_seq {
                let request = ReadRequest { max_bytes: 500_000, ..after(at) };
                at = w.engine().read("a", &request).unwrap().next_from_seq;
            }
            let (pack, next) = cold.packs.after(segment.file_no).unwrap();
            assert_eq!(next.first_seq, segment.last_seq + 1);
            let state = cold.state.lock();
            let is_there = |at: u64| state.blocks.contains_key(&(pack.serial, at));
            // Its first block may hold the end of this one.
            assert!(is_there(next.blocks(FileKind::Data).start() + 1), "after {at}");
            let mut index = next.blocks(FileKind::Idx);
            assert!(!lacks_index || index.all(is_there), "after {at}");
        }
    }
}

/// A watch over more cold topics than fit in memory: their records lie across blocks, so that a reader needs two
/// at a time. It goes on, and fetches each block about once, beside those that topics have in common.
#[test]
fn a_watch_over_many_cold_topics_goes_on_with_little_memory() {
    let names = names(24);
    let topics: Vec<&str> = names.iter().map(String::as_str).collect();
    let limits = RemoteLimits {
        pack_bytes: 64 << 20,
        cold_memory_bytes: 4 << 20,
        cold_timeout: WATCHDOG,
        ..limits()
    };
    let (w, _) = threaded_with(&topics, (limits, true), 70_000);
    let start = WatchStart { from: ReadFrom::After(0), topic_id: None };
    let topics = names.iter().map(|name| (name.clone(), start)).collect();
    let mut watch = w.engine().watch(&WatchRequest { topics, ..WatchRequest::default() }).unwrap();
    let (mut records, mut bytes) = (0, 0);
    while records < names.len() * 33 {
        match watch.next(Some(WATCHDOG)).unwrap() {
            Some(Event::Records(frame)) => {
                records += frame.batch().len();
                bytes += frame.batch().iter().map(|r| r.data.len() as u64).sum::<u64>();
            }
            Some(Event::CaughtUp { .. }) => {}
            other => panic!("{other:?} after {records} records"),
        }
    }
    let cold = w.engine().open_engine().base().cold.clone().unwrap();
    println!("{} bytes fetched for {bytes}", cold.counters.bytes.get());
    assert!(cold.memory() <= 4 << 20);
}
