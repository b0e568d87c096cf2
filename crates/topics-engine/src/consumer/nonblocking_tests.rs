//! Reads that wait for nothing, over the simulated disk.

use crate::topic::cursors::Consumers;
use topics_sim::{CallFilter, CallKind, FaultKind};

use std::time::Duration;

use crate::consumer::*;
use crate::topic::tests::*;
use crate::types::api::Completion;
use crate::types::api::Durability;
use crate::types::config::ConfigPatch;

const ONCE: Option<ConsumerMode> = Some(ConsumerMode::AtMostOnce);

type Got = Arc<Mutex<Vec<Result<ReadBatch>>>>;

fn world() -> World {
    let w = World::new();
    w.put("t", &["1", "2", "3", "4", "5", "6"]);
    w
}

fn open(w: &World, mode: Option<ConsumerMode>, auto: bool) -> Arc<Consumer> {
    Arc::new(w.engine().consumer("t", "c", mode, ConsumerStart::Start, auto).unwrap())
}

fn some(max_records: usize) -> ConsumerRead {
    ConsumerRead { max_records, ..ConsumerRead::default() }
}

fn into(got: &Got) -> Completion<ReadBatch> {
    let got = got.clone();
    Box::new(move |outcome| got.lock().push(outcome))
}

fn taken(got: &Got) -> Vec<std::result::Result<Vec<u64>, &'static str>> {
    let seqs = |b: ReadBatch| b.iter().map(|r| r.seq).collect();
    got.lock().drain(..).map(|o| o.map(seqs).map_err(|e| e.code())).collect()
}

/// A read that waits a minute.
fn waiting(max_records: usize) -> ConsumerRead {
    ConsumerRead { wait: Duration::from_secs(60), ..some(max_records) }
}

fn busy(max_records: usize) -> ConsumerRead {
    ConsumerRead { fail_if_busy: true, ..some(max_records) }
}

#[test]
fn at_most_once_answers_when_the_cursor_is_synced_and_not_before() {
    let mut w = world();
    let (c, got) = (open(&w, ONCE, false), Got::default());
    c.read_async(some(2), into(&got));
    assert_eq!(taken(&got), []);
    // One reader at a time; another one waits.
    let other = open(&w, ONCE, false);
    other.read_async(busy(1), into(&got));
    assert_eq!(taken(&got), [Err("consumer_busy")]);
    let next = Got::default();
    other.read_async(some(1), into(&next));
    let late = Got::default();
    other.read_async(some(1), into(&late));
    w.engine().attempt_waits();
    assert_eq!((taken(&next), taken(&late)), (vec![], vec![]));
    w.engine().sync().unwrap();
    assert_eq!(taken(&got), [Ok(vec![1, 2])]);
    w.engine().attempt_waits();
    w.engine().sync().unwrap();
    assert_eq!((taken(&next), taken(&late)), (vec![Ok(vec![3])], vec![]));
    // It waits for as long as a reader may keep the lock, whatever its own wait is.
    w.engine().attempt_waits();
    w.engine().sync().unwrap();
    assert_eq!((taken(&late), c.cursor().unwrap()), (vec![Ok(vec![4])], 4));
    c.read_async(some(1), into(&got));
    other.read_async(some(1), into(&late));
    w.clock.advance_ms(30_000);
    w.engine().attempt_waits();
    assert_eq!(taken(&late), [Err("consumer_busy")]);
    // A cursor that is not synced at a crash: nothing was handed out.
    assert_eq!(taken(&got), []);
    drop((c, other));
    w.power_cut();
    assert!(taken(&got).iter().all(|o| o.is_err()));
    let c = open(&w, ONCE, false);
    assert_eq!(c.cursor().unwrap(), 4);
}

#[test]
fn what_did_not_reach_its_reader_is_handed_out_next() {
    for (mode, auto) in [(None, false), (None, true), (ONCE, false)] {
        let w = world();
        let c = open(&w, mode, auto);
        let batch = c.read(&some(2)).unwrap();
        c.release(batch);
        let peek = ConsumerRead { checkpoint: false, ..some(1) };
        let seqs = |b: &ReadBatch| b.iter().map(|r| r.seq).collect::<Vec<_>>();
        assert_eq!(seqs(&c.read(&peek).unwrap()), [1, 2]);
        let got = Got::default();
        c.read_async(some(1), into(&got));
        assert_eq!(taken(&got), [Ok(vec![1, 2])], "{mode:?}");
        assert_eq!(seqs(&c.read(&some(1)).unwrap()), [3]);
        // A seek asks for something else.
        c.release(c.read(&some(1)).unwrap());
        c.seek(SeekTo::Seq(1)).unwrap();
        assert_eq!(seqs(&c.read(&some(1)).unwrap()), [2]);
    }
}

#[test]
fn an_automatic_commit_does_not_pass_a_batch_that_was_given_back() {
    let w = world();
    let c = open(&w, None, true);
    drop(c.read(&some(2)).unwrap());
    c.release(c.read(&some(2)).unwrap());
    drop(c);
    // Stored is what came before the batch that nobody saw.
    assert_eq!(open(&w, None, true).cursor().unwrap(), 2);
}

