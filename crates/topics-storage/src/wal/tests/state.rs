//! What a shard decides about its queue, by itself: no file is written here.

use std::collections::VecDeque;

use topics_env::sync::Condvar;

use super::*;
use crate::wal::effects::{Effect, Failure, QueuedBatch, Unsynced, WrittenBatch};
use crate::wal::outcome::{Outcomes, Waiter};
use crate::wal::rotation::{FIRST_GROUP, PreparedFile};
use crate::wal::state::{StagedBatches, State};

const GROUP: u64 = Group::FRAME_LEN as u64;

/// A batch of a topic as it is in the queue; its staging bytes are ten times its bytes.
pub(super) fn queued(n: u64, topic_id: u64, bytes: usize) -> QueuedBatch {
    let b = Batch { topic_id, ..batch(&Arc::default(), n, 1, Level::Written) };
    QueuedBatch { n, batch: b, bytes, reserved: 10 * bytes }
}

pub(super) fn freeing(n: u64, bytes: usize) -> QueuedBatch {
    let q = queued(n, 0, bytes);
    QueuedBatch { batch: Batch { frees_space: true, ..q.batch }, ..q }
}

fn synced(n: u64, topic_id: u64) -> QueuedBatch {
    let q = queued(n, topic_id, 10);
    QueuedBatch { batch: Batch { level: Level::Synced, ..q.batch }, ..q }
}

/// A state with this queue, and another batch's bytes beside it.
fn with(queue: Vec<QueuedBatch>) -> State {
    let mut st = State::default();
    st.progress.outcomes = Outcomes::new(0);
    st.staged = StagedBatches {
        bytes: 1 + queue.iter().map(|q| q.bytes).sum::<usize>(),
        reserved_bytes: 1 + queue.iter().map(|q| q.reserved).sum::<usize>(),
        reserved_batches: 1 + queue.len(),
        last_ticket: queue.last().map_or(0, |q| q.n),
        batches: queue.into(),
        ..StagedBatches::default()
    };
    st
}

fn prepared(capacity: u64) -> PreparedFile {
    let (env, ..) = sim_env(1);
    let file = env.fs.open(Path::new("/next"), OpenMode::CreateNew).unwrap();
    let paths = Paths::new(Path::new("/db"));
    let header = first_file(&env, &paths, 4096).files[0].header.clone();
    PreparedFile { name: "next".into(), header, file, capacity, prefaulted_to: 0 }
}

/// Frames `first..=last`, of the batch with this seq.
fn placed(seq: u64, first: u64, last: u64, reserved: Option<usize>) -> WrittenBatch {
    WrittenBatch {
        commit: Arc::new(One(Arc::default(), seq)),
        file: FileKey(0),
        file_first_lsn: 1,
        offset: 0,
        first_lsn: first,
        last_lsn: last,
        group: Arc::default(),
        range: (0, 0),
        reserved,
    }
}

fn failure(tickets: Vec<(u64, u64)>) -> Failure {
    let (commits, topics) = (Vec::new(), [7].into());
    Failure { tickets, error: full(), commits, topics, last: false }
}

pub(super) fn full() -> StorageError {
    StorageError::Full { detail: "test".into() }
}

pub(super) fn numbers<'q>(queue: impl IntoIterator<Item = &'q QueuedBatch>) -> Vec<u64> {
    queue.into_iter().map(|q| q.n).collect()
}

#[test]
fn a_new_state_begins_behind_what_recovery_kept() {
    let (offset, capacity, next_lsn) = (200, 4096, 8);
    // An eighth of the smallest file is reserved for deletes, at most 64 KiB.
    for (file_initial, reserve) in [(64 << 10, 8 << 10), (1 << 20, 64 << 10), (8 << 20, 64 << 10)] {
        let options = WalOptions { file_initial, ..WalOptions::default() };
        let (files, health, begin) = (Vec::new(), None, None);
        let start = ShardStart { files, offset, capacity, next_lsn, health, begin };
        let st = State::new(start, None, &options);
        assert_eq!(
            (st.progress.written_lsn(), st.progress.synced_lsn, st.progress.applied_lsn()),
            (7, 7, 7)
        );
        assert_eq!(
            (st.current.offset, st.current.sync_offset, st.current.capacity),
            (200, 200, 4096)
        );
        assert_eq!((st.reserve, st.dirty()), (reserve, false), "{file_initial}");
    }
}

