//! What a shard does when the disk does not do its part.

use topics_sim::{CallKind, PageFate};

use super::*;

const EIO: FaultKind = FaultKind::Errno(5);
const ENOSPC: FaultKind = FaultKind::Errno(28);

fn told(log: &Log) -> Vec<(u64, bool)> {
    log.told.lock().clone()
}

#[test]
fn a_full_disk_fails_what_is_staged_after_what_was_written() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    let second = put(&wal, batch(&log, 2, 1, Level::Written)).unwrap();
    let third = put(&wal, batch(&log, 3, 1, Level::Synced)).unwrap();
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    wal.drive(0);
    assert_eq!(told(&log), [], "the first waits for its sync, the others for the first");
    assert!(matches!(wal.wait(third, Level::Synced), Err(StorageError::Full { .. })));
    assert!(matches!(wal.wait(second, Level::Written), Err(StorageError::Full { .. })));
    wal.wait(first, Level::Synced).unwrap();
    assert_eq!(told(&log), [(1, true), (2, false), (3, false)], "in queue order");

    // The shard goes on in the next file only, whose Start is durable before anything else.
    let next = put(&wal, batch(&log, 4, 1, Level::Written)).unwrap();
    wal.wait(next, Level::Written).unwrap();
    let file = wal.shards[0].files.read().values().next_back().cloned().unwrap();
    assert_eq!((file.key, file.first_lsn), (FileKey(1), 3), "after the last lsn without error");
    let path = Path::new("/db/wal/shard-00").join(&file.name);
    let (start, end) = (wal_file::WAL_HEADER as u64, WAL_START as u64);
    assert!(fs.is_durable(&path, start, end - start));
    assert!(!fs.is_durable(&path, end, 10), "the group itself is of level Written");
    assert_eq!(seqs(&read_back(&env, &wal)), [1, 4]);
}

#[test]
fn a_limit_on_the_size_of_files_is_a_full_disk() {
    for (call, records) in [(CallKind::Write, 1), (CallKind::Allocate, 1000)] {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, small());
        let log = Arc::new(Log::default());
        let put_wait = |seq, n| {
            put(&wal, batch(&log, seq, n, Level::Written)).and_then(|t| wal.wait(t, Level::Synced))
        };
        put_wait(1, 1).unwrap();
        fs.fail_nth(call, 1, FaultKind::EFBIG);
        assert!(matches!(put_wait(2, records), Err(StorageError::Full { .. })), "{call:?}");
        assert!(wal.poisoned(0).is_none(), "{call:?}");
        put_wait(2, 1).unwrap();
        assert_eq!(seqs(&read_back(&env, &wal)), [1, 2]);
    }
}

#[test]
fn a_start_that_finds_no_space_gives_its_file_up() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let put_wait = |seq| {
        put(&wal, batch(&log, seq, 1, Level::Written)).and_then(|t| wal.wait(t, Level::Synced))
    };
    put_wait(1).unwrap();
    // The group, then the Start of the next file.
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    assert!(matches!(put_wait(2), Err(StorageError::Full { .. })));
    fs.clear_faults();
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    assert!(matches!(put_wait(3), Err(StorageError::Full { .. })));
    fs.clear_faults();
    put_wait(4).unwrap();
    let files: Vec<u64> = wal.shards[0].files.read().values().map(|f| f.header.ordinal).collect();
    assert_eq!(files, [1, 3], "the second one's Start may be there in part");
    assert_eq!(seqs(&read_back(&env, &wal)), [1, 4]);
    // The file that was given up goes when `CURRENT` names a later one.
    let names = env.fs.list(Path::new("/db/wal/shard-00")).unwrap();
    let abandoned = wal_file::name(1, 2);
    assert!(!names.iter().any(|e| e.name == abandoned), "{names:?}");
}

