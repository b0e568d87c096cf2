//! Runs, segments, and looking for live records.

use std::sync::Arc;

use roaring::RoaringBitmap;
use topics_storage::format::frame::Flags;
use topics_storage::segment::SegmentMeta;
use topics_storage::wal::FileKey;

use super::*;
use crate::types::quota::Quota;

fn file(n: u32) -> Place {
    Place::File { shard: 0, file: FileKey(n) }
}

fn held() -> Place {
    Place::Memory { bytes: Arc::new(Vec::new()), charge: None }
}

fn entry(len: u32) -> Entry {
    Entry::new(0, 0, len, 0, Flags(0))
}

fn index(seqs: &[(u64, Place)]) -> Index {
    let mut x = Index::default();
    for (seq, place) in seqs {
        x.push(*seq, place, 100 + seq, entry(50));
    }
    x
}

#[test]
fn an_entry_is_small() {
    assert!(size_of::<Entry>() <= 24);
    assert_eq!(entry(50).payload(), 4);
    let with = |bits| Entry::new(0, 0, 60, 0, Flags(bits)).payload();
    assert_eq!(with(Flags::HAS_META), 10);
    assert_eq!(with(Flags::HAS_META | Flags::HAS_ATTRS), 8);
}

#[test]
fn runs_break_at_files_and_holes() {
    let x = index(&[(1, file(0)), (2, file(0)), (3, file(1)), (5, file(1)), (6, file(1))]);
    let runs: Vec<_> = x.runs.iter().map(|r| (r.first, r.last())).collect();
    assert_eq!(runs, [(1, 2), (3, 3), (5, 6)]);
    assert_eq!(x.entry(6).map(|e| e.lsn), Some(1));
    assert!(x.entry(4).is_none() && x.entry(7).is_none());
    assert_eq!(x.next_live(4), Ok(Some(5)));
    assert_eq!(x.prev_live(4, 1), Ok(Some(3)));
    assert_eq!(x.prev_live(4, 4), Ok(None));
    assert_eq!(x.resident(), 5);
}

/// The maintained number of resident records is the sum over the runs.
fn check_resident(x: &Index) {
    let all = x.runs.iter().filter(|r| !r.place.ephemeral());
    assert_eq!(x.resident(), all.map(|r| r.entries.len() as u64).sum::<u64>(), "{x:?}");
    let in_file = x.runs.iter().find(|r| r.in_file()).map(|r| r.first);
    assert_eq!(x.first_in_file().map(|r| r.first), in_file);
}

/// `live_in` agrees with `next_live` for every range.
fn check_counts(x: &Index, to: u64) {
    check_resident(x);
    for from in 1..=to {
        for upto in 1..=to {
            let (mut n, mut at) = (0, from);
            while let Some(seq) = x.next_live(at).unwrap().filter(|seq| *seq <= upto) {
                (n, at) = (n + 1, seq + 1);
            }
            assert_eq!(x.live_in(from, upto), Ok(n), "{from}..={upto} of {x:?}");
        }
    }
}

#[test]
fn live_records_of_a_range_are_counted() {
    let shared = held();
    let seqs = [1, 2, 3, 4, 6, 7].map(|seq| (seq, file(0)));
    let mut x = index(&seqs);
    for seq in 8..=11 {
        x.push(seq, &shared, 100 + seq, entry(50));
    }
    check_counts(&x, 12);
    for seq in [2, 3, 6, 8, 9] {
        assert!(x.kill(seq).is_some());
        check_counts(&x, 12);
    }
    // Dead records that move to a file stay dead.
    for seq in 8..=10 {
        assert!(x.relocate_to_file(seq, &file(0), 100 + seq, 0));
        check_counts(&x, 12);
    }
    x.drop_below(3, |_, _| {});
    check_counts(&x, 12);
    x.installed(6);
    check_counts(&x, 12);
}

/// A place of one `ephemeral` write.
fn ephemeral(budget: &Arc<Quota>) -> Place {
    let charge = budget.take(1).unwrap();
    Place::Memory { bytes: Arc::new(Vec::new()), charge: Some(Arc::new(charge)) }
}

#[test]
fn every_change_keeps_the_number_of_resident_records() {
    let budget = Quota::new("ephemeral_bytes", 0);
    for changes in 0..4_u64.pow(6) {
        let (mut x, mut seq) = (Index::default(), 0);
        let mut push = |x: &mut Index| {
            seq += 1;
            let place = match seq % 3 {
                0 => file(0),
                1 => held(),
                _ => ephemeral(&budget),
            };
            x.push(seq, &place, 100 + seq, entry(50));
            x.push(seq + 1, &place, 101 + seq, entry(50));
            seq += 1;
            seq
        };
        for step in 0..6 {
            match changes / 4_u64.pow(step) % 4 {
                0 => drop(push(&mut x)),
                1 => {
                    let last = push(&mut x);
                    x.drop_below(last, |_, _| {});
                }
                2 => {
                    let last = push(&mut x);
                    for seq in last.saturating_sub(3)..=last {
                        x.relocate_to_file(seq, &file(1), 100 + seq, 0);
                    }
                    x.installed(last.saturating_sub(2));
                }
                _ => {
                    let last = push(&mut x);
                    x.kill(last);
                    x.cut_out(last.saturating_sub(3), last);
                }
            }
            check_resident(&x);
        }
    }
}