#[test]
fn a_group_takes_what_fits_into_the_file_and_no_more_than_its_cap() {
    let three = || vec![queued(1, 1, 100), queued(2, 1, 100), queued(3, 1, 100)];
    let take = |capacity: u64, kept: usize, cap: usize, queue: Vec<QueuedBatch>| {
        let mut st = with(queue);
        (st.current.offset, st.current.capacity, st.reserve) = (50, 50 + GROUP + capacity, kept);
        (numbers(&st.take(cap)), numbers(&st.staged.batches))
    };
    assert_eq!(take(1000, 0, 1000, three()), (vec![1, 2, 3], vec![]));
    assert_eq!(take(300, 0, 1000, three()), (vec![1, 2, 3], vec![]));
    assert_eq!(take(299, 0, 1000, three()), (vec![1, 2], vec![3]));
    assert_eq!(take(99, 0, 1000, three()), (vec![], vec![1, 2, 3]));
    assert_eq!(take(1000, 0, 200, three()), (vec![1, 2], vec![3]));
    assert_eq!(take(1000, 0, 199, three()), (vec![1], vec![2, 3]));
    // The first is taken whatever the cap is, and nothing beside it.
    assert_eq!(take(1000, 0, 1, three()), (vec![1], vec![2, 3]));
    // Ordinary batches leave the end of the file to those that free space.
    assert_eq!(take(299, 100, 1000, three()), (vec![1], vec![2, 3]));
    let mixed = || vec![queued(1, 1, 100), freeing(2, 100), queued(3, 1, 100)];
    assert_eq!(take(299, 100, 1000, mixed()), (vec![1, 2], vec![3]));
    assert_eq!(take(0, 0, 1000, vec![freeing(1, 1)]), (vec![], vec![1]));
}

#[test]
fn what_is_said_of_the_largest_batch_is_what_goes_through() {
    const MOST: usize = 120;
    let cases = [Some(0), Some(40), Some(90), None];
    for next in cases {
        for (offset, kept, broken) in
            [(0, 0, false), (30, 0, false), (30, 25, false), (59, 25, false), (30, 25, true)]
        {
            for frees in [false, true] {
                let mut st = with(vec![queued(1, 1, 1)]);
                (st.current.offset, st.current.capacity) = (offset, 60 + GROUP);
                (st.reserve, st.current.broken) = (kept, broken);
                st.next.prepared = next.map(|n| prepared(FIRST_GROUP + GROUP + n));
                let mut largest = 0;
                for bytes in 1..MOST {
                    st.staged.batches[0].bytes = bytes;
                    st.staged.batches[0].batch.frees_space = frees;
                    let fits_next = next.is_some_and(|n| st.needed() <= n + GROUP);
                    if !st.needs_rotation() || fits_next {
                        largest = bytes;
                    }
                    // In the file in use there is room exactly for what is taken.
                    let mut other = with(vec![queued(1, 1, bytes)]);
                    other.staged.batches[0].batch.frees_space = frees;
                    (other.current.offset, other.current.capacity) =
                        (st.current.offset, st.current.capacity);
                    (other.reserve, other.next.prepared) = (kept, next.map(|_| prepared(0)));
                    let taken = !other.take(usize::MAX).is_empty();
                    assert_eq!(taken && !broken, !st.needs_rotation(), "{bytes} at {offset}");
                }
                let told = st.largest_writable(frees);
                let what = format!("next {next:?}, {offset}, kept {kept}, broken {broken}");
                assert_eq!(told, largest, "{what}, frees {frees}");
                // A file that begins for a batch has room for it, and for what frees space behind.
                st.staged.batches[0].bytes = MOST;
                let rest = if frees { 0 } else { kept };
                assert_eq!(st.needed(), (MOST + rest) as u64 + GROUP);
                (st.current.offset, st.current.capacity) = (FIRST_GROUP, FIRST_GROUP + st.needed());
                (st.current.broken, st.next.prepared) = (false, None);
                assert!(!st.needs_rotation(), "{what}");
                st.current.capacity -= 1;
                assert!(st.needs_rotation(), "{what}");
            }
        }
    }
    let mut st = with(vec![]);
    st.current.broken = true;
    assert!(!st.needs_rotation(), "nothing is to be written");
    assert_eq!(st.needed(), GROUP);
}

