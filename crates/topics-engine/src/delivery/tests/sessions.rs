//! Sessions: cursors kept between streams, rewinding, collection.

use super::*;
use crate::delivery::Received;
use crate::types::error::Error;

fn attach(w: &World, id: u128, received: &Received) -> crate::types::error::Result<Watch> {
    w.engine().attach(&w.engine().session(id, "")?, received)
}

#[test]
fn a_session_goes_on_where_its_last_stream_stopped() {
    let w = World::new();
    w.put("a", &["1", "2"]);
    w.put("b", &["1"]);
    let info = w.engine().create_session(&on(&[("a", start()), ("b", tail())]), "").unwrap();
    assert_eq!(info.ttl_ms, 300_000);
    w.say("b", "2");
    let mut first = attach(&w, info.id, &Received::All).unwrap();
    let seen = drain(&mut first);
    let records = seen.iter().filter(|t| matches!(t, Record(..))).count();
    assert_eq!(records, 3, "the tail was counted when the session was made: {seen:?}");
    w.say("a", "3");
    drop(first);
    w.say("a", "4");
    let mut second = attach(&w, info.id, &Received::All).unwrap();
    let seen = drain(&mut second);
    let seqs: Vec<_> = seen.iter().filter(|t| matches!(t, Record(..))).collect();
    assert_eq!(seqs, [&record("a", 3, "3"), &record("a", 4, "4")], "what was not handed out");
    let id = w.state("a").topic_id;
    let mut back = attach(&w, info.id, &Received::Behind(vec![("a".into(), id, 2)])).unwrap();
    let seen = drain(&mut back);
    assert_eq!(seen.iter().filter(|t| matches!(t, Record(..))).count(), 2);
    let mut ahead = attach(&w, info.id, &Received::Behind(vec![("a".into(), id, 99)])).unwrap();
    let seen = drain(&mut ahead);
    assert!(seen.iter().all(|t| !matches!(t, Gap(..) | Record(..))), "only ever back: {seen:?}");
}

#[test]
fn topics_that_joined_by_pattern_keep_their_cursors() {
    let w = World::new();
    let req = WatchRequest { patterns: vec![("p.*".into(), tail())], ..Default::default() };
    let info = w.engine().create_session(&req, "").unwrap();
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    w.say("p.1", "x");
    assert_eq!(drain(&mut stream), [record("p.1", 1, "x"), caught("p.1", 1)]);
    drop(stream);
    w.say("p.1", "y");
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(drain(&mut stream), [record("p.1", 2, "y"), caught("p.1", 2)]);
}

#[test]
fn collected_five_minutes_after_the_last_stream_closed() {
    let w = World::new();
    w.put("a", &["1"]);
    let info = w.engine().create_session(&on(&[("a", tail())]), "").unwrap();
    let stream = attach(&w, info.id, &Received::All).unwrap();
    w.clock.advance_ms(1_000_000);
    w.engine().tick().unwrap();
    drop(stream);
    w.clock.advance_ms(299_000);
    w.engine().tick().unwrap();
    assert!(attach(&w, info.id, &Received::All).is_ok());
    w.clock.advance_ms(301_000);
    w.engine().tick().unwrap();
    assert_eq!(attach(&w, info.id, &Received::All).unwrap_err().code(), "session_gone");
}

#[test]
fn an_ended_session_ends_its_streams() {
    let w = World::new();
    w.put("a", &["1"]);
    let info = w.engine().create_session(&on(&[("a", tail())]), "").unwrap();
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert!(w.engine().end_session(info.id));
    assert_eq!(stream.try_next().unwrap_err().code(), "session_gone");
    assert!(!w.engine().end_session(info.id));
}

#[test]
fn what_is_created_while_there_is_no_stream_is_read_from_its_start() {
    let w = World::new();
    w.put("p.old", &["0"]);
    let mut req = on(&[("named", tail())]);
    req.patterns = vec![("p.*".into(), tail())];
    req.lenient = true;
    let records = |watch: &mut Watch| {
        let mut seen = drain(watch);
        seen.retain(|t| matches!(t, Record(..)));
        seen.sort_by_key(|t| format!("{t:?}"));
        seen
    };
    let info = w.engine().create_session(&req, "").unwrap();
    w.say("p.first", "1");
    w.say("named", "2");
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(records(&mut stream), [record("named", 1, "2"), record("p.first", 1, "1")]);
    drop(stream);
    w.say("p.second", "3");
    w.say("p.old", "4");
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(records(&mut stream), [record("p.old", 2, "4"), record("p.second", 1, "3")]);
}

#[test]
fn a_topic_that_is_deleted_while_there_is_no_stream_is_told_once() {
    let w = World::new();
    for topic in ["a", "b", "p.c"] {
        w.put(topic, &["1"]);
    }
    let mut req = on(&[("a", start()), ("b", start())]);
    req.patterns = vec![("p.*".into(), start())];
    let info = w.engine().create_session(&req, "").unwrap();
    let deleted = |name: &str| Deleted(name.to_owned());
    let deletions = |watch: &mut Watch| {
        let mut seen = drain(watch);
        seen.retain(|t| matches!(t, Deleted(..)));
        seen
    };
    let (id, delete) = (w.state("b").topic_id, |t| w.engine().delete_topic(t, false).unwrap());
    delete("a");
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert!(stream.cursors().iter().any(|(name, _, at)| (&**name, *at) == ("a", 0)));
    assert_eq!(deletions(&mut stream), [deleted("a")]);
    assert!(stream.cursors().iter().all(|(name, ..)| &**name != "a"));
    drop(stream);
    delete("b");
    delete("p.c");
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    let mut both = deletions(&mut stream);
    both.sort_by_key(|t| format!("{t:?}"));
    assert_eq!(both, [deleted("b"), deleted("p.c")], "once each");
    drop(stream);
    // A client that has not seen it is told again.
    let mut stream = attach(&w, info.id, &Received::Behind(vec![("b".into(), id, 1)])).unwrap();
    assert_eq!(deletions(&mut stream), [deleted("b")]);
    // One that was created anew joins.
    w.say("a", "2");
    assert_eq!(drain(&mut stream), [record("a", 1, "2"), caught("a", 1)]);
}