#[test]
fn nothing_follows_in_a_file_that_a_start_may_have_ended() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let put_wait = |seq, n| {
        put(&wal, batch(&log, seq, n, Level::Written)).and_then(|t| wal.wait(t, Level::Written))
    };
    put_wait(1, 1).unwrap();
    // The second batch needs the next file, whose Start is refused (and may be there all the
    // same); the third would fit into the first file.
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    assert!(matches!(put_wait(2, 90), Err(StorageError::Full { .. })));
    fs.clear_faults();
    put_wait(92, 1).unwrap();
    let files = wal.shards[0].files.read();
    let last = files.values().next_back().unwrap();
    assert_eq!((files.len(), last.header.ordinal, last.first_lsn), (2, 3, 3));
    drop(files);
    assert_eq!(seqs(&read_back(&env, &wal)), [1, 92]);
}

#[test]
fn a_start_is_written_only_when_the_file_before_is_durable() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    for seq in 1..=300 {
        let t = put(&wal, batch(&log, seq, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
        let files = wal.shards[0].files.read();
        if let Some(before) = files.values().rev().nth(1) {
            let path = Path::new("/db/wal/shard-00").join(&before.name);
            assert!(fs.is_durable(&path, 0, before.file.len().unwrap()), "{}", before.name);
        }
    }
    assert!(wal.counters().rotations > 3);
}

#[test]
fn i10_a_failed_start_sync_poisons() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    let t = put(&wal, batch(&log, 2, 1, Level::Written)).unwrap();
    assert!(matches!(wal.wait(t, Level::Written), Err(StorageError::Full { .. })));
    // Any error from a sync poisons, "no space" too.
    fs.fail_nth(CallKind::SyncData, 1, ENOSPC);
    let t = put(&wal, batch(&log, 3, 1, Level::Written)).unwrap();
    assert!(matches!(wal.wait(t, Level::Written), Err(StorageError::Poisoned { .. })));
    assert_eq!(told(&log), [(1, true), (2, false), (3, false)]);
    assert!(wal.poisoned(0).is_some());
}

#[test]
fn whatever_else_fails_a_poisoned_shard_is_not_taken_for_a_healthy_one() {
    let tries: [&[CallKind]; 3] = [&[], &[CallKind::SyncData], &[CallKind::Write]];
    for (failing, want) in tries.into_iter().zip([Some(Health::Suspect), None, None]) {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, small());
        let log = Arc::new(Log::default());
        let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
        assert_eq!(health(&env, &wal), Some(Health::Running));
        fs.fail_nth(CallKind::SyncData, 1, FaultKind::EIO);
        failing.iter().for_each(|kind| fs.fail_from(*kind, 1, FaultKind::EIO));
        assert!(wal.sync(0).is_err());
        assert_eq!(health(&env, &wal), want, "{failing:?}");
    }
}

#[test]
fn a_clean_close_says_so() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    wal.close(true).unwrap();
    assert_eq!(health(&env, &wal), Some(Health::Closed));
}

#[test]
fn a_failed_write_poisons_and_fails_in_order() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    let shown = put(&wal, batch(&log, 2, 1, Level::Written)).unwrap();
    wal.wait(shown, Level::Written).unwrap();
    let third = put(&wal, batch(&log, 3, 1, Level::Written)).unwrap();
    put(&wal, batch(&log, 4, 1, Level::Synced)).unwrap();
    fs.fail_nth(CallKind::Write, 1, EIO);
    assert!(matches!(wal.wait(third, Level::Written), Err(StorageError::Poisoned { .. })));
    assert_eq!(told(&log), [(2, true), (1, false), (3, false), (4, false)]);
    for t in [first, shown, third] {
        assert!(matches!(wal.wait(t, Level::Synced), Err(StorageError::Poisoned { .. })), "{t:?}");
    }
    let counted = wal.counters();
    assert_eq!((counted.staged, counted.poisoned), (0, 1));
    // Reads go on.
    let mut out = Vec::new();
    wal.read(0, FileKey(0), WAL_START as u32, Group::FRAME_LEN, &mut out).unwrap();
    assert!(frame::verify(&out, 77, 1).is_ok());
}