#[test]
fn i1_what_fails_takes_every_later_batch_of_its_topic_along() {
    let queue = vec![
        queued(4, 1, 10),   // of the topic that fails
        queued(5, 2, 20),   // goes on
        queued(6, 0, 30),   // of no topic: goes on
        queued(7, 3, 999),  // does not fit
        queued(8, 3, 40),   // behind it
        queued(9, 2, 999),  // does not fit, and is behind one that goes on: waits for its turn
        queued(10, 0, 999), // does not fit
        queued(11, 1, 50),  // of the topic that fails
    ];
    let mut st = with(queue);
    let taken = vec![queued(2, 1, 60), queued(3, 0, 70)];
    st.staged.bytes += 130;
    st.staged.reserved_bytes += 1300;
    st.staged.reserved_batches += 2;
    st.fail(taken, |q| q.bytes == 999, &full());
    assert_eq!(numbers(&st.staged.batches), [5, 6, 9]);
    assert_eq!(st.progress.written_ticket, 4, "those up to the queue have left it");
    assert_eq!(st.staged.bytes, 1 + 20 + 30 + 999);
    assert_eq!(
        (st.staged.reserved_bytes, st.staged.reserved_batches),
        (1 + 10 * (20 + 30 + 999), 4)
    );
    let mut undelivered: Vec<u64> = st.progress.undelivered.keys().copied().collect();
    undelivered.sort_unstable();
    assert_eq!(undelivered, [1, 3]);
    let Some(Effect::Fail(f)) = st.progress.effects.pop_front() else {
        panic!("no failure is told")
    };
    assert_eq!(f.tickets, [(2, 4), (7, 8), (10, 11)]);
    assert_eq!((f.commits.len(), f.last), (7, false));
    assert!(st.progress.unsynced.is_empty() && !st.worker.sync_wanted);
    // Told: the topics take batches again.
    st.end_drain(&VecDeque::from([Effect::Fail(f)]));
    assert!(st.progress.undelivered.is_empty());
    assert!(st.progress.outcomes.of(3, Level::Written).unwrap().is_err());
    // Nothing failed: nothing is told.
    st.fail(Vec::new(), |_| false, &full());
    assert!(st.progress.effects.is_empty());
}

#[test]
fn a_failure_behind_what_is_not_synced_waits_for_a_sync() {
    let mut st = with(vec![queued(5, 1, 10), queued(6, 2, 10)]);
    (st.progress.written_ticket, st.progress.synced_ticket) = (4, 3);
    st.progress.unsynced.push_back(Unsynced::Batch(placed(1, 5, 6, None)));
    assert!(!st.progress.failure_waits());
    st.fail(Vec::new(), |q| q.n == 5, &full());
    assert!(st.progress.failure_waits() && st.worker.sync_wanted && st.progress.effects.is_empty());
    assert_eq!(st.progress.written_ticket, 5);
    // Its waiters need that sync, at any level; other waiters only for their own batch.
    let needs =
        |st: &State, n| [Level::Written, Level::Synced].map(|l| st.progress.needs_sync(n, l));
    assert_eq!(needs(&st, 3), [false, false]);
    assert_eq!(needs(&st, 4), [false, true]);
    assert_eq!(needs(&st, 5), [true, true]);
    assert_eq!(needs(&st, 6), [false, false]);
    st.on_synced(4, 6);
    let order: Vec<&str> = st
        .progress
        .effects
        .iter()
        .map(|e| match e {
            Effect::Apply(_) => "apply",
            Effect::Fail(_) => "fail",
            Effect::Written(_) => "written",
            Effect::Synced(4) => "synced 4",
            Effect::Synced(_) => "synced",
        })
        .collect();
    assert_eq!(order, ["apply", "fail", "synced 4"]);
}

