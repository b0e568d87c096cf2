use std::sync::Arc;

use topics_storage::format::record;

use super::*;
use crate::consumer::stored::{Staged, stage_cursor};
use crate::consumer::{ConsumerStart, SeekTo};
use crate::ctx::Wait;
use crate::topic::cursors::Consumers;
use crate::topic::tests::*;
use crate::txn::{TxnCursor, TxnRequest, TxnRows, TxnWork};
use crate::types::api::NewRecord;
use crate::types::batch::ReadBatch;

fn handle(w: &World, auto_commit: bool) -> Consumer {
    w.engine().consumer("t", "c", None, ConsumerStart::Start, auto_commit).unwrap()
}

fn reader(w: &World) -> Consumer {
    handle(w, false).into_reader()
}

fn some(max_records: usize) -> ConsumerRead {
    ConsumerRead { max_records, ..ConsumerRead::default() }
}

fn seqs(b: &ReadBatch) -> Vec<u64> {
    b.iter().map(|r| r.seq).collect()
}

fn read(c: &Consumer, max_records: usize) -> Vec<u64> {
    seqs(&c.read(&some(max_records)).unwrap())
}

fn assert_fenced<T: std::fmt::Debug>(outcome: Result<T>) {
    assert_eq!(outcome.unwrap_err().code(), "consumer_fenced");
}

fn world() -> World {
    let w = World::new();
    w.put("t", &["1", "2", "3", "4", "5", "6"]);
    w
}

/// Appends a row to `out` and commits `seq` for a reader, in one transaction.
fn relay(w: &World, reader: &Consumer, seq: u64) -> Result<()> {
    let fence = reader.fence();
    let commits = [TxnCursor { topic: "t", consumer: "c", seq, fence }];
    let records = [NewRecord { data: b"1", ..NewRecord::default() }];
    let rows = [TxnRows { topic: "out", records: &records, node: b"" }];
    let work = TxnWork { commits: &commits, ..TxnWork::default() };
    w.engine().transact(&TxnRequest { rows: &rows, work, ..TxnRequest::default() }).map(drop)
}

#[test]
fn a_takeover_begins_at_the_stored_cursor_and_fences_the_reader_before() {
    let w = world();
    let (old, new) = (reader(&w), reader(&w));
    assert_eq!(read(&old, 2), [1, 2]);
    old.commit(2).unwrap();
    assert_eq!(read(&old, 2), [3, 4]);
    // The new handle was opened at 0; its position is the stored cursor when it takes over.
    assert_eq!(read(&new, 2), [3, 4]);
    assert_fenced(old.read(&some(2)));
    assert_fenced(old.read(&ConsumerRead { checkpoint: false, ..some(2) }));
    assert_fenced(old.commit(4));
    assert_fenced(old.seek(SeekTo::End));
    assert_eq!(new.cursor().unwrap(), 2, "nothing of it had an effect");
    assert_eq!(read(&new, 2), [5, 6]);
    new.commit(6).unwrap();
    // A new handle takes it back.
    let back = reader(&w);
    back.seek(SeekTo::Seq(4)).unwrap();
    assert_eq!(read(&back, 9), [5, 6]);
    assert_fenced(new.read(&some(1)));
}

#[test]
fn the_error_says_when_and_is_not_retryable() {
    let w = world();
    let (old, new) = (reader(&w), reader(&w));
    read(&old, 1);
    w.clock.advance_ms(70);
    read(&new, 1);
    let at = w.clock_wall();
    let e = old.commit(1).unwrap_err();
    assert!(matches!(e, Error::ConsumerFenced { taken_at, .. } if taken_at == at), "{e}");
    assert!(!e.retryable() && e.to_string().contains("open a new handle"), "{e}");
}

#[test]
fn looks_take_nothing_over() {
    let w = world();
    let (before, old) = (reader(&w), reader(&w));
    assert_eq!(read(&old, 2), [1, 2]);
    let other = reader(&w);
    let peek = ConsumerRead { checkpoint: false, ..some(1) };
    assert_eq!(seqs(&other.read(&peek).unwrap()), [1]);
    old.commit(2).unwrap();
    assert_eq!(seqs(&other.read(&peek).unwrap()), [3], "where a read would begin");
    assert_eq!(seqs(&before.read(&peek).unwrap()), [3]);
    w.engine().consumers("t").unwrap();
    assert_eq!(other.seek(SeekTo::Seq(1)).unwrap(), 1);
    other.commit(3).unwrap();
    drop(other);
    assert_eq!(read(&old, 2), [3, 4], "it is still the reader, where it was");
    old.commit(4).unwrap();
}

#[test]
fn a_commit_without_a_read_is_refused_after_a_takeover_only() {
    let w = world();
    let first = reader(&w);
    read(&first, 1);
    let idle = reader(&w);
    idle.commit(1).unwrap();
    read(&reader(&w), 1);
    assert_fenced(idle.commit(2));
    assert_fenced(relay(&w, &idle, 2));
    assert_eq!(idle.cursor().unwrap(), 1);
    // Its first read takes the consumer over.
    assert_eq!(read(&idle, 1), [2]);
    idle.commit(2).unwrap();
}

