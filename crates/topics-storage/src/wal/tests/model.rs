//! Random calls and faults against a model of what a shard promises.

use proptest::prelude::*;
use topics_env::sim::CallKind;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Stage { records: usize, level: Level, frees: bool },
    Drive,
    Wait { level: Level },
    Sync,
    Trim,
    Fault { call: CallKind, nth: usize, errno: i32 },
    Heal,
}

fn step() -> impl Strategy<Value = Step> {
    let level = prop_oneof![Just(Level::Staged), Just(Level::Written), Just(Level::Synced)];
    let call = prop_oneof![
        6 => Just(CallKind::Write),
        3 => Just(CallKind::Allocate),
        1 => Just(CallKind::SyncData),
        1 => Just(CallKind::Rename),
    ];
    // A write that runs out of space is common, one that fails for good is the end of the run.
    let errno = prop_oneof![5 => Just(28), 1 => Just(5)];
    prop_oneof![
        10 => (1usize..40, level.clone(), prop::bool::weighted(0.1))
            .prop_map(|(records, level, frees)| Step::Stage { records, level, frees }),
        4 => Just(Step::Drive),
        4 => level.prop_map(|level| Step::Wait { level }),
        2 => Just(Step::Sync),
        1 => Just(Step::Trim),
        2 => (call, 1usize..4, errno)
            .prop_map(|(call, nth, errno)| Step::Fault { call, nth, errno }),
        2 => Just(Step::Heal),
    ]
}

/// What was staged.
struct Staged {
    ticket: Ticket,
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
    for step in steps {
        match *step {
            Step::Stage { records, level, frees } => {
                let b = Batch { frees_space: frees, ..batch(&log, seq, records, level) };
                if let Ok(ticket) = put(&wal, b) {
                    staged.push(Staged { ticket, seq, records: records as u64, level });
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
            Step::Heal => fs.clear_faults(),
        }
        let p = wal.positions(0);
        assert!(p.applied <= p.written && p.synced <= p.written, "{p:?}");
        assert!(fs.violations().is_empty());
    }
    fs.clear_faults();
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
    // In queue order, within the batches that wait for a sync and those that do not.
    for synced in [true, false] {
        let level = |seq: u64| staged.iter().find(|s| s.seq == seq).unwrap().level;
        let order: Vec<u64> =
            told.iter().map(|t| t.0).filter(|s| (level(*s) == Level::Synced) == synced).collect();
        assert!(order.is_sorted(), "{order:?}");
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(3000))]
    #[test]
    fn i1_i10_a_shard_keeps_its_promises(steps in prop::collection::vec(step(), 1..60)) {
        run(&steps);
    }
}
