//! Gaps and floors.

use super::*;
use crate::types::api::GapReason;

fn gap(from: u64, to: u64, reason: GapReason) -> Gap {
    Gap { from, to, reason }
}

fn state() -> State {
    State::new(Arc::new(TopicConfig::default()))
}

#[test]
fn a_gap_is_announced_once() {
    let mut s = state();
    s.add_gap(gap(1, 10, GapReason::Crash));
    s.add_gap(gap(1, 10, GapReason::Restart));
    assert_eq!(s.gaps, [gap(1, 10, GapReason::Crash)]);
    s.add_gap(gap(5, 12, GapReason::Crash));
    assert_eq!(s.gaps, [gap(1, 12, GapReason::Crash)], "what joins is one");
    s.add_gap(gap(20, 30, GapReason::Corrupt));
    s.list_gap(gap(11, 22, GapReason::Restart));
    assert_eq!(
        s.gaps,
        [
            gap(1, 12, GapReason::Crash),
            gap(13, 19, GapReason::Restart),
            gap(20, 30, GapReason::Corrupt),
        ]
    );
    assert_eq!((s.range.indexed_to, s.range.earliest), (30, 31));
}

#[test]
fn the_evict_floor_takes_gaps_with_it() {
    let mut s = state();
    s.add_gap(gap(5, 10, GapReason::Crash));
    s.add_gap(gap(15, 20, GapReason::Crash));
    s.raise_evict_floor(16, Evicted::TTL);
    assert_eq!(s.gaps, [gap(16, 20, GapReason::Crash)]);
    assert_eq!(s.range.evicted.reason(), GapReason::Ttl);
    s.raise_evict_floor(12, Evicted::CAP);
    assert_eq!((s.range.evict_floor, s.range.evicted.reason()), (16, GapReason::Ttl), "I11");
    s.raise_evict_floor(21, Evicted::CAP);
    assert_eq!((s.gaps.len(), s.range.evicted.reason()), (0, GapReason::Mixed));
    s.add_gap(gap(1, 20, GapReason::Crash));
    assert!(s.gaps.is_empty(), "below the evict floor everything is announced by that");
}

#[test]
fn finds_the_gap_at_or_above() {
    let mut s = state();
    s.add_gap(gap(5, 10, GapReason::Crash));
    for seq in [1, 5, 10] {
        assert_eq!(s.gap_from(seq), Some(gap(5, 10, GapReason::Crash)), "{seq}");
    }
    assert_eq!(s.gap_from(11), None);
}