#[test]
fn a_sync_covers_what_was_written_before_it_and_no_more() {
    let mut st = with(vec![]);
    (st.staged.reserved_bytes, st.staged.reserved_batches) = (1 + 7 + 9 + 11, 4);
    (st.progress.next_lsn, st.progress.written_ticket) = (10, 3);
    for (seq, first, last, free) in [(1, 2, 3, 7), (2, 5, 6, 9), (3, 8, 9, 11)] {
        st.progress.unsynced.push_back(Unsynced::Batch(placed(seq, first, last, Some(free))));
    }
    assert_eq!((st.progress.written_lsn(), st.progress.applied_lsn()), (9, 1));
    st.on_synced(2, 6);
    assert_eq!((st.progress.synced_lsn, st.progress.synced_ticket), (6, 2));
    assert_eq!((st.staged.reserved_bytes, st.staged.reserved_batches), (1 + 11, 2));
    assert_eq!((st.progress.unsynced.len(), st.progress.effects.len()), (1, 3));
    // One that returns late takes nothing back.
    st.on_synced(1, 3);
    assert_eq!((st.progress.synced_lsn, st.progress.synced_ticket), (6, 2));
    assert_eq!(st.progress.unsynced.len(), 1);
    // What is covered is applied when it was told, and until then nothing from there on is.
    assert_eq!(st.progress.applied_lsn(), 1, "what is to be told");
    let effects = st.begin_drain();
    assert_eq!(st.progress.applied_lsn(), 1, "what is being told");
    st.end_drain(&effects);
    assert_eq!(st.progress.applied_lsn(), 7, "what waits for a sync");
    assert!(matches!(st.progress.outcomes.of(2, Level::Synced), Some(Ok(()))));
    assert!(st.progress.outcomes.of(3, Level::Synced).is_none());
    st.progress.unsynced.clear();
    assert_eq!(st.progress.applied_lsn(), 9);
}

#[test]
fn i10_a_poisoned_shard_fails_everything_that_is_on_its_way() {
    for leading in [false, true] {
        let mut st = with(vec![queued(7, 1, 10), queued(8, 2, 20)]);
        (st.flags.leading, st.progress.written_ticket) = (leading, 6);
        st.staged.reserved_bytes += 5;
        st.staged.reserved_batches += 1;
        st.progress.unsynced.push_back(Unsynced::Batch(placed(5, 5, 5, Some(5))));
        let mut failed = failure(vec![(6, 6)]);
        failed.commits.push(Arc::new(One(Arc::default(), 6)));
        st.progress.unsynced.push_back(Unsynced::Failure(failed));
        st.fail_all(5, Vec::new(), &full());
        let Some(Effect::Fail(f)) = st.progress.effects.pop_front() else {
            panic!("nothing fails")
        };
        assert!(st.progress.unsynced.is_empty() && st.progress.effects.is_empty());
        assert_eq!(f.last, !leading);
        // A leader fails the queue when it comes back.
        let (upto, commits, left) = if leading { (6, 2, 2) } else { (8, 4, 0) };
        assert_eq!((f.tickets, f.commits.len()), (vec![(5, upto)], commits));
        assert_eq!((st.staged.batches.len(), st.progress.written_ticket), (left, upto));
        assert_eq!(st.staged.reserved_batches, 1 + left);
    }
}

#[test]
fn the_next_file_is_made_ready_as_soon_as_this_one_is_used() {
    let usual = || {
        let mut st = State::default();
        st.current.offset = FIRST_GROUP + 1;
        st
    };
    assert!(usual().wants_file());
    let unless: [fn(&mut State); 6] = [
        |st| st.current.offset = FIRST_GROUP,
        |st| st.next.shrinking = true,
        |st| st.next.prepared = Some(prepared(1)),
        |st| st.flags.preparing = true,
        |st| st.closed = true,
        |st| st.next.error = Some(full()),
    ];
    for (i, change) in unless.iter().enumerate() {
        let mut st = usual();
        change(&mut st);
        assert!(!st.wants_file(), "{i}");
    }
    let mut again = usual();
    (again.next.error, again.next.retry) = (Some(full()), true);
    assert!(again.wants_file());
}