#[test]
fn a_read_waits_for_a_record_and_for_the_end_of_its_topic_or_handle() {
    for mode in [None, ONCE] {
        let w = world();
        let (c, got) = (open(&w, mode, false), Got::default());
        c.read_async(waiting(6), into(&got));
        w.engine().sync().unwrap();
        assert_eq!(taken(&got), [Ok((1..=6).collect())]);
        let id = c.read_async(waiting(6), into(&got));
        c.read_async(waiting(6), into(&got));
        assert!(w.engine().cancel_wait(id));
        w.put("t", &["7"]);
        w.engine().attempt_waits();
        w.engine().sync().unwrap();
        assert_eq!(taken(&got), [Ok(vec![7])], "one reads, the other was cancelled");
        c.read_async(waiting(6), into(&got));
        w.clock.advance_ms(60_000);
        w.engine().attempt_waits();
        assert_eq!(taken(&got), [Ok(vec![])]);
        let other =
            Arc::new(w.engine().consumer("t", "other", None, ConsumerStart::End, false).unwrap());
        other.read_async(waiting(6), into(&got));
        drop(other);
        w.put("t", &["8"]);
        w.engine().attempt_waits();
        assert_eq!(taken(&got), [Err("shutting_down")]);
        c.seek(SeekTo::End).unwrap();
        c.read_async(waiting(6), into(&got));
        w.engine().delete_topic("t", false).unwrap();
        w.engine().attempt_waits();
        assert_eq!(taken(&got), [Err("topic_not_found")]);
    }
}

/// A filter that drops every record of a page does not end the read.
#[test]
fn a_filter_without_matches_reads_to_the_end() {
    let w = world();
    let (c, got) = (open(&w, None, false), Got::default());
    c.read_async(ConsumerRead { matching: eq("none"), ..waiting(2) }, into(&got));
    w.clock.advance_ms(60_000);
    w.engine().attempt_waits();
    let batch = got.lock().pop().unwrap().unwrap();
    assert_eq!((batch.len(), batch.next_from_seq), (0, 6));
}

#[test]
fn a_fresh_topic_has_nothing_to_hand_out() {
    let w = World::new();
    w.create("t", ConfigPatch::default());
    let (c, got) = (open(&w, ONCE, false), Got::default());
    c.read_async(some(2), into(&got));
    assert_eq!(taken(&got), [Ok(vec![])]);
    c.read_async(busy(2), into(&got));
    assert_eq!(taken(&got), [Ok(vec![])], "nothing was staged: the lock is free");
}

#[test]
fn nothing_of_a_handle_waits_while_a_verb_has_the_topic_alone() {
    let (w, got) = (world(), Got::default());
    let engine = w.engine().open_engine().clone();
    let auto = w.engine().consumer("t", "auto", None, ConsumerStart::Start, true).unwrap();
    let auto = Arc::new(auto);
    let once = open(&w, ONCE, false);
    assert_eq!(auto.read(&some(2)).unwrap().len(), 2);
    let topic = engine.catalog().table.loaded.named("t").unwrap();
    let exclusive = topic.exclusive(engine.ctx()).unwrap();
    // Were one of these to wait, it would wait for this thread.
    once.read_async(some(2), into(&got));
    assert_eq!(taken(&got), [Err("throttled")]);
    once.read_async(busy(2), into(&got));
    assert_eq!(taken(&got), [Err("throttled")], "it does not keep the lock");
    auto.read_async(some(2), into(&got));
    assert_eq!(taken(&got), [Ok(vec![3, 4])], "the automatic commit comes later");
    assert_eq!(auto.cursor().unwrap(), 0);
    drop(exclusive);
    auto.read_async(some(2), into(&got));
    assert_eq!(taken(&got), [Ok(vec![5, 6])]);
    w.engine().sync().unwrap();
    assert_eq!(auto.cursor().unwrap(), 4);
    let exclusive = topic.exclusive(engine.ctx()).unwrap();
    auto.read_async(some(1), into(&got));
    drop(auto);
    drop(once);
    drop(exclusive);
    let auto = w.engine().consumer("t", "auto", None, ConsumerStart::Start, true).unwrap();
    assert_eq!(auto.cursor().unwrap(), 4, "at least once: what could not be stored comes again");
}

#[test]
fn i8_a_commit_that_is_refused_leaves_the_one_before_on_its_way() {
    let w = world();
    let auto = w.engine().consumer("t", "auto", None, ConsumerStart::Start, true).unwrap();
    let engine = w.engine().open_engine().clone();
    let topic = engine.catalog().table.loaded.named("t").unwrap();
    let body = |seq| {
        move |all: &mut Consumers| {
            let s = all.0.get("auto").unwrap();
            let (name, mode) = ("auto".to_owned(), 0);
            Ok((seq > s.planned).then_some(record::Consumer { name, mode, cursor: Some(seq) }))
        }
    };
    let stage = |seq| stage_cursor(engine.ctx(), &topic, "auto", Wait::No, body(seq));
    assert!(matches!(stage(5), Ok(Staged::Frame(..))));
    topic.append.lock().is_exclusive = true;
    assert!(stage(6).is_err());
    topic.append.lock().is_exclusive = false;
    assert!(matches!(stage(3), Ok(Staged::Nothing(Some(_)))));
    w.engine().sync().unwrap();
    assert_eq!(auto.cursor().unwrap(), 5);
}

