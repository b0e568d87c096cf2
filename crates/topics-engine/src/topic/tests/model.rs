//! Random operations against a model of what the pages promise, reopening included.

use topics_model::topic::{Matching, Read, Record, Refused, Topic as Model};

use super::*;
use crate::types::api::{GapReason, NodeFilter};
use crate::types::config::Discard;

fn of_engine(matching: &Matching) -> Option<TopicMatch> {
    match matching {
        Matching::All => None,
        Matching::Tag(tag) => eq(tag),
        Matching::Prefix(prefix) => glob(prefix),
    }
}

struct Lcg(u64);

impl Lcg {
    fn below(&mut self, n: u64) -> u64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % n
    }
}

struct Run {
    w: World,
    m: Model,
    rng: Lcg,
    class: Durability,
    log: Vec<String>,
}

const TAGS: [&str; 5] = ["", "a", "ab", "abc", "b"];
const NODES: [&str; 3] = ["", "n1", "n2"];

impl Run {
    fn new(seed: u64, class: Durability) -> Self {
        let w = World::new();
        w.create("t", super::class(class));
        Self { w, m: Model::default(), rng: Lcg(seed), class, log: Vec::new() }
    }

    fn now(&self) -> u64 {
        use topics_env::Clock;
        self.w.clock.wall_ms()
    }

    fn append(&mut self) {
        let n = 1 + self.rng.below(4);
        let now = self.now();
        let mut new = Vec::new();
        for _ in 0..n {
            let size = self.rng.below(12) as usize;
            let tag = TAGS[self.rng.below(5) as usize];
            let node = NODES[self.rng.below(3) as usize];
            let ttl = if self.rng.below(8) == 0 { 1 + self.rng.below(20_000) } else { 0 };
            new.push((vec![b'x'; size], tag, node, ttl));
        }
        let records: Vec<NewRecord<'_>> = new
            .iter()
            .map(|(data, tag, node, ttl)| NewRecord {
                data,
                tag: tag.as_bytes(),
                node: node.as_bytes(),
                ttl_ms: *ttl,
                ..NewRecord::default()
            })
            .collect();
        let got = self.w.engine().append("t", &Append { records: &records, ..Append::default() });
        let size = |r: &(Vec<u8>, &str, &str, u64)| {
            (r.0.len() + r.1.len() + r.2.len() + if r.3 > 0 { 10 } else { 0 }) as u64
        };
        let records = new.iter().map(|r| Record {
            tag: r.1.into(),
            node: r.2.into(),
            bytes: size(r),
            expires: (r.3 > 0).then(|| now + r.3),
            ..Record::default()
        });
        let got = got.map(|a| (a.first_seq, a.last_seq)).map_err(|e| e.code());
        let want = self.m.append(records.collect(), now).map_err(|refused| match refused {
            Refused::TooLarge => "record_too_large",
            Refused::Full => "topic_full",
        });
        assert_eq!(got, want, "I2");
    }

    fn delete(&mut self) {
        let before = (self.rng.below(2) == 0).then(|| self.rng.below(self.m.head + 3));
        let pattern = TAGS[1 + self.rng.below(4) as usize];
        let matching = match self.rng.below(3) {
            0 => Matching::Tag(pattern.into()),
            1 => Matching::Prefix(pattern.into()),
            _ => Matching::All,
        };
        if before.is_none() && matching == Matching::All {
            return;
        }
        let req = DeleteRequest { before_seq: before, matching: of_engine(&matching) };
        self.log.push(format!("{req:?}"));
        let got = self.w.engine().delete("t", &req).unwrap();
        let n = self.m.delete(before, &matching);
        assert_eq!(got.deleted, n, "records that a delete removed");
    }

    fn config(&mut self) {
        let mut p = ConfigPatch::default();
        let now = self.now();
        self.m.expire(now);
        match self.rng.below(4) {
            0 => {
                self.m.cap_records = self.rng.below(3) * 4;
                p.cap_records = Some(self.m.cap_records);
            }
            1 => {
                self.m.cap_bytes = self.rng.below(3) * 40;
                p.cap_bytes = Some(self.m.cap_bytes);
            }
            2 => {
                self.m.ttl = self.rng.below(3) * 10_000;
                p.ttl_ms = Some(self.m.ttl);
            }
            _ => {
                self.m.rejects = self.rng.below(2) == 0;
                p.discard = Some(if self.m.rejects { Discard::Reject } else { Discard::Old });
            }
        }
        self.log.push(format!("{p:?}"));
        self.w.engine().create_topic("t", &p).unwrap();
        self.m.fit();
        self.m.expire(now);
    }

    fn sweep(&mut self) {
        self.w.clock.advance_ms(6_000);
        self.w.engine().tick().unwrap();
        self.m.sweep(self.now());
    }