#[test]
fn one_waiter_leads_and_one_syncs() {
    let waiting = |st: &mut State, n, level| {
        let wake = Arc::new(Condvar::new());
        st.progress.outcomes.waiters.push(Waiter { n, level, wake: wake.clone() });
        wake
    };
    let woken = |st: &mut State, of: &[&Arc<Condvar>]| {
        let woken = st.take_woken();
        let at = |w: &Arc<Condvar>| of.iter().position(|o| Arc::ptr_eq(o, w)).unwrap();
        woken.iter().map(at).collect::<Vec<_>>()
    };
    let usual = || {
        let mut st = with(vec![queued(3, 1, 10), queued(4, 2, 10)]);
        (st.progress.written_ticket, st.progress.synced_ticket) = (2, 1);
        st
    };
    // One that waits for a sync leads, and syncs what is behind it: the others sleep on.
    let mut st = usual();
    let (a, b, c) = (
        waiting(&mut st, 2, Level::Synced),
        waiting(&mut st, 3, Level::Written),
        waiting(&mut st, 4, Level::Synced),
    );
    assert_eq!(woken(&mut st, &[&a, &b, &c]), [2]);
    assert_eq!(st.progress.outcomes.waiters.len(), 2);
    assert!(!st.worker.lead_wanted);
    // No batch of the queue waits for a sync: one waiter leads, another syncs.
    let mut st = usual();
    let (a, b) = (waiting(&mut st, 2, Level::Synced), waiting(&mut st, 3, Level::Written));
    assert_eq!(woken(&mut st, &[&a, &b]), [1, 0]);
    // While both are being done, no waiter is woken.
    let mut st = usual();
    (st.flags.leading, st.flags.syncing) = (true, true);
    let (a, b) = (waiting(&mut st, 2, Level::Synced), waiting(&mut st, 3, Level::Written));
    assert!(woken(&mut st, &[&a, &b]).is_empty());
    assert!(!st.worker.lead_wanted);
    // The queue has no waiters: the thread is asked, unless no batch in it is waited for at all.
    let mut st = usual();
    let a = waiting(&mut st, 2, Level::Synced);
    assert_eq!(woken(&mut st, &[&a]), [0]);
    assert!(st.worker.lead_wanted);
    let mut st = usual();
    st.staged.batches.iter_mut().for_each(|q| q.batch.level = Level::Staged);
    assert!(st.take_woken().is_empty() && !st.worker.lead_wanted);
    // What is known is told also by a shard that does nothing any more.
    let mut st = usual();
    st.closed = true;
    st.progress.outcomes.reached(2, Level::Synced);
    let (a, b) = (waiting(&mut st, 2, Level::Synced), waiting(&mut st, 3, Level::Written));
    assert_eq!(woken(&mut st, &[&a, &b]), [0]);
}

#[test]
fn a_callback_calls_for_a_sync_of_what_is_written() {
    let mut st = with(vec![synced(4, 1)]);
    (st.progress.written_ticket, st.progress.next_lsn, st.progress.synced_lsn) = (3, 10, 5);
    assert!(st.dirty() && !st.callback_needs_sync());
    st.progress.outcomes.on_level(4, Level::Synced, Box::new(|_| ()));
    assert!(!st.callback_needs_sync(), "it is in the queue");
    st.progress.outcomes.on_level(3, Level::Synced, Box::new(|_| ()));
    assert!(st.callback_needs_sync());
    st.progress.synced_lsn = 9;
    assert!(!st.dirty() && !st.callback_needs_sync());
    st.progress.synced_lsn = 5;
    st.closed = true;
    assert!(!st.dirty() && !st.callback_needs_sync());
    assert!(st.staged.is_queued(4) && st.staged.is_queued(5) && !st.staged.is_queued(3));
    assert_eq!(st.staged.before_queue(), 3);
    st.staged.batches.clear();
    assert_eq!(st.staged.before_queue(), 4);
    assert!(!st.staged.is_queued(4));
}

#[test]
fn after_a_panic_no_flag_is_left() {
    let mut st = with(vec![]);
    (st.flags.leading, st.flags.syncing, st.flags.draining) = (true, true, true);
    (st.flags.preparing, st.progress.next_lsn) = (true, 10);
    st.progress.effects.push_back(Effect::Apply(placed(1, 2, 3, None)));
    drop(st.begin_drain());
    assert_eq!(st.progress.applied_lsn(), 1);
    st.release_flags();
    let flags = [st.flags.leading, st.flags.syncing, st.flags.draining, st.flags.preparing];
    assert_eq!((flags, st.progress.applied_lsn()), ([false; 4], 9));
}
