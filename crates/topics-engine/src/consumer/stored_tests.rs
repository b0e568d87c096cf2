//! Rules of stored cursors: the plan of staged frames and its undoing, what a transaction may move.

use super::*;
use crate::topic::cursors::Stored;
use crate::topic::tests::World;
use crate::types::consumer::{ConsumerMode, ConsumerStart};

/// Consumers of a topic that does not exist, by name and cursor.
fn consumers(all: &[(&str, u64)]) -> Consumers {
    let mut out = Consumers::default();
    for (name, cursor) in all {
        out.0.insert((*name).into(), Stored::new(ConsumerMode::AtLeastOnce, *cursor));
    }
    out
}

fn planned(all: &Consumers, name: &str) -> (u64, u64) {
    let s = &all.0[name];
    (s.cursor, s.planned)
}

#[test]
fn i8_frames_that_fail_together_are_undone_to_the_cursor_before_them() {
    let mut all = consumers(&[("c", 3), ("d", 1)]);
    assert!(!all.is_planned("c") && all.is_known("c"));
    let frames = [all.plan("c", 5), all.plan("c", 7), all.plan("c", 2)];
    assert_eq!(planned(&all, "c"), (3, 2));
    assert!(all.is_planned("c") && !all.is_planned("d"));
    frames.iter().for_each(|f| all.undo(f));
    assert_eq!(planned(&all, "c"), (3, 3), "the first one's");
    assert!(!all.is_planned("c"));
    // A frame of a later series is not undone by one of an earlier series.
    let next = all.plan("c", 6);
    frames.iter().for_each(|f| all.undo(f));
    assert_eq!(planned(&all, "c"), (3, 6));
    all.undo(&next);
    assert_eq!(planned(&all, "c"), (3, 3));
    assert_eq!(planned(&all, "d"), (1, 1));
    all.undo(&frames[0]);
    assert_eq!(planned(&all, "c"), (3, 3));
}

#[test]
fn a_creation_is_known_until_it_is_undone() {
    let mut all = consumers(&[("c", 3)]);
    assert!(!all.is_known("new") && !all.is_planned("new"));
    let creation = all.plan("new", 4);
    assert!(all.is_known("new") && all.is_planned("new"));
    assert!(!all.is_planned("c"));
    all.undo(&creation);
    assert!(!all.is_known("new") && !all.is_planned("new"));
}

#[test]
fn i8_after_an_open_a_commit_counts_from_the_stored_cursor() {
    let mut w = World::new();
    w.put("t", &["1", "2", "3", "4", "5", "6"]);
    let open =
        |w: &World| w.engine().consumer("t", "c", None, ConsumerStart::Start, false).unwrap();
    open(&w).commit(4).unwrap();
    let ends: [fn(&mut World); 3] = [World::kill, World::reopen, |w| {
        w.checkpoint();
        w.kill();
    }];
    for end in ends {
        end(&mut w);
        let c = open(&w);
        c.commit(2).unwrap();
        assert_eq!(c.cursor().unwrap(), 4);
    }
    let topic = w.engine().find("t").unwrap();
    assert!(!topic.state.read().consumers.as_ref().unwrap().is_planned("c"));
}

#[test]
fn a_transaction_moves_cursors_of_consumers_that_exist_up_to_the_head() {
    let w = World::new();
    w.put("t", &["1", "2", "3", "4"]);
    let once = Some(ConsumerMode::AtMostOnce);
    let c = w.engine().consumer("t", "c", once, ConsumerStart::Start, false).unwrap();
    c.commit(2).unwrap();
    w.engine().consumer("t", "end", None, ConsumerStart::End, false).unwrap();
    let topic = w.engine().find("t").unwrap();
    let code = |name, seq| check_cursor(&topic, name, seq).map_or_else(|e| e.code(), |()| "ok");
    assert_eq!([0, 2, 3, 4].map(|seq| code("c", seq)), ["ok"; 4]);
    assert_eq!([5, u64::MAX].map(|seq| code("c", seq)), ["invalid_request"; 2]);
    assert_eq!(code("nobody", 1), "consumer_not_found");
    let all = |of: &dyn Fn(&Consumers) -> Vec<(u64, u64)>| {
        of(topic.state.read().consumers.as_ref().unwrap())
    };
    let cursors = |c: &Consumers| ["c", "end"].map(|n| planned(c, n)).to_vec();
    // Those that would go back or stay have no frame, nor has one that does not exist.
    let to = |c: u64, end: u64| {
        [("c", c), ("end", end), ("nobody", 1)].map(|(n, seq)| (n.to_owned(), seq))
    };
    for none in [to(2, 4), to(1, 0)] {
        assert_eq!(plan_cursors(&topic, &none), []);
        assert_eq!(all(&cursors), [(2, 2), (4, 4)]);
    }
    let (name, mode) = ("c".to_owned(), ConsumerMode::AtMostOnce as u8);
    let frames = plan_cursors(&topic, &to(3, 4));
    assert_eq!(frames, [record::Consumer { name, mode, cursor: Some(3) }]);
    assert_eq!(all(&cursors), [(2, 3), (4, 4)]);
    unplan_cursors(&topic, &to(3, 4));
    assert_eq!(all(&cursors), [(2, 2), (4, 4)]);
}

#[test]
fn lags_are_of_the_stored_cursors() {
    let w = World::new();
    w.put("t", &["1", "2", "3", "4"]);
    let lags = |limit| {
        let s = w.engine().survey(&[String::new()], limit).unwrap();
        let all = s.topics.into_iter().flat_map(|t| t.consumers);
        (s.consumers, all.map(|c| (c.name, c.lag)).collect::<Vec<_>>(), s.lags_truncated)
    };
    assert_eq!(lags(9), (0, vec![], false));
    for (name, seq) in [("a", 1), ("b", 4), ("c", 0)] {
        let c = w.engine().consumer("t", name, None, ConsumerStart::Start, false).unwrap();
        c.commit(seq).unwrap();
    }
    let of = |n: &str, lag| (n.to_owned(), lag);
    assert_eq!(lags(9), (3, vec![of("a", 3), of("b", 0), of("c", 4)], false));
    assert_eq!(lags(2), (3, vec![of("a", 3), of("b", 0)], true));
}
