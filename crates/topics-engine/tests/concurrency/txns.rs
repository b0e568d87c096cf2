//! Transactions, the topics that they hold, and the staging that they share with everybody.

use topics_engine::{ConsumerStart, DeleteRequest, Durability, TxnCursor, TxnRequest, TxnWork};

use crate::world::{World, choose, flip, join, spawn};

/// One transaction of one writer: it sets a cursor.
fn advance(w: &World, seq: u64) {
    let commits = [TxnCursor { topic: "t", consumer: "a", seq, fence: None }];
    let work = TxnWork { commits: &commits, ..TxnWork::default() };
    w.engine.transact(&TxnRequest { writer: Some("w"), work, ..TxnRequest::default() }).unwrap();
}

/// Transactions, stored cursors and deletes of one topic, with staging for one of them at a time:
/// nobody keeps a permit from a transaction that he himself waits for.
pub fn staged() {
    let w = World::crowded(flip());
    w.create("t", if flip() { Durability::Disk } else { Durability::Fsync });
    w.put("t", "1", 4);
    for name in ["a", "b"] {
        w.engine.consumer("t", name, None, ConsumerStart::Start, false).unwrap();
    }
    let transactions = spawn(&w, |w| [1, 2].into_iter().for_each(|seq| advance(w, seq)));
    let cursors = spawn(&w, |w| {
        let b = w.engine.consumer("t", "b", None, ConsumerStart::Start, false).unwrap();
        b.commit(1 + choose(2)).unwrap();
        b.commit(4).unwrap();
    });
    let writes = spawn(&w, |w| match choose(3) {
        0 => {
            let req = DeleteRequest { before_seq: Some(2), ..DeleteRequest::default() };
            w.engine.delete("t", &req).unwrap();
        }
        1 => w.put("t", "2", 1),
        _ => advance(w, 2),
    });
    join([transactions, cursors, writes]);
    let mut at = w.engine.consumers("t").unwrap();
    at.sort_by(|x, y| x.name.cmp(&y.name));
    assert_eq!(at.iter().map(|c| c.cursor).collect::<Vec<_>>(), [2, 4]);
    w.engine.close().unwrap();
}
