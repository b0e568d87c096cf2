//! A topic that is closed because memory may not be what its log says refuses every verb that
//! shows something of it or decides on it. A waiter for its head is woken, and its read is refused.

use std::sync::Mutex;
use std::time::Duration;

use super::*;
use crate::txn::{TxnAck, TxnCursor, TxnRequest, TxnRows, TxnWork};
use crate::types::config::TopicType;
use crate::types::consumer::{ConsumerRead, ConsumerStart, SeekTo};
use crate::types::error::Error;
use crate::types::queue::{Claim, LeasedJobs, Redrive};

/// What a verb says.
type Said = std::result::Result<(), Error>;

fn said<T>(outcome: Result<T>) -> Said {
    outcome.map(drop)
}

/// What an asynchronous verb says, when it has been driven.
fn answer<T: Send + 'static>(
    w: &World,
    call: impl FnOnce(crate::types::api::Completion<T>),
) -> Said {
    let slot: Arc<Mutex<Option<Said>>> = Arc::default();
    let done = slot.clone();
    call(Box::new(move |outcome: Result<T>| *done.lock().unwrap() = Some(said(outcome))));
    w.engine().drive();
    slot.lock().unwrap().take().expect("it is answered")
}

#[test]
fn every_verb_of_a_closed_topic_is_refused() {
    let mut w = World::new();
    w.options.wal_shards = 1;
    for (name, kind) in [("t", TopicType::Log), ("q", TopicType::Queue), ("other", TopicType::Log)]
    {
        w.create(name, ConfigPatch { kind: Some(kind), ..ConfigPatch::default() });
        w.tagged(name, &["a", "b", "c", "d"]);
    }
    let e = w.engine().clone();
    let claimed = e.claim("q", &Claim { node: b"n", max: 1, ..Claim::default() }).unwrap();
    let seqs = [claimed.get(0).unwrap().0.seq];
    let held = LeasedJobs { node: b"n", seqs: &seqs, lease_ids: None };
    let consumer = |topic| e.consumer(topic, "c", None, ConsumerStart::Start, false).unwrap();
    let (c, elsewhere) = (Arc::new(consumer("t")), consumer("other"));
    c.read(&ConsumerRead { max_records: 1, ..ConsumerRead::default() }).unwrap();
    let work = e.work("q", b"w", 1, None).unwrap();
    for name in ["t", "q"] {
        e.open_engine().catalog().table.loaded.named(name).unwrap().close_broken(&"a test");
    }
    let records = [rec("x")];
    let append = Append { records: &records, ..Append::default() };
    let delete = |m| DeleteRequest { before_seq: Some(2), matching: m };
    let transact = |topic, work| {
        let rows = [TxnRows { topic, records: &records, node: b"" }];
        said(e.transact(&TxnRequest { rows: &rows, work, ..TxnRequest::default() }))
    };
    let cursor = [TxnCursor { topic: "t", consumer: "c", seq: 1, fence: None }];
    let ack = [TxnAck { queue: "q", jobs: held }];
    let read = ConsumerRead::default();
    let claim = Claim { node: b"n", ..Claim::default() };
    let said: Vec<(&str, Said)> = vec![
        ("append", said(e.append("t", &append))),
        ("append to a queue", said(e.append("q", &append))),
        ("append_async", answer(&w, |done| _ = e.append_async("t", &append, done))),
        (
            "update",
            said(e.create_topic(
                "t",
                &ConfigPatch { cap_records: Some(9), ..ConfigPatch::default() },
            )),
        ),
        ("delete", said(e.delete("t", &delete(None)))),
        ("delete by tag", said(e.delete("t", &delete(eq("a"))))),
        ("delete_topic", said(e.delete_topic("t", false))),
        ("delete_topic if empty", said(e.delete_topic("t", true))),
        ("state", said(e.state("t", false))),
        ("read", said(e.read("t", &after(0)))),
        ("seek", said(e.seek("t", 0))),
        ("synced_seq", said(e.synced_seq("t"))),
        ("segments", said(e.segments("t"))),
        ("claim", said(e.claim("q", &claim))),
        ("claim_async", answer(&w, |done| _ = e.claim_async("q", &claim, done))),
        ("ack", said(e.ack("q", &held))),
        ("ack_async", answer(&w, |done| assert!(e.ack_async("q", &held, done).is_ok()))),
        ("nack", said(e.nack("q", &held, Some(1)))),
        ("extend", said(e.extend("q", &held, Some(1_000)))),
        ("peek", said(e.peek("q", None, 1))),
        ("redrive", said(e.redrive("q", &Redrive::default()))),
        ("queue_state", said(e.queue_state("q"))),
        ("work", said(e.work("q", b"w", 1, None))),
        ("next of work", said(work.next(Duration::ZERO))),
        ("consumer", said(e.consumer("t", "new", None, ConsumerStart::Start, false))),
        ("read of a consumer", said(c.read(&read))),
        ("read_async of a consumer", answer(&w, |done| _ = c.read_async(read.clone(), done))),
        ("commit of a consumer", said(c.commit(1))),
        ("seek of a consumer", said(c.seek(SeekTo::Start))),
        ("cursor of a consumer", said(c.cursor())),
        ("consumers", said(e.consumers("t"))),
        ("consumer_info", said(e.consumer_info("t", "c"))),
        ("delete_consumer", said(e.delete_consumer("t", "c"))),
        ("rows of a transaction", transact("t", TxnWork::default())),
        (
            "a head in a transaction",
            transact("other", TxnWork { expect_heads: &[("t", 4)], ..TxnWork::default() }),
        ),
        (
            "a cursor in a transaction",
            transact("other", TxnWork { commits: &cursor, ..TxnWork::default() }),
        ),
        (
            "an ack in a transaction",
            transact("other", TxnWork { acks: &ack, ..TxnWork::default() }),
        ),
    ];
    let refused = |s: &Said| matches!(s, Err(Error::StorageUnavailable { reason: "io", .. }));
    let other: Vec<_> = said.iter().filter(|(_, s)| !refused(s)).collect();
    assert!(other.is_empty(), "{other:#?}");
    // Nothing came of it, and the others go on.
    assert_eq!((w.state("other").head_seq, elsewhere.cursor().unwrap()), (4, 0));
    drop((c, work));
    w.kill();
    assert_eq!((w.seqs("t"), w.seqs("q")), (vec![1, 2, 3, 4], vec![1, 2, 3, 4]));
}
