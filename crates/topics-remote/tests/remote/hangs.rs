//! A store whose requests hang: their callers go on.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::objects::{ByteRange, ObjectError, ObjectStore};
use topics_remote::store::detached::DetachedStore;
use topics_sim::{Bucket, ObjectOp};

use crate::support::World;

/// Long enough for a request that does not hang, on a busy machine.
const PATIENCE: Duration = Duration::from_secs(30);
const SOON: Duration = Duration::from_millis(20);

fn detached(bucket: &Arc<Bucket>) -> Arc<DetachedStore> {
    Arc::new(DetachedStore::new(Arc::new(bucket.client(1))))
}

fn filled() -> (Arc<Bucket>, Arc<DetachedStore>) {
    let bucket = World::new(41).bucket;
    let store = detached(&bucket);
    for i in 0..20 {
        store.create(&format!("object-{i:02}"), &Bytes::from(vec![i; 10])).unwrap();
    }
    (bucket, store)
}

fn read(store: &DetachedStore, i: u8, wait: Duration) -> Result<(), ObjectError> {
    let found = store.get_within(&format!("object-{i:02}"), ByteRange::Full, wait)?;
    assert_eq!(found.bytes, vec![i; 10]);
    Ok(())
}

#[test]
fn a_request_that_hangs_ends_for_its_caller_and_the_others_go_on() {
    let (bucket, store) = filled();
    bucket.hang("object-03");
    for _ in 0..5 {
        let e = read(&store, 3, SOON).unwrap_err();
        assert!(matches!(&e, ObjectError::Unavailable { .. }), "{e}");
        read(&store, 4, PATIENCE).unwrap();
    }
    bucket.release();
    read(&store, 3, PATIENCE).unwrap();
}

#[test]
fn a_write_that_hangs_has_an_unknown_outcome_and_may_still_arrive() {
    let (bucket, store) = filled();
    bucket.hang("late");
    let writer = store.clone();
    let write = std::thread::spawn(move || writer.create("late", &Bytes::from_static(b"x")));
    while !write.is_finished() {
        store.end_within(SOON);
        std::thread::sleep(SOON); // waits for the thread
    }
    let e = write.join().unwrap().unwrap_err();
    assert!(matches!(&e, ObjectError::Ambiguous { .. }), "{e}");
    bucket.release();
    let fresh = detached(&bucket);
    while fresh.head("late").is_err() {
        std::thread::yield_now();
    }
    let e = read(&store, 1, PATIENCE).unwrap_err();
    assert!(e.to_string().contains("closing"), "{e}");
}

#[test]
fn a_request_that_panics_is_answered() {
    let (bucket, _) = filled();
    let gate = |_, op| assert_ne!(op, ObjectOp::Get, "a bug in a store");
    let store = DetachedStore::new(Arc::new(bucket.client(1).with_gate(Arc::new(gate))));
    for _ in 0..40 {
        let e = read(&store, 1, PATIENCE).unwrap_err();
        assert!(e.to_string().contains("panicked"), "{e}");
        store.head("object-01").unwrap();
    }
}

#[test]
fn the_requests_that_hang_are_bounded() {
    let (bucket, store) = filled();
    bucket.hang("object-0");
    let mut refused = None;
    for i in 0..40 {
        let e = read(&store, i % 10, Duration::ZERO).unwrap_err().to_string();
        if e.contains("have hung") {
            refused = Some(i);
            break;
        }
    }
    assert_eq!(refused, Some(16));
    assert!(read(&store, 15, PATIENCE).is_err(), "nothing waits behind them");
    bucket.release();
    while read(&store, 15, PATIENCE).is_err() {
        std::thread::yield_now();
    }
}