#[test]
fn a_next_file_that_cannot_be_made_leaves_the_one_in_use() {
    for kind in [CallKind::Create, CallKind::Rename, CallKind::SyncDir, CallKind::Allocate] {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, small());
        let log = Arc::new(Log::default());
        fs.fail_from(kind, 1, EIO);
        let mut seq = 0;
        let failed = loop {
            seq += 1;
            let t = put(&wal, batch(&log, seq, 1, Level::Written)).unwrap();
            if let Err(e) = wal.wait(t, Level::Written) {
                break e;
            }
            assert!(seq < 100, "{kind:?}: the file in use has an end");
        };
        assert!(matches!(failed, StorageError::Io { .. }), "{kind:?}: {failed}");
        assert!(wal.poisoned(0).is_none(), "{kind:?}");
        fs.clear_faults();
        let t = put(&wal, batch(&log, seq + 1, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Synced).unwrap();
        let want: Vec<u64> = (1..seq).chain([seq + 1]).collect();
        assert_eq!(seqs(&read_back(&env, &wal)), want, "{kind:?}");
    }
}

#[test]
fn without_a_next_file_only_what_frees_space_goes_on() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, WalOptions { file_initial: 64 << 10, file_max: 64 << 10, ..small() });
    let log = Arc::new(Log::default());
    fs.fail_from(CallKind::Allocate, 1, ENOSPC);
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Written).unwrap();
    // There is room in the file in use, but it is the reserve now.
    let refused = put(&wal, batch(&log, 2, 1, Level::Written));
    assert!(matches!(refused, Err(StorageError::Full { .. })));
    let freeing = Batch { frees_space: true, ..batch(&log, 3, 1, Level::Written) };
    let t = put(&wal, freeing).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    assert!(wal.full(0));
    fs.clear_faults();
    assert!(!wal.full(0), "asking tries again");
    let t = put(&wal, batch(&log, 4, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Written).unwrap();
    assert_eq!(told(&log), [(1, true), (3, true), (4, true)]);
}