    /// Checks after a restart that every missing record is in a gap.
    fn restarted(&mut self) {
        let s = self.w.state("t");
        let now = self.now();
        self.m.expire(now);
        if self.class >= Durability::Disk {
            assert_eq!(s.head_seq, self.m.head, "I1");
            return;
        }
        // These classes may lose their tail, and seqs up to the reservation.
        let kept = s.gaps.last().filter(|g| g.to == s.head_seq).map_or(s.head_seq, |g| g.from - 1);
        if self.class == Durability::Ephemeral {
            assert!(kept < self.m.earliest() || self.m.count() == 0, "nothing survives");
        }
        // So may what evicted from it: a gap announces the lost records instead.
        assert!(s.evict_floor <= self.m.evict_floor);
        let reported =
            |seq| seq < s.evict_floor || s.gaps.iter().any(|g| (g.from..=g.to).contains(&seq));
        for (seq, r) in self.m.records.range_mut(kept + 1..) {
            assert!(*seq <= s.head_seq, "I2");
            assert!(!r.live || reported(*seq), "I4: the loss of {seq} must be announced");
            (r.live, r.evicted) = (false, false);
        }
        // The eviction went with the write that made it: what it took is there again.
        for (seq, r) in self.m.records.range_mut(s.evict_floor..=kept.max(s.evict_floor)) {
            r.live |= r.evicted && *seq <= kept && self.class == Durability::Memory;
            r.evicted = false;
        }
        self.m.evict_floor = s.evict_floor;
        self.m.gaps = s.gaps.iter().map(|g| (g.from, g.to)).collect();
        self.m.head = s.head_seq;
    }

    fn check_state(&mut self) {
        let now = self.now();
        self.m.expire(now);
        let s = self.w.state("t");
        let m = &self.m;
        assert_eq!(
            (s.head_seq, s.earliest_seq, s.evict_floor, s.count, s.bytes),
            (m.head, m.earliest(), m.evict_floor, m.count(), m.bytes()),
            "head, earliest, evict floor, count, bytes"
        );
        let gaps: Vec<_> = s.gaps.iter().map(|g| (g.from, g.to)).collect();
        assert_eq!(gaps, m.gaps);
        assert!(s.evict_floor <= s.earliest_seq && s.earliest_seq <= s.head_seq + 1, "I11");
    }

    fn check_read(&mut self) {
        let now = self.now();
        self.m.expire(now);
        let cursor = self.rng.below(self.m.head + 3);
        let limit = 1 + self.rng.below(12) as usize;
        let node = NODES[self.rng.below(3) as usize];
        let tag = TAGS[self.rng.below(5) as usize];
        let upto = (self.rng.below(4) == 0).then(|| self.rng.below(self.m.head + 2));
        let matching = match tag {
            "" => Matching::All,
            "ab" => Matching::Prefix(tag.into()),
            _ => Matching::Tag(tag.into()),
        };
        let nodes = (!node.is_empty()).then(|| node.as_bytes().to_vec());
        let req = ReadRequest {
            from: ReadFrom::After(cursor),
            upto,
            limit,
            skip_nodes: NodeFilter(nodes.into_iter().collect()),
            matching: of_engine(&matching),
            ..ReadRequest::default()
        };
        let got = self.w.engine().read("t", &req).unwrap();
        let ask = Read { after: cursor, upto, limit, skip_node: node.into(), matching };
        let want = self.m.read(&ask, now);
        let reported = got.tombstone.map(|t| (t.gap_from, t.gap_to, t.reason.as_str()));
        // The reason is informative: what evicted before a loss may be forgotten with it.
        let range = |t: (u64, u64, &'static str)| match self.class >= Durability::Disk {
            true => t,
            false => (t.0, t.1, ""),
        };
        assert_eq!(reported.map(range), want.tombstone.map(range), "tombstone of {req:?}");
        let found: Vec<u64> = got.iter().map(|r| r.seq).collect();
        assert_eq!(found, want.seqs, "records of {req:?}");
        assert!(want.next.contains(&got.next_from_seq), "{} of {want:?}", got.next_from_seq);
        for r in got.iter() {
            let want = &self.m.records[&r.seq];
            assert_eq!((r.ts, r.tag, r.node), (want.ts, want.tag.as_bytes(), want.node.as_bytes()));
        }
        assert_eq!(got.caught_up, got.next_from_seq >= self.m.head);
    }

    fn step(&mut self) {
        let op = self.rng.below(100);
        let reads = self.w.engine().metrics().apply_reads;
        self.log.push(format!("op {op}"));
        match op {
            0..40 => self.append(),
            40..55 => self.delete(),
            55..62 => self.config(),
            62..70 => self.w.clock.advance_ms(self.rng.below(4_000)),
            70..76 => self.sweep(),
            76..86 => self.w.checkpoint(),
            86..92 => {
                self.w.kill();
                self.restarted();
            }
            92..96 => {
                self.w.reopen();
                self.restarted();
            }
            _ => {}
        }
        if !(86..96).contains(&op) {
            let now = self.w.engine().metrics().apply_reads;
            assert_eq!(now, reads, "apply read a file while it held the state");
        }
        self.check_state();
        self.check_read();
    }

    fn run(mut self, seed: u64, steps: usize) {
        for i in 0..steps {
            let ok = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| self.step()));
            if let Err(e) = ok {
                eprintln!("seed {seed}, class {:?}, step {i}: {:#?}", self.class, self.log);
                eprintln!("{:#?}", self.m);
                std::panic::resume_unwind(e);
            }
        }
    }
}

fn runs(class: Durability, seeds: u64) {
    for seed in 0..seeds {
        Run::new(seed, class).run(seed, 60);
    }
}

#[test]
fn disk() {
    runs(Durability::Disk, 300);
}

#[test]
fn fsync() {
    runs(Durability::Fsync, 300);
}

#[test]
fn memory() {
    runs(Durability::Memory, 300);
}

#[test]
fn ephemeral() {
    runs(Durability::Ephemeral, 300);
}

#[test]
fn reasons_have_words() {
    assert_eq!(GapReason::from_code(GapReason::Corrupt.code()), Some(GapReason::Corrupt));
    assert_eq!(GapReason::from_code(8), None);
}