#[test]
fn a_run_has_an_end() {
    let n = Run::MOST as u64;
    let seqs: Vec<_> = (1..=2 * n + 1).map(|seq| (seq, file(0))).collect();
    let mut x = index(&seqs);
    let runs: Vec<_> = x.runs.iter().map(|r| (r.first, r.last())).collect();
    assert_eq!(runs, [(1, n), (n + 1, 2 * n), (2 * n + 1, 2 * n + 1)]);
    let mut near = 0;
    for seq in 1..=2 * n + 1 {
        assert_eq!(x.entry_from(seq, &mut near), x.entry(seq));
    }
    assert_eq!(near, 2);
    assert!(x.entry_from(2 * n + 2, &mut near).is_none());
    x.installed(n + 1);
    assert_eq!((x.runs[0].first, x.resident()), (n + 2, n));
    x.drop_below(n + 2, |_, _| panic!("nothing lies below"));
    let mut gone = 0;
    x.drop_below(2 * n + 1, |_, _| gone += 1);
    assert_eq!((gone, x.resident()), (n - 1, 1));
}

#[test]
fn what_a_checkpoint_shares_stays_as_it_was() {
    let mut x = index(&[(1, file(0)), (2, file(0)), (3, file(0))]);
    let then = x.runs[0].entries.share();
    assert!(Arc::ptr_eq(&then, &x.runs[0].entries.share()), "nothing has changed");
    assert!(x.kill(2).is_some());
    x.push(4, &file(0), 104, entry(50));
    x.drop_below(2, |_, _| {});
    assert_eq!(then.iter().map(Entry::dead).collect::<Vec<_>>(), [false; 3]);
    assert_eq!(x.runs[0].entries.iter().map(Entry::dead).collect::<Vec<_>>(), [true, false, false]);
}

#[test]
fn the_dead_are_passed_over() {
    let mut x = index(&[(1, file(0)), (2, file(0)), (3, file(0))]);
    assert!(x.kill(2).is_some() && x.kill(2).is_none() && x.kill(9).is_none());
    assert_eq!(x.next_live(2), Ok(Some(3)));
    assert_eq!(x.prev_live(2, 1), Ok(Some(1)));
    let mut gone = Vec::new();
    x.drop_below(3, |seq, e| gone.push((seq, e.dead())));
    assert_eq!(gone, [(1, false), (2, true)]);
    assert_eq!(x.next_live(1), Ok(Some(3)));
}

#[test]
fn held_records_settle_in_order() {
    let h = held();
    let mut x = index(&[(1, file(0)), (2, h.clone()), (3, h)]);
    assert!(!x.relocate_to_file(3, &file(0), 9, 9), "not the first of its run");
    assert!(x.relocate_to_file(2, &file(0), 102, 7));
    assert!(x.relocate_to_file(3, &file(1), 103, 8));
    assert!(!x.relocate_to_file(3, &file(1), 103, 8));
    let runs: Vec<_> = x.runs.iter().map(|r| (r.first, r.last(), r.in_file())).collect();
    assert_eq!(runs, [(1, 2, true), (3, 3, true)]);
    assert_eq!(x.entry(2).map(|e| (e.off, e.lsn)), Some((7, 1)));
}

fn seg(first: u64, last: u64, dead: Dead, live: u64) -> Seg {
    let meta =
        SegmentMeta { first_seq: first, last_seq: last, file_no: first, ..SegmentMeta::default() };
    Seg { meta, live_count: live, live_bytes: live, dead, dirty: None }
}

#[test]
fn segments_and_runs_are_one_order() {
    let mut x = index(&[(11, held()), (31, file(0))]);
    let dead: RoaringBitmap = [0, 1].into_iter().collect();
    x.segs.push(seg(1, 10, Dead::Some(Arc::new(dead)), 8));
    x.segs.push(seg(21, 30, Dead::None, 10));
    let firsts: Vec<_> = x.parts_from(1).map(|p| p.first()).collect();
    assert_eq!(firsts, [1, 11, 21, 31]);
    assert_eq!(x.next_live(1), Ok(Some(3)));
    assert_eq!(x.next_live(11), Ok(Some(11)));
    assert_eq!(x.next_live(12), Ok(Some(21)));
    assert_eq!(x.prev_live(30, 1), Ok(Some(30)));
    assert_eq!(x.prev_live(20, 1), Ok(Some(11)));
    assert_eq!(x.prev_live(2, 1), Ok(None));
    x.segs[0].dead = Dead::Unknown;
    assert_eq!(x.next_live(1), Err(Unknown(1)));
    x.segs[0].live_count = 0;
    assert_eq!(x.next_live(1), Ok(Some(11)));
    x.installed(31);
    assert_eq!(x.resident(), 1, "held records stay");
}

#[test]
fn more_dead() {
    assert!(matches!(Dead::Unknown.with([1]), Dead::Unknown));
    assert!(matches!(Dead::None.with([]), Dead::None));
    assert!(Dead::None.with([1]).contains(1));
}