#[test]
fn a_group_larger_than_a_file_gets_its_own_and_fails_with_what_builds_on_it() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    fs.fail_nth(CallKind::Allocate, 1, ENOSPC);
    let t = put(&wal, batch(&log, 2, 1000, Level::Written)).unwrap();
    let after = put(&wal, batch(&log, 1002, 1, Level::Written)).unwrap();
    let other = put(&wal, Batch { topic_id: 8, ..batch(&log, 2002, 1, Level::Written) }).unwrap();
    // Of no topic: it shares its fate with nobody.
    let none = put(&wal, Batch { topic_id: 0, ..batch(&log, 2003, 1, Level::Written) }).unwrap();
    assert!(matches!(wal.wait(after, Level::Written), Err(StorageError::Full { .. })));
    assert!(matches!(wal.wait(t, Level::Synced), Err(StorageError::Full { .. })));
    wal.wait(other, Level::Written).unwrap();
    wal.wait(none, Level::Synced).unwrap();
    // Its failure was told: the topic is taken again.
    let t = put(&wal, batch(&log, 2004, 1000, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    let want = [(1, true), (2, false), (1002, false), (2002, true), (2003, true), (2004, true)];
    assert_eq!(told(&log), want);
    let want: Vec<u64> = [1].into_iter().chain(2002..=3003).collect();
    assert_eq!(seqs(&read_back(&env, &wal)), want);
    let sizes: u64 = wal.shards[0].files.read().values().map(|f| f.file.len().unwrap()).sum();
    let next = wal.shards[0].state.lock().next.prepared.as_ref().map_or(0, |p| p.capacity);
    assert_eq!(wal.bytes_on_disk(), sizes + next);
}

/// Stages `then` when it is told that it failed, and keeps what came of it.
struct Stages {
    wal: Arc<Wal>,
    then: Mutex<Option<Batch>>,
    came: Mutex<Option<Result<Ticket>>>,
}

impl Commit for Stages {
    fn apply(&self, _: &PlacedBatch<'_>) {}
    fn failed(&self, _: &StorageError) {
        if let Some(b) = self.then.lock().take() {
            *self.came.lock() = Some(put(&self.wal, b));
        }
    }
}

#[test]
fn nothing_is_taken_of_a_topic_before_its_failure_is_told() {
    let (env, fs, _) = sim_env(1);
    let wal = Arc::new(wal(&env, small()));
    let log = Arc::new(Log::default());
    let of = |topic_id, seq| Batch {
        topic_id,
        frees_space: true,
        ..batch(&log, seq, 1, Level::Written)
    };
    let first = put(&wal, of(5, 1)).unwrap();
    wal.wait(first, Level::Written).unwrap();
    fs.fail_nth(CallKind::Write, 1, ENOSPC);
    // Two topics fail together; when the first is told, the second is not yet.
    let stages = |then| {
        let (then, came) = (Mutex::new(Some(then)), Mutex::new(None));
        Arc::new(Stages { wal: wal.clone(), then, came })
    };
    let (early, other) = (stages(of(6, 90)), stages(of(7, 91)));
    put(&wal, Batch { commit: early.clone(), ..of(5, 2) }).unwrap();
    put(&wal, Batch { commit: other.clone(), ..of(5, 3) }).unwrap();
    let last = put(&wal, of(6, 4)).unwrap();
    assert!(matches!(wal.wait(last, Level::Written), Err(StorageError::Full { .. })));
    let came = early.came.lock().take().unwrap();
    assert!(matches!(came, Err(StorageError::Full { .. })), "{came:?}");
    let came = other.came.lock().take().unwrap().unwrap();
    wal.wait(came, Level::Synced).unwrap();
    let again = put(&wal, of(6, 92)).unwrap();
    wal.wait(again, Level::Synced).unwrap();
    assert_eq!(told(&log), [(1, true), (4, false), (91, true), (92, true)]);
    assert_eq!(seqs(&read_back(&env, &wal)), [1, 91, 92]);
}

#[test]
fn what_frees_space_of_other_topics_goes_on_behind_what_does_not_fit() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Written).unwrap();
    // The file in use is full to its end; the next is ready, and can not be made larger.
    let one = batch(&log, 1, 1, Level::Written).bytes();
    while wal.shards[0].state.lock().current.free_bytes() >= one {
        let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    fs.fail_from(CallKind::Allocate, 1, ENOSPC);
    let of = |topic_id, seq, n| Batch {
        topic_id,
        frees_space: n == 1,
        ..batch(&log, seq, n, Level::Written)
    };
    let tickets: Vec<Ticket> = [of(5, 10, 1000), of(6, 11, 1), of(5, 12, 1), of(7, 13, 2000)]
        .into_iter()
        .map(|b| put(&wal, b).unwrap())
        .collect();
    let told: Vec<bool> = tickets.iter().map(|t| wal.wait(*t, Level::Written).is_ok()).collect();
    assert_eq!(told, [false, true, false, false]);
    let t = put(&wal, of(5, 14, 1)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
}

/// What was staged before the shortage showed, small as it is, leaves a place.
#[test]
fn what_frees_space_has_a_place_in_the_last_file() {
    for level in [Level::Written, Level::Synced] {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, small());
        let log = Arc::new(Log::default());
        let of = |topic_id, seq, n| Batch { topic_id, ..batch(&log, seq, n, level) };
        fs.fail_from(CallKind::Allocate, 1, ENOSPC);
        let size = of(1, 1, 1).bytes() as u64;
        let tickets: Vec<Ticket> =
            (1..=4096 / size + 20).map(|topic| put(&wal, of(topic, topic, 1)).unwrap()).collect();
        let written = tickets.iter().filter(|t| wal.wait(**t, level).is_ok()).count() as u64;
        assert!(written * size > 3000 && written * size < 3700, "{written} of {size} bytes");
        assert!(put(&wal, of(500, 500, 1)).is_err());
        // They share groups, each of which has a frame of its own.
        let frees: Vec<Ticket> = (501..503)
            .map(|topic| put(&wal, Batch { frees_space: true, ..of(topic, topic, 1) }).unwrap())
            .collect();
        for t in frees {
            wal.wait(t, level).unwrap();
        }
        // Not for ever.
        let frees = |topic| {
            let freeing = Batch { frees_space: true, ..of(topic, topic, 1) };
            wal.wait(put(&wal, freeing).unwrap(), level)
        };
        let more = (503..600).find(|topic| frees(*topic).is_err()).unwrap();
        assert!(matches!(frees(more), Err(StorageError::Full { .. })));
        fs.clear_faults();
        frees(more + 1).unwrap();
        let want: Vec<u64> = (1..=written).chain(501..more).chain([more + 1]).collect();
        assert_eq!(seqs(&read_back(&env, &wal)), want);
    }
}

/// A batch for which the next file grows leaves a place there, or is refused.
#[test]
fn what_frees_space_has_a_place_behind_a_large_batch() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(first, Level::Synced).unwrap();
    // Larger than a file; no file can be made after the one that grows.
    fs.fail_from(CallKind::Create, 1, ENOSPC);
    let large = put(&wal, batch(&log, 2, 1000, Level::Written)).unwrap();
    wal.wait(large, Level::Written).unwrap();
    assert!(wal.full(0));
    let freeing = Batch { frees_space: true, ..batch(&log, 1002, 1, Level::Written) };
    let t = put(&wal, freeing).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    assert_eq!(seqs(&read_back(&env, &wal)), (1..=1002).collect::<Vec<_>>());
}

