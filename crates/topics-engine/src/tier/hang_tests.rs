//! A store that hangs: readers, other objects, read-only engines, opens and closes.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use topics_env::sim::Bucket;
use topics_remote::store::detached::DetachedStore;

use crate::engine::Engine;
use crate::topic::tests::{DIR, World, after, rec};
use crate::types::api::Append;
use crate::types::error::Error;
use crate::types::options::{Options, RemoteLimits, RemoteMode, RemoteOptions};

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
    RemoteOptions { store, mode: RemoteMode::Tier, limits: limits() }
}

/// A world with cold segments of these topics, whose engine has threads and the real clock.
fn threaded(topics: &[&str]) -> (World, Arc<Bucket>) {
    let (mut w, bucket) = World::over_bucket(limits());
    for topic in topics {
        for i in 0..33 {
            let data = format!("{topic}-{i}");
            let records = [rec(&data)];
            let append = Append { records: &records, ..Default::default() };
            w.engine().append(topic, &append).unwrap();
        }
    }
    w.checkpoint();
    assert!(w.engine().archive().unwrap().cooled > 0);
    w.close();
    w.options = Options { background: true, remote: Some(remote(&bucket)), ..w.options.clone() };
    w.real_time = true;
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
    let (w, bucket) = threaded(&topics);
    let id = |topic: &str| format!("/{:016x}/", w.state(topic).topic_id);
    topics[..4].iter().for_each(|t| bucket.hang(&id(t)));
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
    bucket.hang(".pack");
    let options = Options { remote: Some(remote(&bucket)), ..w.options.clone() };
    let engine = Engine::open_read_only(w.env(), DIR.as_ref(), options).unwrap();
    let reading = engine.clone();
    let outcome = on_thread(move || read(&reading, "a")).recv_timeout(WATCHDOG);
    let outcome = outcome.expect("the read ends");
    assert!(is_cold_error(&outcome), "{outcome:?}");
    bucket.release();
    engine.close().unwrap();
}
