//! What a close does without room, and what batches leave behind.

use std::sync::mpsc::channel;
use std::time::Duration;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::Ordering;

use super::*;
use crate::topic::write::pending_batch::{FinishOnDrop, PendingBatch, Undo};
use crate::types::error::Error;

const LONG: Duration = Duration::from_secs(300);

#[test]
fn a_close_without_space_closes_and_says_so() {
    for class in [Durability::Disk, Durability::Fsync] {
        let mut w = World::with(super::space::tight_options());
        w.create("t", super::class(class));
        w.create("u", super::class(class));
        w.fs.set_free_space(Some(400 << 10));
        let mut acked = w.put("t", &["x"; 2_000]).last_seq;
        while let Ok(a) = w.try_put("t", &[&"x".repeat(9_000)]) {
            acked = a.last_seq;
        }
        w.fs.set_free_space(Some(0));
        // Batches that free space are accepted until the log has no byte left.
        let mut deleted = 0;
        let before = |seq| DeleteRequest { before_seq: Some(seq), matching: None };
        while w.engine().delete("t", &before(deleted + 2)).is_ok() && deleted < 1_990 {
            deleted += 1;
        }
        assert!(deleted < 1_990, "the log has room for everything");
        w.engine().close().unwrap();
        let e = w.engine().clone();
        assert!(matches!(e.state("t", false), Err(Error::Closed)));
        w.fs.set_free_space(None);
        w.open();
        assert_eq!(w.state("t").head_seq, acked);
        let s = w.state("t");
        assert_eq!((s.count, s.gaps), (acked - deleted, vec![]));
    }
}

fn pending(w: &World) -> PendingBatch {
    let topic = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
    topic.pending_batches.fetch_add(1, Ordering::SeqCst);
    let pending =
        PendingBatch::plain(w.engine().open_engine().ctx(), &topic, Default::default(), Undo::None);
    pending.is_pending.store(true, Ordering::SeqCst);
    pending
}

#[test]
fn a_verb_that_waits_for_the_last_batch_is_woken_however_it_ends() {
    let w = World::new();
    w.put("t", &["1"]);
    let topic = w.engine().open_engine().catalog().table.loaded.named("t").unwrap();
    let dropped: fn(PendingBatch) = drop;
    let panics: fn(PendingBatch) = |f| {
        std::thread::scope(|s| {
            let ended = s.spawn(|| {
                let _finish = FinishOnDrop(&f);
                std::panic::resume_unwind(Box::new("a bug in a commit"));
            });
            assert!(ended.join().is_err());
        });
        // Also while its owner still has it.
        assert_eq!(f.topic.pending_batches.load(Ordering::SeqCst), 0);
    };
    for ends in [dropped, panics] {
        let f = pending(&w);
        let (finish, outcome) = channel();
        let (engine, waiting) = (w.engine().open_engine().clone(), topic.clone());
        std::thread::spawn(move || finish.send(waiting.exclusive(engine.ctx()).is_ok()));
        while topic.idle_waiters.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        ends(f);
        assert!(outcome.recv_timeout(LONG).unwrap());
    }
    // Of a commit that panicked memory may have a part: nothing is decided on it.
    assert!(topic.check_sound().is_err());
}

#[test]
fn asynchronous_writes_that_wait_are_under_a_quota() {
    let options = Options { staging_bytes: 64 << 10, ..small() };
    let w = World::with(options);
    w.put("t", &["1"]);
    let engine = w.engine().open_engine().clone();
    let topic = engine.catalog().table.loaded.named("t").unwrap();
    let exclusive = topic.exclusive(engine.ctx()).unwrap();
    let got: Arc<Mutex<Vec<Result<Appended>>>> = Arc::default();
    let body = "x".repeat(5_000);
    for _ in 0..40 {
        let (records, got) = ([rec(&body)], got.clone());
        let req = Append { records: &records, ..Append::default() };
        w.engine().append_async("t", &req, Box::new(move |r| got.lock().push(r)));
    }
    let refused = got.lock().len();
    assert!((25..35).contains(&refused), "{refused} of 40 are refused");
    for r in got.lock().drain(..) {
        let e = r.unwrap_err();
        let named = matches!(e, Error::Throttled { limit: "waiting_bytes", max: 65_536, .. });
        assert!(named, "{e:?}");
    }
    drop(exclusive);
    w.engine().drive();
    let waited = 40 - refused;
    let acked = got.lock().drain(..).map(|r| r.unwrap().first_seq).collect::<Vec<_>>();
    let all: Vec<u64> = (2..2 + waited as u64).collect();
    assert_eq!(acked, all, "what waited is written, in its order");
    // All of it was given back.
    let _alone = topic.exclusive(engine.ctx()).unwrap();
    let records = [rec(&body)];
    let req = Append { records: &records, ..Append::default() };
    let got = Arc::new(Mutex::new(0));
    let count = got.clone();
    w.engine().append_async("t", &req, Box::new(move |_| *count.lock() += 1));
    assert_eq!(*got.lock(), 0);
}

/// A staged batch refers to the log, and its callback to the engine.
#[test]
fn an_engine_that_is_dropped_with_writes_on_their_way_ends() {
    for (background, class) in [
        (false, Durability::Memory),
        (false, Durability::Disk),
        (false, Durability::Fsync),
        (true, Durability::Memory),
        (true, Durability::Disk),
        (true, Durability::Fsync),
    ] {
        let at = format!("background: {background}, {class:?}");
        let mut w = World::with(Options { background, ..small() });
        w.create("t", super::class(class));
        w.put("t", &["1"]);
        let (answer, answered) = channel();
        let records = [rec("2")];
        let req = Append { records: &records, ..Append::default() };
        let done = move |r: Result<Appended>| answer.send(r.map(|a| a.first_seq)).unwrap();
        w.engine().append_async("t", &req, Box::new(done));
        w.drop_engine();
        match answered.recv_timeout(LONG).unwrap() {
            Ok(seq) => assert_eq!(seq, 2, "{at}"),
            Err(e) => assert!(matches!(e, Error::Closed) && !background, "{at}: {e}"),
        }
        let began = std::time::Instant::now();
        while let Err(e) = w.try_open() {
            assert!(matches!(e, Error::Locked { .. }) && began.elapsed() < LONG, "{at}: {e}");
            std::thread::yield_now();
        }
        assert!(w.state("t").head_seq >= 1, "{at}");
    }
}
