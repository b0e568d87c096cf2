//! Dead letters keep what their jobs were; what queues count of them survives.

use std::sync::Arc;

use topics_env::{Hook, Site, Verdict};
use topics_sim::SimClock;

use super::dead_letter::job_meta::{JobOptions, Reason, meta_of, why};
use super::tests::{create_full, dead_letters, durable, queue, seqs};
use crate::topic::state::queue::{JobHistory, RemovalReason};
use crate::topic::tests::*;
use crate::types::api::{Append, Durability, NewRecord};
use crate::types::batch::RecordView;
use crate::types::config::ConfigPatch;
use crate::types::meta;
use crate::types::options::Options;
use crate::types::queue::{JobState, LeasedJobs, Redrive};

fn post(w: &World, records: &[NewRecord<'_>]) {
    w.engine().append("q", &Append { records, ..Append::default() }).unwrap();
}

/// Gives every job that can be claimed as often as it may be, and once more.
fn use_up(w: &World, deliveries: usize) {
    for _ in 0..deliveries {
        loop {
            let got = seqs(&w.claim("a", 100));
            if got.is_empty() {
                break;
            }
            w.nack("a", &got, Some(10));
        }
        w.clock.advance_ms(10);
    }
    assert!(w.claim("a", 100).is_empty());
}

/// Time for everything that is swept.
fn pass(w: &World) {
    w.clock.advance_ms(10_001);
    w.engine().tick().unwrap();
}

fn counted(w: &World) -> (u64, u64) {
    let s = w.engine().queue_state("q").unwrap();
    (s.dead_lettered, s.expired)
}

type End = fn(&mut World);

const ENDS: [End; 5] = [
    |_| (),
    World::kill,
    World::reopen,
    |w| {
        w.checkpoint();
        w.kill();
    },
    World::power_cut,
];

#[test]
fn a_redrive_gives_back_the_options() {
    for end in ENDS {
        let mut w = World::new();
        let durability = Some(Durability::Fsync);
        let config = ConfigPatch { durability, max_deliveries: Some(1), ..dead_letters() };
        w.create("q", config);
        let now = w.clock_wall();
        let odd = "g\"\\\n\u{1}ü🦀".as_bytes();
        post(
            &w,
            &[
                NewRecord { lane: Some(9), ..rec("1") },
                NewRecord { lane: Some(0), group: b"g", meta: br#"{"a":"b"}"#, ..rec("2") },
                NewRecord { group: odd, ttl_ms: 60_000, ..rec("3") },
                NewRecord { group: &[0xff, 0, b'"'], ..rec("4") },
                // Expires before its time.
                NewRecord { deliver_at: now + 90_000, ttl_ms: 500, lane: Some(2), ..rec("5") },
                NewRecord { group: &[b'"'; 128], ..rec("6") },
                rec("7"),
            ],
        );
        use_up(&w, 1);
        w.clock.advance_ms(1_000);
        w.engine().tick().unwrap();
        assert_eq!((w.seqs("q").len(), w.seqs("dead").len()), (0, 7));
        assert_eq!(counted(&w), (7, 1));
        end(&mut w);
        assert_eq!((w.seqs("q").len(), w.seqs("dead").len()), (0, 7));
        assert_eq!(counted(&w), (7, 1), "counts survive");
        w.clock.advance_ms(1);
        assert_eq!(w.engine().redrive("dead", &Redrive::default()).unwrap().moved, 7);
        end(&mut w);
        assert_eq!(counted(&w), (7, 1), "what comes back is not uncounted, nor counted again");
        let back = w.read("q", 0);
        let (wall, mut found) = (w.clock_wall(), Vec::new());
        for (slot, r) in back.iter().enumerate() {
            let attrs = topics_storage::format::attrs::Attrs::decode(back.attrs(slot)).unwrap();
            assert!(!r.meta.windows(12).any(|w| w == b"$dead_letter"), "{:?}", r.meta);
            let group = attrs.group.unwrap_or_default().to_vec();
            found.push((r.data[0], attrs.lane, group, attrs.visible_at, attrs.expires_at));
        }
        found.sort();
        assert!(wall < now + 60_000);
        let (due, expires) = (Some(now + 90_000), Some(now + 60_000));
        let want = [
            (b'1', Some(9), vec![], None, None),
            (b'2', Some(0), b"g".to_vec(), None, None),
            (b'3', None, odd.to_vec(), None, expires),
            (b'4', None, vec![0xff, 0, b'"'], None, None),
            (b'5', Some(2), vec![], due, None),
            (b'6', None, vec![b'"'; 128], None, None),
            (b'7', None, vec![], None, None),
        ];
        assert_eq!(found, want);
        let peeked = w.engine().peek("q", Some(JobState::Ready), 9).unwrap();
        let ready: Vec<_> = peeked.iter().map(|(j, r)| (j.lane, r.data[0])).collect();
        assert_eq!(ready.first(), Some(&(0, b'2')));
        assert_eq!(ready.last(), Some(&(9, b'1')));
        assert_eq!(ready.len(), 6, "one is not due yet");
    }
}

#[test]
fn the_letter_says_what_the_job_had() {
    let w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..dead_letters() });
    let now = w.clock_wall();
    post(&w, &[NewRecord { lane: Some(3), group: "a\"b".as_bytes(), ttl_ms: 9_000, ..rec("1") }]);
    use_up(&w, 1);
    let dead = w.read("dead", 0);
    let want = format!(
        concat!(
            r#"{{"$dead_letter_from":"q","$dead_letter_deliveries":"1","$dead_letter_src_seq":"1","#,
            r#""$dead_letter_reason":"max_deliveries","$dead_letter_lane":"3","#,
            r#""$dead_letter_group":"a\"b","$dead_letter_expires_at":"{}"}}"#
        ),
        now + 9_000
    );
    assert_eq!(std::str::from_utf8(dead.get(0).unwrap().meta).unwrap(), want);
    assert_eq!(dead.attrs(0), b"", "a dead letter does not expire");
}

