//! Steps of the wall clock beside time to live, delays and idempotency windows, with a reopen and
//! without.

use super::*;
use crate::types::config::TopicType;
use crate::types::queue::Claim;

const YEARS: i64 = 10 * 365 * 86_400_000;

fn ttl(ms: u64) -> ConfigPatch {
    ConfigPatch { ttl_ms: Some(ms), ..ConfigPatch::default() }
}

fn keyed(w: &World) -> Appended {
    let records = [rec("x")];
    let req = Append { records: &records, key: b"k", ..Append::default() };
    w.engine().append("keyed", &req).unwrap()
}

fn claimed(w: &World) -> usize {
    let req = Claim { node: b"n", max: 9, lease_ms: Some(60_000), wait: std::time::Duration::ZERO };
    w.engine().claim("q", &req).unwrap().len()
}

/// Something that ends after 5 s, and a key that is remembered for 2 min.
fn seconds(w: &World) {
    w.create("t", ttl(5_000));
    w.put("t", &["1"]);
    w.create("q", ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() });
    let delayed = NewRecord { delay_ms: 5_000, ..rec("job") };
    let expiring = NewRecord { ttl_ms: 5_000, ..rec("2") };
    w.engine().append("q", &Append { records: &[delayed], ..Append::default() }).unwrap();
    w.engine().append("r", &Append { records: &[expiring], ..Append::default() }).unwrap();
    assert!(!keyed(w).deduped);
}

type End = fn(&mut World);

/// Continues in the same process, reopens, is killed, or loses power.
const ENDS: [(&str, End); 4] = [
    ("none", |_| {}),
    ("reopen", World::reopen),
    ("kill", World::kill),
    ("power cut", |w| {
        w.engine().sync().unwrap();
        w.power_cut();
    }),
];

#[test]
fn a_step_forward_ends_nothing_early_with_a_reopen_and_without() {
    for (name, end) in ENDS {
        for checkpoint in [false, true] {
            let mut w = World::new();
            seconds(&w);
            if checkpoint {
                w.checkpoint();
            }
            w.clock.step_wall_ms(YEARS);
            end(&mut w);
            w.engine().tick().unwrap();
            let case = format!("{name}, checkpoint {checkpoint}");
            assert_eq!((w.seqs("t"), w.seqs("r")), (vec![1], vec![1]), "{case}");
            assert_eq!(w.state("t").evict_floor, 1, "{case}");
            assert!(keyed(&w).deduped, "{case}");
            assert_eq!(claimed(&w), 0, "{case}");
            // A clean close has seen it before the next process began.
            let seen = u64::from(name != "reopen");
            assert_eq!(w.engine().metrics().clock_steps, seen, "{case}");
            // What lasts for seconds ends within seconds all the same.
            w.clock.advance_ms(5_001);
            assert_eq!((w.seqs("t"), w.seqs("r")), (vec![], vec![]), "{case}");
            assert_eq!(claimed(&w), 1, "{case}");
            assert!(keyed(&w).deduped, "{case}");
            w.clock.advance_ms(120_000);
            assert!(!keyed(&w).deduped, "{case}");
        }
    }
}

#[test]
fn after_a_step_back_what_lasts_for_seconds_ends_within_seconds() {
    for step in [-3_600_000, -3_700_000, -YEARS] {
        for (name, end) in ENDS {
            for before in [false, true] {
                let mut w = World::new();
                w.put("other", &["1"]);
                if before {
                    seconds(&w);
                }
                w.clock.step_wall_ms(step);
                if !before {
                    seconds(&w);
                }
                end(&mut w);
                let case = format!("{name}, {step} ms, written before: {before}");
                assert_eq!((w.seqs("t"), w.seqs("r")), (vec![1], vec![1]), "{case}");
                assert_eq!(claimed(&w), 0, "{case}");
                w.clock.advance_ms(6_000);
                assert_eq!((w.seqs("t"), w.seqs("r")), (vec![], vec![]), "{case}");
                assert_eq!(claimed(&w), 1, "{case}");
                assert!(keyed(&w).deduped, "{case}");
                w.clock.advance_ms(140_000);
                assert!(!keyed(&w).deduped, "{case}");
            }
        }
    }
}

#[test]
fn steps_are_counted_in_both_directions() {
    let w = World::new();
    w.put("t", &["1"]);
    for (i, step) in [3_600_000, -3_600_000, YEARS, -YEARS].into_iter().enumerate() {
        w.clock.step_wall_ms(step);
        w.engine().tick().unwrap();
        assert_eq!(w.engine().metrics().clock_steps, i as u64 + 1, "{step}");
    }
}

#[test]
fn a_downtime_over_a_reboot_counts() {
    let mut w = World::new();
    seconds(&w);
    w.engine().sync().unwrap();
    w.clock.advance_ms(3 * 86_400_000);
    w.power_cut();
    assert_eq!((w.seqs("t"), w.seqs("r")), (vec![], vec![]));
    assert_eq!(claimed(&w), 1);
    assert!(!keyed(&w).deduped);
}
