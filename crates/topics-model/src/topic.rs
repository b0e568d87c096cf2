//! A topic that is a log: seqs, caps, TTL, deletes, losses. Times are wall milliseconds.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

/// A record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// Its payload, which tells it from others.
    pub name: String,
    pub tag: String,
    pub node: String,
    /// What it counts in a cap of bytes.
    pub bytes: u64,
    /// When it was written.
    pub wall: u64,
    /// Its commit time; 0: not observed yet.
    pub ts: u64,
    /// When it expires by itself.
    pub expires: Option<u64>,
    /// Whether it can be read.
    pub live: bool,
    /// Whether a cap or a TTL took it.
    pub evicted: bool,
}

/// Which tags a request is about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Matching {
    All,
    Tag(String),
    Prefix(String),
}

impl Matching {
    #[must_use]
    pub fn hits(&self, tag: &str) -> bool {
        match self {
            Self::All => true,
            Self::Tag(want) => !tag.is_empty() && tag == want,
            Self::Prefix(want) => !tag.is_empty() && tag.starts_with(want),
        }
    }
}

/// Why a write is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// It is larger than the cap.
    TooLarge,
    /// There is no room.
    Full,
}

/// What a read asks for.
#[derive(Clone, Debug)]
pub struct Read {
    pub after: u64,
    /// The last seq.
    pub upto: Option<u64>,
    pub limit: usize,
    /// Records of this node are skipped, unless it is empty.
    pub skip_node: String,
    pub matching: Matching,
}

/// What a read answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Page {
    /// First and last seq, reason.
    pub tombstone: Option<(u64, u64, &'static str)>,
    pub seqs: Vec<u64>,
    /// The cursor behind it is one of these.
    pub next: RangeInclusive<u64>,
}

/// The topic and its rules.
#[derive(Clone, Debug)]
pub struct Topic {
    pub id: u64,
    /// Every record that it ever had.
    pub records: BTreeMap<u64, Record>,
    pub head: u64,
    pub last_ts: u64,
    /// Records below it were taken by a cap or a TTL.
    pub evict_floor: u64,
    /// Whether a cap has taken records, and whether a TTL has.
    pub evicted_by: (bool, bool),
    /// Seqs without a record: announced as lost.
    pub gaps: Vec<(u64, u64)>,
    pub cap_records: u64,
    pub cap_bytes: u64,
    /// Whether a full topic refuses writes; otherwise the oldest records go.
    pub rejects: bool,
    pub ttl: u64,
}

impl Default for Topic {
    fn default() -> Self {
        Self {
            id: 0,
            records: BTreeMap::new(),
            head: 0,
            last_ts: 0,
            evict_floor: 1,
            evicted_by: (false, false),
            gaps: Vec::new(),
            cap_records: 0,
            cap_bytes: 0,
            rejects: false,
            ttl: 0,
        }
    }
}

impl Topic {
    /// The records that can be read.
    pub fn live(&self) -> impl Iterator<Item = (u64, &Record)> {
        self.after(0)
    }

    /// Those after a cursor.
    pub fn after(&self, cursor: u64) -> impl Iterator<Item = (u64, &Record)> {
        let after = self.records.range(cursor + 1..).map(|(seq, record)| (*seq, record));
        after.filter(|(_, record)| record.live)
    }