#[test]
fn i1_a_failure_behind_what_is_not_synced_is_told_at_every_level() {
    for level in [Level::Written, Level::Synced] {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, small());
        let log = Arc::new(Log::default());
        let of = |topic_id, seq, level| Batch { topic_id, ..batch(&log, seq, 1, level) };
        let first = put(&wal, of(5, 1, Level::Synced)).unwrap();
        wal.drive(0);
        fs.fail_nth(CallKind::Write, 1, ENOSPC);
        put(&wal, of(6, 2, Level::Written)).unwrap();
        wal.drive(0);
        assert!(put(&wal, of(6, 3, Level::Written)).is_err(), "topic 6 waits for its failure");
        // Another topic goes on, and with it the first is synced and the failure told.
        let other = put(&wal, of(5, 4, Level::Written)).unwrap();
        wal.wait(other, level).unwrap();
        assert_eq!(told(&log), [(1, true), (2, false), (4, true)]);
        wal.wait(first, Level::Synced).unwrap();
        let t = put(&wal, of(6, 5, Level::Written)).unwrap();
        wal.wait(t, level).unwrap();
        assert_eq!(seqs(&read_back(&env, &wal)), [1, 4, 5]);
    }
}

#[test]
fn a_malformed_batch_never_reaches_the_disk() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    // What was written before it waits for a sync; what is staged behind it has no room in its group.
    let first = put(&wal, Batch { topic_id: 8, ..batch(&log, 7, 1, Level::Synced) }).unwrap();
    wal.drive(0);
    let mut bad = batch(&log, 1, 100_000, Level::Written);
    bad.records.pop();
    let t = put(&wal, bad).unwrap();
    let after = put(&wal, batch(&log, 100_001, 1, Level::Synced)).unwrap();
    let other = put(&wal, Batch { topic_id: 8, ..batch(&log, 8, 1, Level::Written) }).unwrap();
    wal.drive(0);
    assert!(matches!(wal.wait(t, Level::Written), Err(StorageError::Corrupt { .. })));
    assert!(matches!(wal.wait(after, Level::Written), Err(StorageError::Corrupt { .. })));
    wal.wait(other, Level::Written).unwrap();
    wal.wait(first, Level::Synced).unwrap();
    assert_eq!(told(&log), [(7, true), (1, false), (100_001, false), (8, true)]);
    let empty = Batch { records: Vec::new(), ..batch(&log, 1, 1, Level::Written) };
    assert!(put(&wal, empty).is_err());
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    assert_eq!(seqs(&read_back(&env, &wal)), [7, 8, 1]);
}

#[test]
fn a_commit_that_panics_poisons_instead_of_blocking_the_others() {
    struct Bad;
    impl Commit for Bad {
        fn apply(&self, _: &PlacedBatch<'_>) {
            panic!("a bug in a commit");
        }
        fn failed(&self, _: &StorageError) {}
    }
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let bad = Batch { commit: Arc::new(Bad), ..batch(&log, 1, 1, Level::Written) };
    let t = put(&wal, bad).unwrap();
    let other = put(&wal, batch(&log, 2, 1, Level::Synced)).unwrap();
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    assert!(matches!(wal.wait(t, Level::Written), Err(StorageError::Poisoned { .. })));
    std::panic::set_hook(hook);
    assert_eq!(env.guards.panics()[0].count, 1);
    assert!(matches!(wal.wait(other, Level::Synced), Err(StorageError::Poisoned { .. })));
    assert!(put(&wal, batch(&log, 3, 1, Level::Written)).is_err());
    assert_eq!(*log.told.lock(), [(2, false)], "whoever comes after is told, once");
    let _ = wal.close(true);
}