#[test]
fn automatic_commits_and_the_end_of_a_fenced_handle_store_nothing() {
    let mut w = world();
    let old = handle(&w, true).into_reader();
    assert_eq!(read(&old, 2), [1, 2]);
    assert_eq!(read(&old, 2), [3, 4]);
    let new = reader(&w);
    assert_eq!(read(&new, 1), [3], "behind what its second read stored");
    assert_fenced(old.read(&some(2)));
    drop(old);
    w.engine().sync().unwrap();
    assert_eq!(new.cursor().unwrap(), 2);
    drop(new);
    // The position of a reader that was not fenced is stored.
    let last = handle(&w, true).into_reader();
    assert_eq!((read(&last, 1), read(&last, 1)), (vec![3], vec![4]));
    drop(last);
    w.reopen();
    assert_eq!(read(&reader(&w), 1), [4]);
}

#[test]
fn a_kept_batch_of_a_fenced_reader_is_not_returned() {
    let w = world();
    let old = reader(&w);
    let batch = old.read(&some(2)).unwrap();
    old.release(batch);
    assert_eq!(read(&reader(&w), 2), [1, 2]);
    assert_fenced(old.read(&some(2)));
}

#[test]
fn a_fenced_transaction_has_no_effect() {
    let w = world();
    let (old, new) = (reader(&w), reader(&w));
    read(&old, 9);
    assert_eq!(read(&new, 9), [1, 2, 3, 4, 5, 6]);
    assert_fenced(relay(&w, &old, 6));
    assert!(w.engine().find("out").is_err(), "it creates no topic");
    relay(&w, &new, 6).unwrap();
    assert_fenced(relay(&w, &old, 2));
    assert_eq!((new.cursor().unwrap(), w.engine().find("out").unwrap().gate.head()), (6, 1));
}

#[test]
fn a_takeover_begins_behind_commits_that_are_pending() {
    let w = world();
    let (old, new) = (reader(&w), reader(&w));
    read(&old, 4);
    let commit = |_: &mut Consumers| {
        let (name, mode) = ("c".to_owned(), ConsumerMode::AtLeastOnce as u8);
        Ok(Some(record::Consumer { name, mode, cursor: Some(4) }))
    };
    let staged = stage_cursor(&old.ctx, &old.topic, "c", Wait::No, commit).unwrap();
    assert!(matches!(staged, Staged::Frame(..)));
    assert_eq!(old.cursor().unwrap(), 0);
    assert_eq!(read(&new, 9), [5, 6]);
}

#[test]
fn a_reader_that_keeps_its_position_reads_a_lost_answer_again() {
    let w = world();
    let (old, new) = (reader(&w), reader(&w));
    let after = |after, n| ConsumerRead { after: Some(after), ..some(n) };
    read(&old, 2);
    old.commit(2).unwrap();
    // The handle was opened at 0; what is stored since is not read again.
    for _ in 0..2 {
        assert_eq!(seqs(&new.read(&after(0, 2)).unwrap()), [3, 4]);
    }
    for _ in 0..2 {
        let batch = new.read(&after(4, 1)).unwrap();
        assert_eq!(seqs(&batch), [5]);
        new.release(batch);
    }
    new.seek(SeekTo::Start).unwrap();
    assert_eq!(seqs(&new.read(&after(0, 1)).unwrap()), [1]);
}

#[test]
fn handles_that_name_no_reader_share_the_consumer() {
    let w = world();
    let (a, b) = (handle(&w, false), handle(&w, false));
    assert_eq!((read(&a, 2), read(&b, 3)), (vec![1, 2], vec![1, 2, 3]));
    let named = reader(&w);
    assert_eq!(read(&named, 1), [1]);
    assert_eq!((read(&a, 2), read(&b, 2)), (vec![3, 4], vec![4, 5]));
    b.commit(3).unwrap();
    a.commit(4).unwrap();
    relay(&w, &a, 5).unwrap();
    assert_eq!(read(&named, 1), [2], "they take nothing over");
    let mode = Some(ConsumerMode::AtMostOnce);
    let open = || w.engine().consumer("t", "once", mode, ConsumerStart::Start, false).unwrap();
    let (a, b) = (open().into_reader(), open().into_reader());
    assert_eq!((read(&a, 1), read(&b, 1), read(&a, 1)), (vec![1], vec![2], vec![3]));
    assert_eq!(a.fence(), None);
}

#[test]
fn who_reads_is_forgotten_at_a_restart_and_with_the_consumer() {
    let mut w = world();
    let (old, new) = (reader(&w), reader(&w));
    read(&old, 4);
    read(&new, 2);
    w.engine().delete_consumer("t", "c").unwrap();
    drop(handle(&w, false));
    assert_eq!(read(&old, 2), [1, 2], "the new consumer has no reader, and has read nothing");
    assert_fenced(new.read(&some(1)));
    drop((old, new));
    w.reopen();
    let (idle, first) = (reader(&w), reader(&w));
    assert_eq!(read(&first, 1), [1]);
    assert_eq!(read(&idle, 1), [1]);
    assert_fenced(first.commit(1));
}

#[test]
fn threads_of_one_reader_are_one_reader() {
    let options = crate::types::options::Options { background: true, ..small() };
    let w = World::with(options);
    w.put("t", &["1"; 100]);
    let one = Arc::new(reader(&w));
    let threads: Vec<_> = (0..4)
        .map(|_| {
            let one = one.clone();
            std::thread::spawn(move || read(&one, 25))
        })
        .collect();
    let mut all: Vec<u64> = threads.into_iter().flat_map(|t| t.join().unwrap()).collect();
    all.sort_unstable();
    assert_eq!(all, (1..=100).collect::<Vec<_>>());
    drop(one);
    w.engine().close().unwrap();
}
