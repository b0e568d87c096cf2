//! The commit window: under pressure a sync waits for company, and only for company.

use std::sync::mpsc::{Receiver, channel};

use topics_env::Clock;
use topics_env::sim::SimClock;

use super::*;

/// No test waits this long.
const DELAY: u64 = 3_600_000_000_000;

/// Callbacks for the sync of each, registered at one moment.
fn told(wal: &Wal, tickets: &[Ticket]) -> Vec<Receiver<Result<()>>> {
    let shard = &wal.shards[0];
    let mut st = shard.state.lock();
    let call = |t: &Ticket| {
        let (tx, rx) = channel();
        let done = move |outcome| {
            let _ = tx.send(outcome);
        };
        st.outcomes.call(t.n, Level::Synced, Box::new(done));
        rx
    };
    let outcomes = tickets.iter().map(call).collect();
    st.lead_wanted = true;
    shard.wake_thread(&mut st);
    outcomes
}

fn staged(wal: &Wal, log: &Arc<Log>, seqs: std::ops::Range<u64>) -> Vec<Ticket> {
    seqs.map(|seq| put(wal, batch(log, seq, 1, Level::Synced)).unwrap()).collect()
}

fn all_good(outcomes: &[Receiver<Result<()>>]) {
    outcomes.iter().for_each(|o| o.recv_timeout(LONG).unwrap().unwrap());
}

/// A log with a thread whose last sync began just now, by the clock of the simulation.
fn with_commit_delay() -> (Wal, Arc<Log>) {
    let (wal, log, _) = with_clock();
    (wal, log)
}

fn with_clock() -> (Wal, Arc<Log>, Arc<SimClock>) {
    let (env, _, clock) = sim_env(1);
    let wal = wal(&env, WalOptions { background: true, sync_interval: LONG * 60, ..small() });
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.wait(first, Level::Synced).unwrap();
    wal.set_commit_delay(DELAY);
    (wal, log, clock)
}

/// Waits until the thread has written everything.
fn written(wal: &Wal, ticket: Ticket) {
    wal.wait(ticket, Level::Written).unwrap();
}

#[test]
fn a_lone_caller_is_never_held_back() {
    let (wal, log) = with_commit_delay();
    for seq in 2..6 {
        let one = put(&wal, batch(&log, seq, 1, Level::Synced)).unwrap();
        // The window is an hour: this would not return.
        wal.wait(one, Level::Synced).unwrap();
    }
    let one = staged(&wal, &log, 6..7);
    all_good(&told(&wal, &one));
    assert_eq!(wal.counters().delayed_syncs, 0);
}

#[test]
fn callbacks_are_held_back_together_until_somebody_needs_a_sync() {
    let (wal, log) = with_commit_delay();
    let before = wal.counters().syncs.count;
    let tickets = staged(&wal, &log, 2..4);
    let mut outcomes = told(&wal, &tickets);
    let late = staged(&wal, &log, 4..5);
    outcomes.extend(told(&wal, &late));
    written(&wal, late[0]);
    let early = outcomes[2].recv_timeout(Duration::from_millis(50));
    assert!(early.is_err(), "a sync did not wait for company");
    assert_eq!(wal.counters().syncs.count, before);
    wal.sync(0).unwrap();
    all_good(&outcomes);
    assert_eq!(wal.counters().syncs.count, before + 1, "one for all");
}

#[test]
fn how_long_a_sync_was_held_back_is_known_to_those_it_covers() {
    let (wal, log, clock) = with_clock();
    let began = clock.mono_ns();
    let outcomes = told(&wal, &staged(&wal, &log, 2..4));
    while wal.shards[0].state.lock().delay_from.is_none() {
        std::thread::yield_now();
    }
    clock.advance_ns(7_000);
    wal.sync(0).unwrap();
    all_good(&outcomes);
    let of = |staged_after: u64| wal.delayed_since(0, began + staged_after);
    assert_eq!([of(0), of(2_000), of(7_000), of(9_000)], [7_000, 5_000, 0, 0]);
    // A sync that nobody held back says nothing of those it covers.
    clock.advance_ns(1_000);
    let alone = clock.mono_ns();
    wal.set_commit_delay(0);
    all_good(&told(&wal, &staged(&wal, &log, 4..6)));
    assert_eq!(wal.delayed_since(0, alone), 0);
}

#[test]
fn the_first_to_come_again_waits_for_the_others_once() {
    let (wal, log) = with_commit_delay();
    let tickets = staged(&wal, &log, 2..4);
    let outcomes = told(&wal, &tickets);
    wal.sync(0).unwrap();
    all_good(&outcomes);
    // The last sync had company: whoever comes first is not taken for a lone caller.
    let next = told(&wal, &staged(&wal, &log, 4..5));
    assert!(next[0].recv_timeout(Duration::from_millis(50)).is_err());
    wal.sync(0).unwrap();
    all_good(&next);
    // Nobody joined it: the next one is alone.
    all_good(&told(&wal, &staged(&wal, &log, 5..6)));
}

#[test]
fn blocked_callers_are_held_back_together_and_a_close_ends_it() {
    for end in [|w: &Wal| w.sync(0).map(|_| ()), |w: &Wal| w.close(true)] {
        let (wal, log) = with_commit_delay();
        let tickets = staged(&wal, &log, 2..5);
        let outcomes = told(&wal, &[tickets[0], tickets[2]]);
        std::thread::scope(|s| {
            let (wal, own) = (&wal, tickets[1]);
            let caller = s.spawn(move || wal.wait(own, Level::Synced));
            written(wal, tickets[2]);
            assert!(outcomes[1].recv_timeout(Duration::from_millis(50)).is_err());
            end(wal).unwrap();
            caller.join().unwrap().unwrap();
        });
        all_good(&outcomes);
    }
}

#[test]
fn the_window_is_counted_from_the_last_sync_and_ends() {
    let (env, _, clock) = sim_env(1);
    let wal = wal(&env, WalOptions { background: true, sync_interval: LONG * 60, ..small() });
    let log = Arc::new(Log::default());
    let first = put(&wal, batch(&log, 1, 1, Level::Synced)).unwrap();
    wal.wait(first, Level::Synced).unwrap();
    wal.set_commit_delay(DELAY);
    // The last sync is long ago: nobody is held back.
    clock.advance_ns(DELAY);
    all_good(&told(&wal, &staged(&wal, &log, 2..5)));
    // A short window ends by itself, though the clock of the simulation stands still.
    wal.set_commit_delay(1_000_000);
    all_good(&told(&wal, &staged(&wal, &log, 5..9)));
    let counters = wal.counters();
    assert_eq!(counters.syncs.buckets.iter().sum::<u64>(), counters.syncs.count);
}

#[test]
fn i10_a_poisoned_shard_lets_go_of_whoever_gathers() {
    let (wal, log) = with_commit_delay();
    let tickets = staged(&wal, &log, 2..5);
    let outcomes = told(&wal, &[tickets[0], tickets[2]]);
    std::thread::scope(|s| {
        let (wal, own) = (&wal, tickets[1]);
        let caller = s.spawn(move || wal.wait(own, Level::Synced));
        written(wal, tickets[2]);
        let shard = &wal.shards[0];
        let error = StorageError::Poisoned { detail: "a test".into() };
        drop(shard.poison(shard.state.lock(), Vec::new(), &error));
        caller.join().unwrap().unwrap_err();
    });
    outcomes.iter().for_each(|o| drop(o.recv_timeout(LONG).unwrap().unwrap_err()));
}