/// A panic anywhere in a thread of the log: everybody is told, and a close ends.
#[test]
fn a_thread_of_the_log_that_panics_poisons_the_shard() {
    for name in ["wal-sync", "wal-ahead"] {
        let (env, _, _) = sim_env(1);
        env.guards.inject(name, 1);
        let hook = std::panic::take_hook();
        std::panic::set_hook(Box::new(|_| {}));
        let wal = wal(&env, WalOptions { background: true, ..small() });
        while wal.poisoned(0).is_none() {
            std::thread::yield_now();
        }
        std::panic::set_hook(hook);
        let log = Arc::new(Log::default());
        assert!(put(&wal, batch(&log, 1, 1, Level::Written)).is_err(), "{name}");
        let _ = wal.close(true);
        assert_eq!(env.guards.panics()[0].name, name);
    }
}

/// A panic of a leader, with the lock or without it: what it took is dropped, the others are told.
#[test]
fn a_leader_that_panics_leaves_nobody_waiting() {
    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.drive(0);
    let second = put(&wal, batch(&log, 2, 1, Level::Written)).unwrap();
    wal.shards[0].state.lock().staged.bytes = 0;
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    // Arithmetic that overflows stands for any mistake under the lock.
    let unwound = std::thread::scope(|s| s.spawn(|| wal.drive(0)).join().is_err());
    std::panic::set_hook(hook);
    assert!(unwound);
    for t in [first, second] {
        assert!(matches!(wal.wait(t, Level::Synced), Err(StorageError::Poisoned { .. })));
    }
    // The batch that the leader had in hand is dropped untold: its owner's `Drop` says so.
    assert_eq!(*log.told.lock(), [(1, false)]);
    let _ = wal.close(true);
}

#[test]
fn i1_readers_keep_what_was_acked_when_a_failed_sync_takes_its_pages() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, WalOptions { file_initial: 16 << 10, ..small() });
    let log = Arc::new(Log::default());
    for seq in 1..=3 {
        let t = put(&wal, batch(&log, seq, 2, Level::Written)).unwrap();
        wal.wait(t, Level::Written).unwrap();
    }
    let file = wal.file(0, FileKey(0)).unwrap().file.clone();
    let end = wal.shards[0].state.lock().current.offset as usize;
    let mut written = vec![0; end];
    file.read_exact_at(&mut written, 0).unwrap();
    fs.fail_nth(CallKind::SyncData, 1, FaultKind::SyncFails { then: PageFate::Reverted });
    assert!(wal.sync(0).is_err());
    let mut left = vec![0; end];
    file.read_exact_at(&mut left, 0).unwrap();
    assert_ne!(left[WAL_START..], written[WAL_START..], "the pages are gone");
    // Several groups at once, from any place to any place.
    for from in (WAL_START..end).step_by(37) {
        for to in (from + 1..=end).step_by(41) {
            let mut out = b"before".to_vec();
            wal.read(0, FileKey(0), from as u32, to - from, &mut out).unwrap();
            assert_eq!(out[6..], written[from..to], "{from}..{to}");
        }
    }
}

#[test]
fn the_next_file_is_as_large_as_there_is_room_for() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, WalOptions { file_max: 64 << 10, ..small() });
    let log = Arc::new(Log::default());
    let mut seq = 0;
    let mut put_wait = || {
        seq += 1;
        put(&wal, batch(&log, seq, 1, Level::Written)).and_then(|t| wal.wait(t, Level::Synced))
    };
    let sizes = || {
        let st = wal.shards[0].state.lock();
        (st.current.capacity, st.next.prepared.as_ref().map(|p| p.capacity))
    };
    while sizes() != (16 << 10, Some(32 << 10)) {
        put_wait().unwrap();
    }
    // Room for a file of 8 KiB, and for the page of `CURRENT`; not for one of 64 KiB. The log asks
    // for less and less where it does not learn how much is free.
    fs.set_free_space(Some(3 * 4096));
    fs.fail_from(CallKind::FreeSpace, 1, FaultKind::EIO);
    while sizes().0 != 32 << 10 {
        put_wait().unwrap();
    }
    assert_eq!(sizes().1, Some(8 << 10));
    while sizes().0 != 8 << 10 {
        put_wait().unwrap();
    }
    // No room for the least: ordinary writes are refused, and taken when there is.
    assert!(matches!(put_wait(), Err(StorageError::Full { .. })));
    assert!(wal.full(0) && wal.full(0));
    // A file that is made and not named by `CURRENT` takes the last page.
    assert!(wal.shards[0].state.lock().next.orphans.len() <= 1);
    fs.set_free_space(None);
    assert!(!wal.full(0));
    assert_eq!(sizes(), (8 << 10, Some(4 << 10)), "others need the space too");
    put_wait().unwrap();
}