/// A claim, not the sweep, is what finds that a job has expired.
#[test]
fn a_job_that_a_claim_finds_expired_keeps_its_history() {
    for leases_durable in [true, false] {
        let w = World::new();
        let config = ConfigPatch { leases_durable: Some(leases_durable), ..dead_letters() };
        w.create("q", config);
        let at = w.clock_wall() + 60_000;
        let soon = |data| NewRecord { ttl_ms: 9_000, ..rec(data) };
        post(&w, &[NewRecord { deliver_at: at, ..soon("1") }, soon("2"), rec("3"), soon("4")]);
        w.engine().promote_jobs("q", &[1]).unwrap();
        assert_eq!(seqs(&w.claim("a", 2)), [1, 2]);
        for (seq, id) in [(1, "first"), (2, "second")] {
            let held = LeasedJobs { node: b"a", seqs: &[seq], lease_ids: None };
            w.engine().nack_with_error("q", &held, Some(50), id).unwrap();
        }
        w.clock.advance_ms(9_001);
        assert_eq!(seqs(&w.claim("b", 9)), [3], "expired jobs hide no other");
        let dead = w.read("dead", 0);
        let value = |i: usize, key| meta::get(dead.get(i).unwrap().meta, key);
        let of = |key| [value(0, key), value(1, key), value(2, key)];
        let some = |text: &str| Some(text.to_owned());
        assert_eq!(of("$dead_letter_src_seq"), ["1", "2", "4"].map(some));
        assert_eq!(of("$dead_letter_error"), [some("first"), some("second"), None]);
        assert_eq!(of("$dead_letter_deliveries"), ["1", "1", "0"].map(some));
        assert_eq!(of("$dead_letter_deliver_at"), [None, None, None], "it was promoted");
        assert_eq!((w.seqs("q"), counted(&w)), (vec![3], (3, 3)));
    }
}

