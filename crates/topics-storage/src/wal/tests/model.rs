//! Random calls and faults against a model of what a shard promises.

use proptest::prelude::*;
use topics_sim::CallKind;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Stage {
        topic: u64,
        records: usize,
        level: Level,
        frees: bool,
    },
    Drive,
    Wait {
        level: Level,
    },
    Sync,
    Trim,
    Fault {
        call: CallKind,
        nth: usize,
        errno: i32,
    },
    /// Nobody may take free space for the log, or everybody again.
    Hold {
        on: bool,
    },
    Heal,
}

fn step() -> impl Strategy<Value = Step> {
    let level = prop_oneof![Just(Level::Staged), Just(Level::Written), Just(Level::Synced)];
    let call = prop_oneof![
        6 => Just(CallKind::Write),
        3 => Just(CallKind::Allocate),
        1 => Just(CallKind::SyncData),
        1 => Just(CallKind::Rename),
        1 => Just(CallKind::Create),
    ];
    // A shortage of space or of descriptors is common, an error for good is the end of the run.
    let errno = prop_oneof![5 => Just(28), 1 => Just(27), 1 => Just(24), 1 => Just(5)];
    prop_oneof![
        14 => (0u64..3, 1usize..40, level.clone(), prop::bool::weighted(0.1)).prop_map(
            |(topic, records, level, frees)| Step::Stage { topic, records, level, frees }
        ),
        4 => Just(Step::Drive),
        4 => level.prop_map(|level| Step::Wait { level }),
        2 => Just(Step::Sync),
        1 => Just(Step::Trim),
        2 => (call, 1usize..4, errno)
            .prop_map(|(call, nth, errno)| Step::Fault { call, nth, errno }),
        1 => prop::bool::ANY.prop_map(|on| Step::Hold { on }),
        2 => Just(Step::Heal),
    ]
}

/// What was staged.
struct Staged {
    ticket: Ticket,
    topic: u64,
    /// How many commits had been told something by then.
    told: usize,
    seq: u64,
    records: u64,
    level: Level,
}

fn run(steps: &[Step]) {
    let (env, fs, _) = sim_env(7);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let mut staged: Vec<Staged> = Vec::new();
    let mut seq = 1;
    let mut trimmed = 0;
    // Bytes that batches which free space may have taken.
    let mut freeing = 0;
    let mut hold = None;
    for step in steps {
        match *step {
            Step::Stage { topic, records, level, frees } => {
                let b = batch(&log, seq, records, level);
                let told = log.told.lock().len();
                let b = Batch { topic_id: topic, frees_space: frees, ..b };
                if frees {
                    freeing += b.bytes() + Group::FRAME_LEN;
                }
                if let Ok(ticket) = put(&wal, b) {
                    let records = records as u64;
                    staged.push(Staged { ticket, topic, told, seq, records, level });
                }
                seq += records as u64;
            }
            Step::Drive => wal.drive(0),
            Step::Wait { level } => {
                let Some(s) = staged.last() else { continue };
                let outcome = wal.wait(s.ticket, level);
                check_wait(&wal, &log, s, level, &outcome);
            }
            Step::Sync => {
                let written_before = wal.positions(0);
                if let Ok(lsn) = wal.sync(0) {
                    assert!(lsn >= written_before.written);
                    assert_eq!(wal.counters().staged, 0);
                }
            }
            Step::Trim => {
                let p = wal.positions(0);
                trimmed = trimmed.max(p.synced.min(p.applied));
                wal.trim(0, trimmed).unwrap();
            }
            Step::Fault { call, nth, errno } => fs.fail_nth(call, nth, FaultKind::Errno(errno)),
            Step::Hold { on } => hold = on.then(|| wal.pause_allocation()),
            Step::Heal => fs.clear_faults(),
        }
        let p = wal.positions(0);
        assert!(p.applied <= p.written && p.synced <= p.written, "{p:?}");
        assert!(fs.violations().is_empty());
        let st = wal.shards[0].state.lock();
        let free = st.current.free_bytes() + Group::FRAME_LEN;
        let has_place =
            st.next.prepared.is_some() || st.current.broken || free + freeing >= st.reserve;
        assert!(has_place || st.poisoned.is_some(), "a place for what frees space");
    }
    fs.clear_faults();
    drop(hold);
    let poisoned = wal.poisoned(0).is_some();
    let clean = wal.close(true);
    assert_eq!(clean.is_err(), poisoned);
    check_end(&env, &wal, &log, &staged, trimmed);
}