#[test]
fn the_next_file_leaves_most_of_the_free_space_to_others() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, WalOptions { file_max: 1 << 20, ..small() });
    let log = Arc::new(Log::default());
    fs.set_free_space(Some(256 << 10));
    let mut seq = 0;
    loop {
        let before = env.fs.free_space(Path::new("/")).unwrap();
        let next = wal.shards[0].state.lock().next.prepared.as_ref().map_or(0, |p| p.capacity);
        assert!(next <= (4 << 10).max((before + next) / 8 + 4096), "{next} of {before}");
        seq += 1;
        let staged = put(&wal, batch(&log, seq, 1, Level::Written));
        if staged.and_then(|t| wal.wait(t, Level::Synced)).is_err() {
            break;
        }
    }
    assert!(wal.full(0) && seq > 1000, "{seq}");
}

#[test]
fn a_file_that_current_does_not_name_takes_no_space() {
    let (env, fs, _) = sim_env(1);
    let wal = wal(&env, WalOptions { file_max: 64 << 10, ..small() });
    let log = Arc::new(Log::default());
    // The write of `CURRENT` fails, whatever the size.
    let writes = topics_sim::CallFilter::on_path(CallKind::Write, "CURRENT");
    fs.fail_from(writes, 1, ENOSPC);
    let t = put(&wal, batch(&log, 1, 1, Level::Written)).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    assert!(wal.full(0));
    let image = fs.kill_image();
    let large = |(p, b): &(String, _)| p.ends_with(".log") && <Vec<u8>>::len(b) > 4096;
    assert_eq!(image.files().iter().filter(|f| large(f)).count(), 0);
    fs.clear_faults();
    assert!(!wal.full(0));
    assert_eq!(env.fs.list(Path::new("/db/wal/shard-00")).unwrap().len(), 4);
    assert_eq!(seqs(&read_back(&env, &wal)), [1]);
}

#[test]
fn i1_a_log_that_finds_no_descriptor_goes_on_when_there_is_one() {
    // Temporary file, folder, `CURRENT`, its folder; then the Start of the one after it.
    for nth in 1..12 {
        let (env, fs, _) = sim_env(1);
        let wal = wal(&env, WalOptions { file_max: 4096, ..small() });
        let log = Arc::new(Log::default());
        let mut acked = Vec::new();
        let mut next = 1;
        let mut put_wait = |n: usize| {
            let mut refused = 0;
            for _ in 0..n {
                let t = put(&wal, batch(&log, next, 1, Level::Synced)).unwrap();
                match wal.wait(t, Level::Synced) {
                    Ok(()) => acked.push(next),
                    Err(StorageError::NoDescriptor { .. }) => refused += 1,
                    Err(e) => panic!("{e}"),
                }
                next += 1;
            }
            (refused, acked.clone())
        };
        fs.fail_from(CallKind::NEEDS_FD.as_slice(), nth, FaultKind::EMFILE);
        assert!(put_wait(200).0 > 0, "{nth}");
        assert!(!wal.full(0) && wal.poisoned(0).is_none(), "{nth}");
        fs.clear_faults();
        let (refused, acked) = put_wait(100);
        assert_eq!(refused, 0, "{nth}");
        assert_eq!(seqs(&read_back(&env, &wal)), acked, "{nth}");
        assert!(wal.shards[0].state.lock().next.orphans.len() <= 1, "{nth}");
    }
}