#[test]
fn no_limit_keeps_a_job_from_being_a_dead_letter() {
    let options = Options {
        max_meta_bytes: 20,
        max_record_bytes: 24,
        max_batch_bytes: 26,
        max_tag_bytes: 1,
        max_node_bytes: 1,
        ..small()
    };
    let w = World::with(options);
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..dead_letters() });
    let meta = br#"{"aaaaaaa":"bbbbbb"}"#;
    assert_eq!(meta.len(), 20);
    post(&w, &[NewRecord { meta, tag: b"t", node: b"n", group: &[b'\\'; 128], ..rec("1234") }]);
    use_up(&w, 1);
    assert_eq!((w.seqs("q").len(), w.seqs("dead").len()), (0, 1));
    assert!(w.read("dead", 0).get(0).unwrap().meta.len() > 256);
    assert_eq!(w.engine().redrive("dead", &Redrive::default()).unwrap().moved, 1);
    let back = w.read("q", 0);
    assert_eq!(back.get(0).unwrap().meta, meta);
    let options = |attrs| JobOptions::of(attrs, &JobHistory::default());
    assert_eq!(options(back.attrs(0)), options(w.read("q", 0).attrs(0)));
}

#[test]
fn elsewhere_a_log_takes_what_logs_have() {
    let w = World::new();
    w.create("q", ConfigPatch { max_deliveries: Some(1), ..dead_letters() });
    w.create("other", queue());
    w.put("log", &["0"]);
    post(&w, &[NewRecord { lane: Some(1), group: b"g", ttl_ms: 60_000, ..rec("1") }]);
    use_up(&w, 1);
    let to = |to: &str| Redrive { to: Some(to.into()), ..Redrive::default() };
    assert_eq!(w.engine().redrive("dead", &to("log")).unwrap().moved, 1);
    let log = w.read("log", 1);
    let of = |attrs: &[u8]| topics_storage::format::attrs::Attrs::decode(attrs).unwrap().lane;
    assert_eq!((log.len(), of(log.attrs(0))), (1, None));
    // Dead jobs of a queue take theirs along.
    w.create("q", ConfigPatch { dead_letter: Some(None), ..ConfigPatch::default() });
    post(&w, &[NewRecord { lane: Some(1), group: b"g", ..rec("2") }]);
    use_up(&w, 1);
    assert_eq!(w.engine().redrive("q", &to("other")).unwrap().moved, 1);
    assert_eq!(of(w.read("other", 0).attrs(0)), Some(1));
    assert_eq!(counted(&w), (1, 0), "a redrive makes no dead letters");
}

