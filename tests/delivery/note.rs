//! What was called and answered in a script, and how far the disk was then.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::{Committed, Durability, RouterRequest};

/// Calls of the disk before a call began and when it returned.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: usize,
    pub to: usize,
}

/// A record as it was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// The payload; unique in a script.
    pub name: String,
    pub tag: &'static str,
    pub node: &'static str,
    pub group: &'static str,
    pub lane: Option<u8>,
    pub deliver_at: u64,
    pub ttl_ms: u64,
}

/// A lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leased {
    pub name: String,
    pub seq: u64,
    pub id: u64,
    pub node: &'static str,
    pub deliveries: u32,
    /// When it runs out, by the wall clock.
    pub deadline: u64,
}

/// A topic as a look shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Shown {
    pub id: u64,
    /// Seq → payload.
    pub records: BTreeMap<u64, String>,
    pub evict_floor: u64,
}

/// A cursor that a transaction moves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Moved {
    pub topic: String,
    /// The topic's id; 0: there was none.
    pub id: u64,
    pub consumer: &'static str,
    pub seq: u64,
    /// Where the cursor was; one that is further on stays.
    pub before: u64,
}

/// A transaction. A repeat of it is the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its place in the script.
    pub number: usize,
    /// `None`: it is of nobody, and remembered only by its key.
    pub writer: Option<&'static str>,
    pub epoch: Option<u64>,
    pub key: &'static str,
    /// The stages that it publishes, and how many parts they have; none: it was one call.
    pub stages: Vec<(&'static str, u32)>,
    /// Its rows by topic, in the order in which they appear there.
    pub rows: Vec<(String, Vec<Written>)>,
    pub moves: Vec<Moved>,
    pub acks: Vec<Leased>,
    pub heads: Vec<(&'static str, u64)>,
    /// When it was called first, wall clock.
    pub wall: u64,
}

/// A part of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Part {
    pub writer: &'static str,
    pub stage: &'static str,
    pub part: u32,
    pub rows: Vec<(String, Vec<Written>)>,
    /// When its stage may be swept, wall clock.
    pub until: u64,
}

