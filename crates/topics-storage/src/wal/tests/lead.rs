//! What a leader decides about a group, and what it publishes of one.

use topics_env::sync::Condvar;

use super::state::{freeing, full, numbers, queued};
use super::*;
use crate::wal::outcome::Waiter;
use crate::wal::state::Thread;

#[test]
fn a_sync_is_linked_to_the_write_of_a_lone_caller_that_needs_it() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let shard = &wal.shards[0];
    let one = || vec![queued(3, 1, 10)];
    let link = |taken: Vec<_>, own| shard.should_link_sync(&shard.state.lock(), &taken, own);
    assert!(link(one(), Some((3, Level::Synced))));
    assert!(link(one(), Some((2, Level::Synced))), "it waits for a batch before");
    assert!(!link(one(), Some((4, Level::Synced))), "its batch is not in the group");
    assert!(!link(one(), Some((3, Level::Written))));
    assert!(!link(one(), None));
    assert!(!link(vec![queued(2, 1, 10), queued(3, 1, 10)], Some((3, Level::Synced))));
    assert!(!link(Vec::new(), Some((3, Level::Synced))));
    let alone = || link(one(), Some((3, Level::Synced)));
    shard.state.lock().flags.syncing = true;
    assert!(!alone(), "a sync is in flight");
    shard.state.lock().flags.syncing = false;
    shard.state.lock().staged.batches.push_back(queued(4, 1, 10));
    assert!(!alone(), "the next group would wait");
    shard.state.lock().staged.batches.clear();
    let wake = Arc::new(Condvar::new());
    let waiter = Waiter { n: 1, level: Level::Synced, wake: wake.clone() };
    shard.state.lock().progress.outcomes.waiters.push(waiter);
    assert!(!alone(), "another caller waits");
    shard.state.lock().progress.outcomes.unpark(&wake);
    assert!(alone());
}

#[test]
fn a_backend_that_is_no_faster_with_it_links_no_sync() {
    let dir = std::env::temp_dir().join(format!("topics-wal-link-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&dir);
    let env = topics_env::real::real_env(topics_env::real::Backend::Posix).unwrap();
    let paths = Paths::new(&dir);
    let start = first_file(&env, &paths, 4096);
    let wal = Wal::start(env, paths, small(), vec![start], vec![]).unwrap();
    let shard = &wal.shards[0];
    let taken = [queued(3, 1, 10)];
    assert!(!shard.should_link_sync(&shard.state.lock(), &taken, Some((3, Level::Synced))));
    wal.close(true).unwrap();
    std::fs::remove_dir_all(dir).unwrap();
}

#[test]
fn without_a_next_file_exactly_what_fits_nowhere_fails() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let shard = &wal.shards[0];
    let mut st = shard.state.lock();
    (st.current.offset, st.reserve) = (200, 30);
    st.current.capacity = 200 + Group::FRAME_LEN as u64 + 100 + 30;
    assert_eq!([false, true].map(|frees| st.largest_writable(frees)), [100, 130]);
    st.staged.batches = [
        queued(1, 1, 9_999),
        queued(2, 2, 100),
        freeing(3, 130),
        queued(4, 3, 101),
        freeing(5, 131),
        queued(6, 1, 1), // of the topic that fails
        queued(7, 4, 99),
    ]
    .into();
    st.staged.last_ticket = 7;
    (st.staged.bytes, st.staged.reserved_bytes, st.staged.reserved_batches) = (1 << 20, 1 << 20, 7);
    let st = shard.fail_unwritable(st, &full());
    assert_eq!(numbers(&st.staged.batches), [2, 3, 7]);
}

#[test]
fn a_group_is_counted_with_its_batches_frames_and_bytes() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, WalOptions { file_initial: 64 << 10, ..small() });
    let log = Arc::new(Log::default());
    let groups: [&[usize]; 3] = [&[3], &[1, 2], &[4, 1, 1]];
    let mut seq = 1;
    for group in groups {
        for n in group {
            put(&wal, batch(&log, seq, *n, Level::Written)).unwrap();
            seq += *n as u64;
        }
        wal.drive(0);
    }
    let c = wal.counters();
    assert_eq!((c.groups, c.batches), (3, 6));
    assert_eq!(c.frames, seqs(&read_back(&env, &wal)).len() as u64);
    let written = wal.shards[0].state.lock().current.offset - WAL_START as u64;
    assert_eq!(c.bytes, written);
}

#[test]
fn a_batch_that_waits_for_a_sync_marks_its_file_as_synced() {
    let (env, ..) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let used = || wal.shards[0].state.lock().current.sync_used.0;
    put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.drive(0);
    assert!(!used());
    // Its sync is not linked to its write: the owner of the log writes it.
    put(&wal, batch(&log, 2, 1, Level::Synced)).unwrap();
    wal.drive(0);
    assert!(used());
}

#[test]
fn four_mib_without_a_sync_ask_for_one() {
    let (env, ..) = sim_env(1);
    let size = 32 << 20;
    let wal = wal(&env, WalOptions { file_initial: size, file_max: size, ..small() });
    let log = Arc::new(Log::default());
    let wanted = |seq: u64, level| {
        let mut b = batch(&log, seq, 1, level);
        let f = Frame::control(FrameType::Append, 0, 0, 0, &[7; (1 << 20) - 1_000]);
        b.records.truncate(b.headroom);
        frame::encode(&mut b.records, &f);
        put(&wal, b).unwrap();
        wal.drive(0);
        wal.shards[0].state.lock().worker.sync_wanted
    };
    for round in 0..2 {
        for n in 1..=4 {
            assert!(!wanted(10 * round + n, Level::Written), "{n} MiB");
        }
        assert!(wanted(10 * round + 5, Level::Written));
        wal.sync(0).unwrap();
        assert!(!wal.shards[0].state.lock().worker.sync_wanted);
    }
    // The caller of a batch that waits for a sync runs it.
    for n in 1..=6 {
        assert!(!wanted(20 + n, Level::Synced));
    }
}

#[test]
fn a_thread_that_checks_the_queue_soon_is_not_woken_for_a_batch() {
    let (env, ..) = sim_env(1);
    let paths = Paths::new(Path::new("/db"));
    let start = first_file(&env, &paths, 1 << 20);
    let options = WalOptions { background: true, ..small() };
    let crowd = options.staging_bytes / 8;
    let shared = Shared {
        env,
        paths,
        options,
        linked: false,
        next_key: AtomicU32::new(1),
        reserve: ReserveSize::default(),
        lock: std::sync::OnceLock::new(),
    };
    // No thread runs: the state says what its thread would do.
    let shard = Shard::new(Arc::new(shared), 0, start).unwrap();
    let log = Arc::new(Log::default());
    let wakes = |state: Thread, checks_queue: bool, level: Level| {
        let mut st = shard.state.lock();
        (st.worker.state, st.worker.checks_queue) = (state, checks_queue);
        let seq = st.staged.last_ticket + 1;
        shard.enqueue(&mut st, batch(&log, seq, 1, level), 0);
        st.worker.state == Thread::Busy
    };
    for _ in 0..100 {
        assert!(!wakes(Thread::Waiting, true, Level::Staged));
    }
    assert!(wakes(Thread::Waiting, false, Level::Staged), "its next deadline may be far away");
    assert!(!wakes(Thread::Waiting, false, Level::Written), "its caller writes it");
    assert!(wakes(Thread::Idle, true, Level::Written));
    shard.state.lock().staged.bytes += crowd;
    assert!(wakes(Thread::Waiting, true, Level::Staged), "the queue is long");
}