fn check_wait(wal: &Wal, log: &Log, s: &Staged, level: Level, outcome: &Result<()>) {
    let told = log.told.lock().iter().find(|t| t.0 == s.seq).map(|t| t.1);
    match outcome {
        Ok(()) if level == Level::Staged => {}
        Ok(()) if s.level == Level::Synced && level != Level::Synced => {
            assert_ne!(told, Some(false));
        }
        Ok(()) => {
            assert_eq!(told, Some(true), "acked means applied");
            let lsn = log.applied.lock().iter().find(|a| a.1 == s.seq).unwrap().0;
            let p = wal.positions(0);
            let reached = if level == Level::Synced { p.synced } else { p.written };
            assert!(reached >= lsn + s.records - 1, "I1: {p:?} {lsn}");
        }
        Err(StorageError::Poisoned { .. }) => assert!(wal.poisoned(0).is_some()),
        Err(_) => assert_eq!(told, Some(false), "a failure is told before its waiter returns"),
    }
}

fn check_end(env: &Env, wal: &Wal, log: &Log, staged: &[Staged], trimmed: u64) {
    let told = log.told.lock();
    let want: Vec<u64> = staged.iter().map(|s| s.seq).collect();
    let mut once: Vec<u64> = told.iter().map(|t| t.0).collect();
    once.sort_unstable();
    assert_eq!(once, want, "each commit is told exactly once");
    // In queue order within a topic, among the batches that wait for a sync and those that do not;
    // of no topic, what is applied.
    for (topic, synced) in [0, 1, 2].into_iter().flat_map(|t| [(t, true), (t, false)]) {
        let of = |seq: u64| {
            let s = staged.iter().find(|s| s.seq == seq).unwrap();
            s.topic == topic && (s.level == Level::Synced) == synced
        };
        let order = told.iter().filter(|t| (topic > 0 || t.1) && of(t.0)).map(|t| t.0);
        let order: Vec<u64> = order.collect();
        assert!(order.is_sorted(), "{order:?}");
    }
    if wal.poisoned(0).is_none() {
        check_fate(&told, staged);
    }
    // What was applied is in the files, whole, once, in the order of the lsns; what failed is not,
    // unless the shard was poisoned and nothing is known about it.
    let frames = read_back(env, wal);
    let found = seqs(&frames);
    assert!(found.is_sorted());
    let applied: std::collections::BTreeMap<u64, u64> =
        log.applied.lock().iter().map(|(lsn, seq)| (*seq, *lsn)).collect();
    for s in staged {
        let here = (s.seq..s.seq + s.records).filter(|n| found.contains(n)).count() as u64;
        match applied.get(&s.seq) {
            Some(lsn) if *lsn <= trimmed => {}
            Some(_) => assert_eq!(here, s.records, "seq {}", s.seq),
            None if wal.poisoned(0).is_some() => {}
            None => assert_eq!(here, 0, "seq {} failed", s.seq),
        }
    }
}

/// What fails takes along what was staged of its topic before the failure was told.
fn check_fate(told: &[(u64, bool)], staged: &[Staged]) {
    let at = |seq: u64| told.iter().position(|t| t.0 == seq).unwrap();
    for (i, first) in staged.iter().enumerate().filter(|(_, s)| s.topic > 0) {
        let failed = at(first.seq);
        if told[failed].1 {
            continue;
        }
        for s in staged[i + 1..].iter().filter(|s| s.topic == first.topic && s.told <= failed) {
            assert!(!told[at(s.seq)].1, "{} fails, {} builds on it", first.seq, s.seq);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn i1_i10_a_shard_keeps_its_promises(steps in prop::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