    #[must_use]
    pub fn count(&self) -> u64 {
        self.live().count() as u64
    }

    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.live().map(|(_, record)| record.bytes).sum()
    }

    /// The first seq with a record, else the one after the head.
    #[must_use]
    pub fn earliest(&self) -> u64 {
        self.live().next().map_or(self.head + 1, |(seq, _)| seq)
    }

    /// The cursor before the first record.
    #[must_use]
    pub fn start(&self) -> u64 {
        self.earliest() - 1
    }

    /// Whether a seq in between is announced as lost.
    #[must_use]
    pub fn gap_in(&self, from: u64, to: u64) -> bool {
        self.gaps.iter().any(|(a, b)| *a <= to && *b >= from)
    }

    /// Assigns the next seq to a record.
    pub fn push(&mut self, record: Record) -> u64 {
        self.head += 1;
        self.records.insert(self.head, Record { live: true, ..record });
        self.head
    }

    /// A write at `now`; returns the first and the last seq.
    pub fn append(&mut self, new: Vec<Record>, now: u64) -> Result<(u64, u64), Refused> {
        let (count, bytes) = (new.len() as u64, new.iter().map(|record| record.bytes).sum());
        if self.cap_records > 0 || self.cap_bytes > 0 {
            self.expire(now);
        }
        if self.rejects && self.over(count, bytes) {
            return Err(Refused::TooLarge);
        }
        if self.rejects && self.over(self.count() + count, self.bytes() + bytes) {
            return Err(Refused::Full);
        }
        let first = self.head + 1;
        self.last_ts = self.last_ts.max(now);
        for record in new {
            self.push(Record { wall: now, ts: self.last_ts, ..record });
        }
        self.fit();
        Ok((first, self.head))
    }

    /// Deletes records below a seq, with such a tag; returns how many.
    pub fn delete(&mut self, before: Option<u64>, matching: &Matching) -> u64 {
        let below = self.records.range_mut(..before.unwrap_or(u64::MAX)).map(|(_, record)| record);
        let hit = below.filter(|record| record.live && matching.hits(&record.tag));
        hit.map(|record| record.live = false).count() as u64
    }

    /// Deletes a record.
    pub fn remove(&mut self, seq: u64) {
        if let Some(record) = self.records.get_mut(&seq) {
            record.live = false;
        }
    }

    /// Takes what is older than the TTL.
    pub fn expire(&mut self, now: u64) {
        if self.ttl == 0 {
            return;
        }
        let is_old = |record: &Record| now.saturating_sub(record.ts) > self.ttl;
        let old: Vec<u64> = self.live().filter(|(_, r)| is_old(r)).map(|(seq, _)| seq).collect();
        for seq in old {
            self.evict(seq);
            self.evicted_by.1 = true;
        }
    }

    /// The sweep: also takes what expires by itself.
    pub fn sweep(&mut self, now: u64) {
        self.expire(now);
        for record in self.records.values_mut() {
            if record.expires.is_some_and(|at| at < now) {
                record.live = false;
            }
        }
    }

    /// Takes the oldest records over the caps.
    pub fn fit(&mut self) {
        while !self.rejects && self.over(self.count(), self.bytes()) {
            self.evict(self.earliest());
            self.evicted_by.0 = true;
        }
    }

    fn over(&self, count: u64, bytes: u64) -> bool {
        (self.cap_records > 0 && count > self.cap_records)
            || (self.cap_bytes > 0 && bytes > self.cap_bytes)
    }

    fn evict(&mut self, seq: u64) {
        let Some(record) = self.records.get_mut(&seq) else { return };
        (record.live, record.evicted) = (false, true);
        self.evict_floor = seq + 1;
        self.gaps.retain(|gap| gap.1 > seq);
    }

    /// The page that a read gets.
    #[must_use]
    pub fn read(&self, ask: &Read, now: u64) -> Page {
        let gap_at = |seq: u64| self.gaps.iter().find(|gap| (gap.0..=gap.1).contains(&seq));
        let (mut at, mut tombstone) = (ask.after, None);
        if at > self.head {
            tombstone = Some((1, self.head, "recreated"));
            at = self.start();
        } else if at + 1 < self.evict_floor {
            let why = match self.evicted_by {
                (true, true) => "mixed",
                (false, true) => "ttl",
                _ => "cap",
            };
            tombstone = Some((at + 1, self.evict_floor - 1, why));
            at = self.evict_floor - 1;
        } else if let Some(gap) = gap_at(at + 1) {
            tombstone = Some((at + 1, gap.1, "restart"));
            at = gap.1;
        }
        let bound = ask.upto.unwrap_or(u64::MAX).min(self.head);
        let is_hit = |record: &Record| {
            record.live
                && record.expires.is_none_or(|at| at >= now)
                && (ask.skip_node.is_empty() || record.node != ask.skip_node)
                && ask.matching.hits(&record.tag)
        };
        let (mut seqs, mut passed) = (Vec::new(), at);
        for seq in at + 1..=bound {
            if gap_at(seq).is_some() {
                break;
            }
            if self.records.get(&seq).is_some_and(is_hit) {
                if seqs.len() == ask.limit {
                    break;
                }
                seqs.push(seq);
                at = seq;
            }
            passed = seq;
        }
        if seqs.len() < ask.limit {
            at = at.max(passed);
        }
        Page { tombstone, seqs, next: at..=passed.max(at) }
    }
}