#[test]
fn a_session_has_one_stream() {
    let w = World::new();
    w.put("a", &["1"]);
    let info = w.engine().create_session(&on(&[("a", start())]), "").unwrap();
    let mut old = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(drain(&mut old).len(), 2);
    // The client has received nothing of the old stream, and nothing yet of the new one.
    let id = w.state("a").topic_id;
    let behind = Received::Behind(vec![("a".into(), id, 0)]);
    let new = attach(&w, info.id, &behind).unwrap();
    assert_eq!(old.try_next().unwrap_err().code(), "session_gone");
    drop(old);
    drop(new);
    let mut third = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(drain(&mut third), [record("a", 1, "1"), caught("a", 1)]);
}

#[test]
fn a_topic_that_the_client_does_not_know_is_read_from_its_start() {
    let w = World::new();
    w.put("p.a", &["1"]);
    let req = WatchRequest { patterns: vec![("p.*".into(), tail())], ..Default::default() };
    let info = w.engine().create_session(&req, "").unwrap();
    let first = vec![("p.a".to_owned(), w.state("p.a").topic_id, 1)];
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    w.say("p.b", "2");
    assert_eq!(drain(&mut stream), [caught("p.a", 1), record("p.b", 1, "2"), caught("p.b", 1)]);
    let records = |received: Received| {
        let mut watch = attach(&w, info.id, &received).unwrap();
        let mut seen = drain(&mut watch);
        seen.retain(|t| matches!(t, Record(..)));
        seen
    };
    assert_eq!(records(Received::Only(first.clone())), [record("p.b", 1, "2")]);
    // A place of another session says nothing about this one.
    let foreign = [first, vec![("q".to_owned(), 9, 1)]].concat();
    assert_eq!(records(Received::Only(foreign)), []);
    assert_eq!(records(Received::Only(Vec::new())), []);
}

#[test]
fn a_topic_that_could_not_be_read_keeps_its_cursor() {
    let w = World::new();
    w.put("a", &["1"]);
    w.put("b", &["2"]);
    let info = w.engine().create_session(&on(&[("a", start()), ("b", start())]), "").unwrap();
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(drain(&mut stream).len(), 4);
    let id = w.state("b").topic_id;
    let error = || Some(Error::Internal("a bad disk".into()));
    let ended: Vec<_> = (0..2).map(|slot| stream.stream().end_topic(slot, id, error())).collect();
    assert_eq!(ended.iter().filter(|ended| **ended).count(), 1);
    assert_eq!(drain(&mut stream), [Failed("b".into(), "internal")]);
    let known = stream.cursors().iter().map(|(t, id, at)| (t.to_string(), *id, *at)).collect();
    let mut stream = attach(&w, info.id, &Received::Only(known)).unwrap();
    assert!(drain(&mut stream).iter().all(|t| !matches!(t, Record(..))), "they were sent before");
}

#[test]
fn a_topic_that_was_created_anew_behind_the_client_is_read_from_its_start() {
    let w = World::new();
    w.put("a", &["1", "2"]);
    let mut req = on(&[("a", start())]);
    req.lenient = true;
    let info = w.engine().create_session(&req, "").unwrap();
    let known = vec![("a".to_owned(), w.state("a").topic_id, 2)];
    let mut stream = attach(&w, info.id, &Received::All).unwrap();
    assert_eq!(drain(&mut stream).len(), 3);
    w.engine().delete_topic("a", false).unwrap();
    w.say("a", "3");
    assert_eq!(drain(&mut stream), [Deleted("a".into()), record("a", 1, "3"), caught("a", 1)]);
    for received in [Received::Only(known.clone()), Received::Behind(known)] {
        let mut stream = attach(&w, info.id, &received).unwrap();
        let seen = drain(&mut stream);
        assert!(matches!(&seen[0], Gap(_, _, _, reason) if *reason == "recreated"), "{seen:?}");
        assert_eq!(seen[1..], [record("a", 1, "3"), caught("a", 1)]);
    }
}

#[test]
fn a_stream_that_opens_while_its_session_ends_ends_too() {
    let w = World::new();
    w.put("a", &["1"]);
    let info = w.engine().create_session(&on(&[("a", start())]), "key").unwrap();
    assert_eq!(w.engine().session(info.id, "other").unwrap_err().code(), "session_gone");
    let session = w.engine().session(info.id, "key").unwrap();
    assert!(w.engine().end_session(info.id));
    let mut stream = w.engine().attach(&session, &Received::All).unwrap();
    assert_eq!(stream.try_next().unwrap_err().code(), "session_gone");
}
