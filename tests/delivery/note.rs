//! The calls of a script and their answers, with the position of the disk at each.

use std::collections::BTreeMap;
use std::sync::Arc;

use topics_engine::{Committed, Durability, RouterRequest};

/// The number of disk calls before a call started and when it returned.
#[derive(Clone, Copy, Debug)]
pub struct Span {
    pub from: usize,
    pub to: usize,
}

/// A written record.
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
    /// When it expires, by the wall clock.
    pub deadline: u64,
}

/// A topic in an observation.
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
    /// The topic's id; 0: it did not exist.
    pub id: u64,
    pub consumer: &'static str,
    pub seq: u64,
    /// The earlier position of the cursor; a later position stays.
    pub before: u64,
}

/// A transaction. A repeated call belongs to the same one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Unit {
    /// Its number in the script.
    pub number: usize,
    /// `None`: it has no writer, and only its key is remembered.
    pub writer: Option<&'static str>,
    pub epoch: Option<u64>,
    /// The query that commits stages; empty: none.
    pub query: &'static str,
    pub key: &'static str,
    /// The stages that it publishes, with their number of parts; empty: it was one call.
    pub stages: Vec<(&'static str, u32)>,
    /// Its rows by topic, in their order in the topic.
    pub rows: Vec<(String, Vec<Written>)>,
    pub moves: Vec<Moved>,
    pub acks: Vec<Leased>,
    pub heads: Vec<(&'static str, u64)>,
    /// The wall clock of its first call.
    pub wall: u64,
}

/// A part of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StagePart {
    pub writer: &'static str,
    pub stage: &'static str,
    pub part: u32,
    pub rows: Vec<(String, Vec<Written>)>,
    /// The wall clock at which its stage may be swept.
    pub until: u64,
}

/// A call and its answer; its intended effect counts from its start on.
#[derive(Clone, Debug)]
pub enum Note {
    /// A topic was created with this id, or its config was changed.
    Made {
        topic: String,
        id: u64,
    },
    /// Written as one batch, starting at seq `first`.
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
    /// Everything before this note is durable.
    Synced,
    Claimed(Vec<Leased>),
    Acked(Vec<Leased>),
    /// Leases that were released.
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
    Staged(Arc<StagePart>),
    /// Staging failed: the outcome is unknown.
    Tried(Arc<StagePart>),
    /// A stage was aborted or swept.
    Aborted {
        writer: &'static str,
        stage: &'static str,
    },
    /// A transaction; `None`: the outcome is unknown. Refused ones are not noted.
    Txn {
        unit: Arc<Unit>,
        answer: Option<Committed>,
    },
    /// Records delivered by an `at_most_once` consumer, and its cursor afterwards.
    HandedOut {
        id: u64,
        consumer: &'static str,
        seqs: Vec<u64>,
        next: u64,
    },
    /// The cursor of a consumer of this topic has this value; `None`: the consumer was deleted.
    Stored {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: Option<u64>,
    },
    /// An observed value of the cursor; later positions may not be visible yet.
    Passed {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
    /// From now on, the consumer may store this cursor automatically.
    Dealt {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
    /// The same after a seek, which may move the cursor back.
    Sought {
        topic: String,
        id: u64,
        consumer: &'static str,
        at: u64,
    },
}

impl Note {
    /// Acked rows: topic, its id, the first seq, the rows.
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

    /// Acked jobs.
    pub fn acks(&self) -> &[Leased] {
        match self {
            Self::Acked(jobs) => jobs,
            Self::Txn { unit, .. } => &unit.acks,
            _ => &[],
        }
    }
}

impl Note {
    /// Whether this call makes the job with this name claimable before its time.
    pub fn promotes(&self, name: &str) -> bool {
        matches!(self, Self::Promoted(jobs) if jobs.iter().any(|j| j.1 == name))
    }
}

/// The error of a nack of these jobs.
pub fn error_of(jobs: &[Leased]) -> Option<String> {
    jobs.first().map(|j| format!("after lease {}", j.id))
}

/// The progress of a call when the disk stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// The call had started.
    Started,
    /// The call had returned.
    Returned,
    /// A later sync had returned, so that everything before it is durable.
    Synced,
}

/// Constants of a script.
#[derive(Clone, Debug, Default)]
pub struct Facts {
    /// The durability class of each topic.
    pub classes: BTreeMap<String, Durability>,
    /// Whether the leases of `q` are logged.
    pub leases_durable: bool,
}

/// The notes that count at a crash point.
#[derive(Debug)]
pub struct Past<'a> {
    pub notes: Vec<(Progress, &'a Note)>,
    /// All notes of the script, including those after the crash point.
    pub ever: &'a [(Span, Note)],
    /// The process ended without loss of the disk.
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
        let progress = |s: &Span, n: &Note| match synced {
            _ if matches!(n, Note::Txn { answer: None, .. }) => Progress::Started,
            Some(sync) if s.to <= sync => Progress::Synced,
            _ if s.to <= at => Progress::Returned,
            _ => Progress::Started,
        };
        let begun = notes.iter().filter(|(s, _)| s.from < at || s.to <= at);
        let ever = notes;
        let notes = begun.map(|(s, n)| (progress(s, n), n)).collect();
        Self { notes, ever, killed, wall, facts }
    }

    /// Whether an effect on this topic with this progress certainly survives.
    pub fn kept(&self, topic: &str, progress: Progress) -> bool {
        let synced = self.facts.classes.get(topic).is_none_or(|c| *c == Durability::Fsync);
        progress == Progress::Synced || (progress == Progress::Returned && (self.killed || synced))
    }

    /// The same for a note: a transaction survives once it is answered, whatever the class.
    pub fn keeps(&self, topic: &str, progress: Progress, note: &Note) -> bool {
        match note {
            Note::Txn { .. } => progress != Progress::Started,
            _ => self.kept(topic, progress),
        }
    }
}