#[test]
fn what_no_job_can_have_is_no_option() {
    let r = RecordView { seq: 7, ts: 0, node: b"", tag: b"", meta: b"", data: b"", binary: false };
    let history = JobHistory { deliveries: 3, ..JobHistory::default() };
    let meta = meta_of(&r, b"", ("q", &history), Reason::Expired);
    assert_eq!(why(&meta, "q", 7), RemovalReason::EXPIRED_DEAD_LETTER);
    assert_eq!(why(&meta, "q", 8), RemovalReason::REQUESTED);
    assert_eq!(why(&meta, "p", 7), RemovalReason::REQUESTED);
    let forged = [
        &br#"{"$dead_letter_lane":"10","$dead_letter_group_hex":"0g"}"#[..],
        br#"{"$dead_letter_lane":"-1","$dead_letter_deliver_at":"soon"}"#,
        br#"{"$dead_letter_lane":"256","$dead_letter_group_hex":"0"}"#,
        br#"{"$dead_letter_group_hex":"+f","$dead_letter_expires_at":""}"#,
        b"{",
    ];
    for meta in forged {
        assert_eq!(JobOptions::of_dead_letter(meta), JobOptions::default(), "{meta:?}");
    }
    let long = format!(r#"{{"$dead_letter_group":"{}"}}"#, "g".repeat(129));
    assert_eq!(JobOptions::of_dead_letter(long.as_bytes()), JobOptions::default());
}

#[test]
fn counts_are_exact_after_every_end() {
    for end in ENDS {
        for letters in [false, true] {
            for of_topic in [false, true] {
                let mut w = World::new();
                let dead_letter = Some(letters.then(|| "dead".to_owned()));
                let ttl = if of_topic { 1_000 } else { 0 };
                w.create("q", ConfigPatch { ttl_ms: Some(ttl), dead_letter, ..durable() });
                let ttl_ms = if of_topic { 0 } else { 1_000 };
                let mut expired = 0;
                // What is replayed lies before and behind the snapshots that count it.
                for round in 0..4 {
                    post(&w, &[NewRecord { ttl_ms, ..rec("1") }, NewRecord { ttl_ms, ..rec("2") }]);
                    w.claim("a", 1);
                    if round % 2 == 0 {
                        w.checkpoint();
                    }
                    pass(&w);
                    assert_eq!(w.seqs("q"), [0_u64; 0]);
                    expired += 2;
                    let want = (if letters { expired } else { 0 }, expired);
                    assert_eq!(counted(&w), want);
                    for again in [false, true] {
                        end(&mut w);
                        // The floor of expiry is not synced: what is back expires once more.
                        pass(&w);
                        let got = counted(&w);
                        assert_eq!(got, want, "{round}: topic {of_topic}, again {again}");
                    }
                }
            }
        }
    }
}

#[test]
fn what_could_not_be_moved_is_not_counted() {
    let mut w = World::new();
    w.create("q", ConfigPatch { dead_letter: Some(Some("dead".into())), ..durable() });
    // The dead-letter topic takes nothing.
    create_full(&w, "dead");
    post(&w, &[NewRecord { ttl_ms: 100, ..rec("1") }]);
    for _ in 0..3 {
        w.clock.advance_ms(10_001);
        assert_eq!(w.engine().tick().unwrap_err().code(), "topic_full");
        assert_eq!(counted(&w), (0, 0));
    }
    w.delete("dead", Some(2), None);
    pass(&w);
    assert_eq!((counted(&w), w.seqs("dead").len()), ((1, 1), 1));
    w.kill();
    assert_eq!(counted(&w), (1, 1));
}

/// Syncs take their time.
#[derive(Debug)]
struct Slow(Arc<SimClock>);

impl Hook for Slow {
    fn visit(&self, site: Site) -> Verdict {
        if matches!(site, Site::Sync(_)) {
            self.0.advance_ms(200);
        }
        Verdict::Run
    }
}

#[test]
fn what_expires_while_others_become_dead_letters_is_one_too() {
    let mut w = World::new();
    let dead_letter = Some(Some("dead".into()));
    w.create("q", ConfigPatch { ttl_ms: Some(10_000), dead_letter, ..durable() });
    w.hook = Some(Arc::new(Slow(w.clock.clone())));
    w.reopen();
    let put = |n: usize| (0..n).for_each(|_| post(&w, &[rec("1")]));
    put(20);
    w.clock.advance_ms(8_500);
    for _ in 0..200 {
        w.engine().tick().unwrap();
        w.clock.advance_ms(50);
    }
    assert_eq!((w.seqs("q").len(), w.seqs("dead").len()), (0, 20));
    assert_eq!(counted(&w), (20, 20));
}

#[test]
fn a_config_that_comes_too_late_takes_no_dead_letters() {
    let w = World::new();
    let dead_letter = Some(Some("dead".into()));
    w.create("q", ConfigPatch { ttl_ms: Some(1_000), dead_letter, ..durable() });
    post(&w, &[rec("1"), rec("2")]);
    w.clock.advance_ms(1_001);
    w.create("q", ConfigPatch { dead_letter: Some(None), ..ConfigPatch::default() });
    assert_eq!((w.seqs("q").len(), w.seqs("dead").len(), counted(&w)), (0, 2, (2, 2)));
}