/// A call and its answer; what it meant to do counts from its beginning on.
#[derive(Clone, Debug)]
pub enum Note {
    /// A topic was created under this id, or given another config.
    Made {
        topic: String,
        id: u64,
    },
    /// Written as one batch, from seq `first` on.
    Put {
        topic: String,
        id: u64,
        first: u64,
        records: Vec<Written>,
    },
    /// Records with lower seqs were deleted.
    Deleted {
        topic: String,
        before: u64,
    },
    /// The topic was deleted.
    Dropped {
        topic: String,
    },
    /// All topics as readers see them.
    Look(BTreeMap<String, Shown>),
    /// Everything before it is durable.
    Synced,
    Claimed(Vec<Leased>),
    Acked(Vec<Leased>),
    /// Leases ended by a release.
    Released(Vec<Leased>),
    Extended(Vec<Leased>),
    /// Delayed jobs became claimable: seq and name.
    Promoted(Vec<(u64, String)>),
    /// Dead letters were moved back, or dead jobs revived.
    Redriven,
    /// The router was created; its source had this head and id, its destination this id.
    Routed {
        router: String,
        req: RouterRequest,
        start: u64,
        source_id: u64,
        dest_id: u64,
    },
    Unrouted {
        router: String,
    },
    /// Rows were staged.
    Staged(Arc<Part>),
    /// Staging failed: nobody knows whether they are there.
    Tried(Arc<Part>),
    /// A stage was given up, or swept.
    Aborted {
        writer: &'static str,
        stage: &'static str,
    },
    /// A transaction; `None`: nobody knows whether it is decided. One that was refused is not noted.
    Txn {
        unit: Arc<Unit>,
        answer: Option<Committed>,
    },
    /// Records handed out by a consumer that hands out at most once, and its cursor afterwards.
    HandedOut {
        id: u64,
        consumer: &'static str,
        seqs: Vec<u64>,
        next: u64,
    },
    /// The cursor of a consumer of this topic is now there; `None`: the consumer was deleted.
    Stored {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: Option<u64>,
    },
    /// The cursor was seen there by chance; positions further on may be on their way.
    Passed {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
    /// From now on, the cursor may be stored there by itself.
    Dealt {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
    /// The same where it may have gone back.
    Sought {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
}

impl Note {
    /// Rows that were acked: topic, its id, the first seq, the rows.
    pub fn puts(&self) -> Vec<(&str, u64, u64, &[Written])> {
        match self {
            Self::Put { topic, id, first, records } => vec![(topic, *id, *first, records)],
            Self::Txn { unit, answer: Some(answer) } => {
                let rows = |t: &str| unit.rows.iter().find(|r| r.0 == t).map(|r| r.1.as_slice());
                let got = answer.topics.iter();
                got.filter_map(|t| Some((&*t.topic, t.topic_id, t.first_seq, rows(&t.topic)?)))
                    .collect()
            }
            _ => Vec::new(),
        }
    }

    /// Jobs that were acked.
    pub fn acks(&self) -> &[Leased] {
        match self {
            Self::Acked(jobs) => jobs,
            Self::Txn { unit, .. } => &unit.acks,
            _ => &[],
        }
    }
}

impl Note {
    /// Whether it makes the job of this name claimable before its time.
    pub fn promotes(&self, name: &str) -> bool {
        matches!(self, Self::Promoted(jobs) if jobs.iter().any(|j| j.1 == name))
    }
}

/// The error of a nack of these jobs.
pub fn error_of(jobs: &[Leased]) -> Option<String> {
    jobs.first().map(|j| format!("after lease {}", j.id))
}

/// How far a call had come when the disk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Far {
    /// It had begun.
    Begun,
    /// It had returned.
    Done,
    /// And everything before a sync that had returned was durable.
    Synced,
}

/// What does not change in a script.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// Each topic's class.
    pub classes: BTreeMap<String, Durability>,
    /// The leases of `q` are logged.
    pub leases_durable: bool,
}

/// The notes that count at a crash.
#[derive(Debug)]
pub struct Past<'a> {
    pub notes: Vec<(Far, &'a Note)>,
    /// All notes of the script, as if it had not been interrupted.
    pub ever: &'a [(Span, Note)],
    /// The process ended, the disk lost nothing.
    pub killed: bool,
    pub wall: u64,
    pub facts: &'a Facts,
}

impl<'a> Past<'a> {
    /// The notes of a script after `at` calls of the disk.
    pub fn new(
        notes: &'a [(Span, Note)],
        facts: &'a Facts,
        at: usize,
        killed: bool,
        wall: u64,
    ) -> Self {
        let synced = notes.iter().rev();
        let synced = synced.filter(|(s, n)| s.to <= at && matches!(n, Note::Synced));
        let synced = synced.map(|(s, _)| s.from).next();
        let far = |s: &Span, n: &Note| match synced {
            _ if matches!(n, Note::Txn { answer: None, .. }) => Far::Begun,
            Some(sync) if s.to <= sync => Far::Synced,
            _ if s.to <= at => Far::Done,
            _ => Far::Begun,
        };
        let begun = notes.iter().filter(|(s, _)| s.from < at || s.to <= at);
        let ever = notes;
        let notes = begun.map(|(s, n)| (far(s, n), n)).collect();
        Self { notes, ever, killed, wall, facts }
    }

    /// Whether what a topic of this name was told at that point is there for certain.
    pub fn kept(&self, topic: &str, far: Far) -> bool {
        let synced = self.facts.classes.get(topic).is_none_or(|c| *c == Durability::Fsync);
        far == Far::Synced || (far == Far::Done && (self.killed || synced))
    }

    /// The same for what this note says of a topic: a transaction is kept once it is answered,
    /// whatever the class.
    pub fn keeps(&self, topic: &str, far: Far, note: &Note) -> bool {
        match note {
            Note::Txn { .. } => far != Far::Begun,
            _ => self.kept(topic, far),
        }
    }
}
