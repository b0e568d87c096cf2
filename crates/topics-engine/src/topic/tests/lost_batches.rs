//! Class `memory` is acked before it is written: what readers and the callers of a sync learn of a batch
//! that then fails.

use topics_env::sync::Mutex;
use topics_env::{Hook, Site, Verdict};
use topics_sim::{CallFilter, CallKind, FaultKind};

use super::*;
use crate::types::error::Error;

/// The ways in which a process ends, each followed by an open.
const ENDS: [(&str, fn(&mut World)); 5] = [
    ("reopened", World::reopen),
    ("closed on the full disk", |w| {
        w.close();
        heal(w);
        w.open();
    }),
    ("killed", World::kill),
    ("killed, write-back fails", |w| {
        if !w.kill_with_failed_write_back() {
            w.open();
        }
    }),
    ("power cut", World::power_cut),
];

/// From now on no group is written, and no log file made.
fn full(w: &World) {
    fill_disk(&w.fs);
}

fn fill_disk(fs: &SimFs) {
    fs.fail_from(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
    fs.fail_from(CallKind::Allocate, 1, FaultKind::ENOSPC);
}

/// Space has come back.
fn heal(w: &World) {
    w.fs.clear_faults();
    if let Some(engine) = &w.engine {
        engine.open_engine().store().refresh_load();
    }
}

/// The seqs in the gaps that a reader of the records after `from` gets.
fn announced(w: &World, from: u64) -> Vec<u64> {
    let mut gaps: Vec<u64> = w.scan("t", from).1.iter().flat_map(|g| g.0..=g.1).collect();
    gaps.dedup();
    gaps
}

/// A topic with the record 1, and the acked records 2 and 3 of a batch that failed.
fn lost_two(config: ConfigPatch) -> World {
    let w = World::new();
    lose_two(&w, config);
    w
}

fn lose_two(w: &World, config: ConfigPatch) {
    w.create("t", config);
    w.put("t", &["1"]);
    w.put("other", &["1"]);
    w.engine().sync().unwrap();
    full(w);
    assert_eq!(w.put("t", &["2", "3"]).last_seq, 3);
    // The thread of the log comes by.
    w.engine().open_engine().ctx().wal.sync(0).unwrap();
}

/// The error of a sync over the records 2 and 3.
fn reported(outcome: Result<()>) -> bool {
    match outcome {
        Ok(()) => false,
        Err(Error::DataLoss { topic, from: 2, to: 3, detail }) => {
            assert_eq!(topic, "t");
            assert!(detail.contains("No space left"), "{detail}");
            true
        }
        Err(e) => panic!("{e}"),
    }
}

#[test]
fn i4_the_records_of_a_failed_batch_are_a_gap_however_the_process_ends() {
    for (end, kill) in ENDS {
        // What happens between the failure and the end.
        for then in ["nothing", "sync", "checkpoint", "class", "more", "more and sync"] {
            let mut w = lost_two(class(Durability::Memory));
            let name = format!("{end}, {then}");
            assert_eq!((w.seqs("t"), announced(&w, 1)), (vec![1], vec![2, 3]), "{name}");
            if end != "closed on the full disk" {
                heal(&w);
            }
            match then {
                "sync" => drop(w.engine().sync()),
                "checkpoint" => drop(w.engine().checkpoint()),
                "class" => drop(w.engine().create_topic("t", &class(Durability::Fsync))),
                "more" | "more and sync" => {
                    w.put("t", &["4"]);
                    w.engine().drive();
                }
                _ => {}
            }
            if then == "more and sync" {
                drop(w.engine().sync());
            }
            kill(&mut w);
            let (seqs, gaps) = (w.seqs("t"), announced(&w, 1));
            let rest: Vec<u64> = seqs.iter().copied().filter(|s| *s > 1).collect();
            assert_eq!(seqs.first(), Some(&1), "I1: {name}");
            assert!([2, 3].iter().all(|s| gaps.contains(s)), "I4: {name}: {seqs:?}, {gaps:?}");
            assert!(rest.iter().all(|s| *s == 4 && !gaps.contains(s)), "{name}: {rest:?}");
            // A reader that has read the gap before goes on from there.
            assert!(w.scan("t", 3).0.iter().all(|s| *s == 4), "{name}");
            assert!(w.put("t", &["5"]).first_seq > 3, "I2: {name}");
            w.reopen();
            assert!([2, 3].iter().all(|s| announced(&w, 1).contains(s)), "I4: {name}, again");
        }
    }
}

#[test]
fn a_sync_reports_acked_records_that_were_lost() {
    for (whole, more) in [(true, false), (true, true), (false, false), (false, true)] {
        let mut w = lost_two(class(Durability::Memory));
        let sync = |w: &World| match whole {
            true => w.engine().sync(),
            false => w.engine().sync_topic("t"),
        };
        // While the disk is full the gap cannot be made durable either.
        assert!(sync(&w).is_err());
        w.engine().sync_topic("other").unwrap();
        heal(&w);
        if more {
            // This write logs the gap. The next sync reports the loss all the same.
            w.put("t", &["4"]);
        }
        assert!(reported(sync(&w)), "whole {whole}, more {more}");
        assert!(!reported(sync(&w)), "it is reported once");
        // What was reported is what the next process finds, exactly.
        w.power_cut();
        let gaps: Vec<u64> = announced(&w, 1).into_iter().filter(|s| *s < 4).collect();
        assert_eq!(gaps, [2, 3], "I4");
        assert_eq!(w.seqs("t"), if more { vec![1, 4] } else { vec![1] });
        let gap = w.engine().state("t", false).unwrap().gaps[0];
        assert_eq!((gap.from, gap.to, gap.reason.as_str()), (2, 3, "crash"));
    }
}

/// Two topics lose records: each sync reports one of them, so that none is passed over.
#[test]
fn each_topic_that_lost_acked_records_is_reported() {
    let w = World::new();
    for name in ["a", "b"] {
        w.create(name, class(Durability::Memory));
    }
    w.engine().sync().unwrap();
    full(&w);
    for name in ["a", "b"] {
        w.put(name, &["lost"]);
        w.engine().open_engine().ctx().wal.sync(0).unwrap();
    }
    heal(&w);
    let mut reported = vec![];
    for _ in 0..2 {
        match w.engine().sync() {
            Err(Error::DataLoss { topic, from: 1, to: 1, .. }) => reported.push(topic),
            other => panic!("{other:?} after {reported:?}"),
        }
    }
    reported.sort();
    assert_eq!(reported, ["a", "b"]);
    w.engine().sync().unwrap();
}

/// Loses another acked record of the topic during the first sync of the log that it sees once armed.
#[derive(Debug, Default)]
struct LoseAtSync(Mutex<Option<(crate::engine::Engine, Arc<SimFs>)>>);

impl Hook for LoseAtSync {
    fn visit(&self, site: Site) -> Verdict {
        if site == Site::Sync("wal.group")
            && let Some((engine, fs)) = self.0.lock().take()
        {
            fill_disk(&fs);
            let records = [rec("4")];
            let one = Append { records: &records, ..Append::default() };
            engine.append("t", &one).unwrap();
            assert!(engine.append("other", &one).is_err(), "it waits for the group of both");
            fs.clear_faults();
        }
        Verdict::Run
    }
}

#[test]
fn a_sync_reports_what_was_lost_before_it_though_more_is_lost_meanwhile() {
    for whole in [true, false] {
        let lose = Arc::new(LoseAtSync::default());
        let mut w = World::unopened(small());
        w.hook = Some(lose.clone());
        w.open();
        lose_two(&w, class(Durability::Memory));
        heal(&w);
        *lose.0.lock() = Some((w.engine().clone(), w.fs.clone()));
        let first = if whole { w.engine().sync() } else { w.engine().sync_topic("t") };
        assert!(lose.0.lock().is_none(), "more was lost");
        // Records 2 and 3 were acked before the sync.
        let text = first.unwrap_err().to_string();
        assert!(text.contains("records 2 to 4 of topic \"t\""), "{text}");
        heal(&w);
        // It logs the gap of 4.
        w.engine().sync().unwrap();
        w.power_cut();
        let gaps: Vec<u64> = announced(&w, 1).into_iter().filter(|s| *s <= 4).collect();
        assert_eq!((gaps, w.seqs("t")), (vec![2, 3, 4], vec![1]), "I4");
    }
}

/// A caller that waits gets the error from the write itself.
#[test]
fn a_sync_does_not_report_a_write_that_was_refused() {
    let w = World::new();
    w.create("t", class(Durability::Memory));
    w.put("t", &["1"]);
    w.engine().sync().unwrap();
    full(&w);
    let records = [rec("2")];
    let req = Append { records: &records, sync: true, ..Append::default() };
    assert!(w.engine().append("t", &req).is_err());
    heal(&w);
    w.engine().sync().unwrap();
}

#[test]
fn a_sync_passes_over_topics_that_were_deleted_after_their_loss() {
    let w = lost_two(class(Durability::Memory));
    heal(&w);
    assert_eq!(w.engine().open_engine().base().losses.lock().len(), 1);
    w.engine().delete_topic("t", false).unwrap();
    assert!(
        w.engine().open_engine().base().losses.lock().is_empty(),
        "deleted topics are not kept"
    );
    w.engine().sync().unwrap();
}

#[test]
fn i11_the_floor_of_a_failed_batch_is_kept_by_a_sync_and_by_a_close() {
    for (end, kill) in ENDS {
        for synced in [true, false] {
            // A kill loses what nothing has asked to keep, like the records themselves.
            if !synced && !end.contains("close") && end != "reopened" {
                continue;
            }
            let mut w = World::new();
            w.create("t", ConfigPatch { cap_records: Some(3), ..class(Durability::Memory) });
            w.put("t", &["1", "2", "3"]);
            w.engine().sync().unwrap();
            full(&w);
            // Evicts 1 and 2.
            w.put("t", &["lost", "lost"]);
            w.engine().open_engine().ctx().wal.sync(0).unwrap();
            let floor = w.state("t").evict_floor;
            assert_eq!((floor, w.seqs("t")), (3, vec![3]), "{end}");
            if end == "closed on the full disk" {
                // Only what a close may use is left: the end of the file in use.
                w.fs.clear_faults();
                w.fs.fail_from(CallKind::Allocate, 1, FaultKind::ENOSPC);
                w.fs.fail_from(CallFilter::on_path(CallKind::Write, "meta/"), 1, FaultKind::ENOSPC);
            } else {
                heal(&w);
            }
            if synced {
                assert!(w.engine().sync().is_err());
            }
            kill(&mut w);
            let s = w.state("t");
            assert_eq!((s.evict_floor, w.seqs("t")), (floor, vec![3]), "I11: {end}, {synced}");
        }
    }
}
