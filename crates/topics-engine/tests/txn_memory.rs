//! What a commit of staged rows takes of memory. A binary of its own: it counts what is allocated.
#![allow(clippy::unwrap_used, clippy::panic, unsafe_code)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use topics_engine::{
    CommitRequest, Engine, NewRecord, Options, StageRequest, TxnRows, TxnStage, TxnWork,
};
use topics_env::real::{Backend, real_env};

/// Counts bytes that are allocated, and the most that there were.
struct Counting;

static NOW: AtomicUsize = AtomicUsize::new(0);
static MOST: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let now = NOW.fetch_add(layout.size(), Relaxed) + layout.size();
        MOST.fetch_max(now, Relaxed);
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        NOW.fetch_sub(layout.size(), Relaxed);
        unsafe { System.dealloc(ptr, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

#[test]
fn a_commit_holds_its_rows_once() {
    const PARTS: u32 = 64;
    let dir = std::env::temp_dir().join(format!("topics-txn-memory-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = real_env(Backend::Posix).unwrap();
    let options = Options { background: false, tail_cache_bytes: 0, ..Options::default() };
    let engine = Engine::open(env, &dir, options).unwrap();
    let data = vec![b'1'; 64 << 10];
    let record = NewRecord { data: &data, ..NewRecord::default() };
    let records = vec![record; 8];
    engine.create_topic("t", &topics_engine::ConfigPatch::default()).unwrap();
    for part in 0..PARTS {
        let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
        engine.stage("w", &StageRequest { stage: "s", part, rows: &rows }).unwrap();
    }
    let staged = PARTS as usize * records.len() * data.len();
    let commit = |work: TxnWork<'_>| {
        let before = NOW.load(Relaxed);
        MOST.store(before, Relaxed);
        let stages = [TxnStage { stage: "s", parts: PARTS, records: None }];
        let outcome = engine.commit(
            "w",
            &CommitRequest { epoch: 1, stages: &stages, work, ..CommitRequest::default() },
        );
        let took = MOST.load(Relaxed) - before;
        println!("a commit of {} KiB took {} KiB", staged >> 10, took >> 10);
        (outcome, took)
    };
    // Refused when everything has been checked, and before anything goes to the log.
    let (refused, took) = commit(TxnWork { expect_heads: &[("t", 9)], ..TxnWork::default() });
    assert_eq!(refused.unwrap_err().code(), "head_mismatch");
    assert!(took < staged * 5 / 4, "{took} bytes for {staged}");
    // The log writes them from where they are.
    let (done, took) = commit(TxnWork::default());
    done.unwrap();
    assert!(took < staged * 5 / 4, "{took} bytes for {staged}");
    engine.close().unwrap();
    std::fs::remove_dir_all(&dir).unwrap();
}