/// A cursor is staged and not waited for; whether there was something to do.
fn stage_to(w: &World, seq: u64) -> Option<Ticket> {
    let engine = w.engine().open_engine();
    let topic = engine.catalog().table.loaded.named("t").unwrap();
    let staged = stage_cursor(engine.ctx(), &topic, "c", Wait::Bounded, |all| {
        let s = all.0.get("c").unwrap();
        let (name, mode) = ("c".to_owned(), 0);
        Ok((seq > s.planned).then_some(record::Consumer { name, mode, cursor: Some(seq) }))
    });
    match staged.unwrap() {
        Staged::Frame(ticket, _) => Some(ticket),
        Staged::Nothing(_) => None,
    }
}

fn fails(w: &World, ticket: Ticket) {
    let e = w.engine().open_engine().ctx().wait(ticket, Level::Written).unwrap_err();
    assert_eq!(e.code(), "storage_unavailable");
}

/// A consumer at 0 of a topic with six records, and a write of the log that fails next.
fn on_a_full_disk(class: Durability) -> (World, Consumer) {
    let w = World::new();
    w.create("t", ConfigPatch { durability: Some(class), ..ConfigPatch::default() });
    w.put("t", &["1", "2", "3", "4", "5", "6", "7"]);
    let c = w.engine().consumer("t", "c", None, ConsumerStart::Start, false).unwrap();
    w.engine().sync().unwrap();
    (w, c)
}

fn next_write_fails(w: &World) {
    w.fs.fail_nth(CallFilter::on_path(CallKind::Write, "wal-"), 1, FaultKind::ENOSPC);
}

#[test]
fn i8_a_commit_that_fails_late_leaves_the_one_behind_it_on_its_way() {
    let (w, c) = on_a_full_disk(Durability::Disk);
    let first = stage_to(&w, 5).unwrap();
    next_write_fails(&w);
    w.engine().drive();
    // Its owner has not looked yet.
    assert!(stage_to(&w, 7).is_some());
    fails(&w, first);
    assert!(stage_to(&w, 6).is_none(), "7 is on its way");
    w.engine().sync().unwrap();
    assert_eq!(c.cursor().unwrap(), 7);
}

#[test]
fn i8_a_commit_that_fails_leaves_the_one_before_it_on_its_way() {
    let (w, c) = on_a_full_disk(Durability::Fsync);
    assert!(stage_to(&w, 5).is_some());
    // Written, and not synced yet.
    w.engine().drive();
    next_write_fails(&w);
    let failed = [stage_to(&w, 6).unwrap(), stage_to(&w, 7).unwrap()];
    w.engine().drive();
    failed.into_iter().for_each(|ticket| fails(&w, ticket));
    assert!(stage_to(&w, 3).is_none(), "5 is on its way");
    w.engine().sync().unwrap();
    assert_eq!(c.cursor().unwrap(), 5);
}

#[test]
fn a_commit_behind_one_that_failed_unnoticed_is_stored() {
    let (w, c) = on_a_full_disk(Durability::Disk);
    assert!(stage_to(&w, 5).is_some());
    next_write_fails(&w);
    w.engine().drive();
    c.commit(4).unwrap();
    assert_eq!(c.cursor().unwrap(), 4);
}

#[test]
fn a_commit_that_another_one_covers_waits_for_it() {
    for class in [Durability::Disk, Durability::Fsync] {
        let (mut w, c) = on_a_full_disk(class);
        assert!(stage_to(&w, 5).is_some());
        c.commit(3).unwrap();
        assert_eq!(c.cursor().unwrap(), 5, "{class:?}");
        drop(c);
        if class == Durability::Fsync {
            w.power_cut()
        } else {
            w.kill()
        }
        assert_eq!(w.engine().consumers("t").unwrap()[0].cursor, 5, "{class:?}");
    }
    let (w, c) = on_a_full_disk(Durability::Disk);
    assert!(stage_to(&w, 5).is_some());
    next_write_fails(&w);
    assert_eq!(c.commit(3).unwrap_err().code(), "storage_unavailable");
    c.commit(3).unwrap();
    assert_eq!(c.cursor().unwrap(), 3);
    // At most once: durable, whatever the class.
    let mut w = w;
    let once = w.engine().consumer("t", "once", ONCE, ConsumerStart::Start, false).unwrap();
    once.store(5, Some(false), None).unwrap();
    once.commit(5).unwrap();
    drop(once);
    drop(c);
    w.power_cut();
    let of = |c: &ConsumerInfo| (c.name.clone(), c.cursor);
    let stored: Vec<_> = w.engine().consumers("t").unwrap().iter().map(of).collect();
    assert!(stored.contains(&("once".into(), 5)), "{stored:?}");
}
