//! A directory with the frames and sections of queues, routers, consumers and transactions, for
//! fixtures.

use topics_engine::{ConfigPatch, ConsumerMode, Durability, RouterRequest, TopicType};

use super::super::note::Unit;
use super::super::script::{Script, TxnOutcome};
use super::class;

/// Leases with and without an error, dead letters with one, promoted jobs, stages, epochs with and
/// without a query: half of them in a snapshot, half in the log behind it.
pub fn jobs(s: &mut Script) {
    let queue = ConfigPatch {
        kind: Some(TopicType::Queue),
        leases_durable: Some(true),
        max_deliveries: Some(2),
        dead_letter: Some(Some("dead".into())),
        lease_ms: Some(86_400_000),
        ..class(Durability::Fsync)
    };
    s.make("q", &queue);
    s.make("s", &class(Durability::Fsync));
    s.make("d", &class(Durability::Fsync));
    let ends = RouterRequest { source: "s".into(), dest: "d".into(), ..RouterRequest::default() };
    s.route("r", &ends);
    s.put("s", 2);
    s.consume("s", "c", ConsumerMode::AtLeastOnce, false);
    for (round, query) in (1..3u64).zip(["", "a query"]) {
        s.put("q", 4);
        // A lease, a lease that is extended, a delayed job with an error, a promoted one.
        let held = s.claim("a", 4, None);
        s.extend(&held[1..2], 90_000_000);
        s.nack(&held[2..3], 60_000);
        s.nack(&held[3..], 70_000);
        s.promote(1);
        // A dead letter with an error.
        s.put("q", 1);
        for _ in 0..2 {
            let failed = s.claim("b", 9, None);
            s.nack(&failed, 0);
        }
        s.work();
        s.put("s", 1);
        s.work();
        s.commit("c", round);
        s.stage("w", "done", 0, &[("s", 1), ("d", 1)]);
        let unit = Unit::of("w", round).by(query).stages(&[("done", 1)]);
        assert!(matches!(s.txn(unit, &[]), TxnOutcome::Done(_)));
        s.stage("w", ["waits", "later"][round as usize - 1], 0, &[("s", 2)]);
        if round == 1 {
            s.checkpoint();
        }
    }
    s.sync();
}
