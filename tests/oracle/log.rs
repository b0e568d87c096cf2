//! The log of a run: calls, answers, and their positions (in mutating calls of the disk).

use std::sync::Arc;

use topics_engine::{ConfigPatch, CreatedTopic, DeleteRequest, Deleted, Durability, TopicMatch};

use super::observe::Observation;
use super::topic::Keep;

/// Identifies a call within a run.
pub type CallId = usize;

/// An attempted record with its resolved node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rec {
    /// Starts with [`tag_of`] of its attempt, so that a reader can identify the attempt.
    pub data: Vec<u8>,
    pub binary: bool,
    pub tag: Vec<u8>,
    pub node: Vec<u8>,
    pub meta: Vec<u8>,
    pub ttl_ms: u64,
}

impl Rec {
    /// Bytes as the state counts them; an expiry is an attribute of 10 bytes.
    pub fn bytes(&self) -> u64 {
        let parts = [&self.data, &self.tag, &self.node, &self.meta];
        let attrs = if self.ttl_ms > 0 { 10 } else { 0 };
        parts.iter().map(|p| p.len() as u64).sum::<u64>() + attrs
    }

    /// The attempt and the index in a payload.
    pub fn origin(data: &[u8]) -> Option<(usize, usize)> {
        let text = data.strip_prefix(b"\"").unwrap_or(data).strip_prefix(b"a")?;
        let mut parts = text.splitn(3, |&b| b == b'.');
        let mut number = || std::str::from_utf8(parts.next()?).ok()?.parse().ok();
        Some((number()?, number()?))
    }
}

/// The prefix of the payload of record `index` of an attempt.
pub fn tag_of(attempt: usize, index: usize) -> String {
    format!("a{attempt}.{index}.")
}

/// A call that changes or guarantees something.
#[derive(Clone, Debug)]
pub enum Op {
    Append {
        topic: String,
        attempt: usize,
        recs: Arc<[Rec]>,
        key: Option<Vec<u8>>,
        expect_head: Option<u64>,
        sync: bool,
        config: Option<ConfigPatch>,
    },
    Create {
        topic: String,
        patch: ConfigPatch,
    },
    Drop {
        topic: String,
    },
    Delete {
        topic: String,
        req: DeleteRequest,
    },
    Sync,
    SyncTopic {
        topic: String,
    },
    Checkpoint,
    Tick,
    Close,
}

impl Op {
    pub fn topic(&self) -> Option<&str> {
        match self {
            Self::Append { topic, .. }
            | Self::Create { topic, .. }
            | Self::Drop { topic }
            | Self::Delete { topic, .. }
            | Self::SyncTopic { topic } => Some(topic),
            _ => None,
        }
    }

    /// Whether the call may create its topic.
    pub fn may_create(&self) -> bool {
        matches!(self, Self::Append { .. } | Self::Create { .. })
    }
}

/// Whether a delete selects a record with this seq and tag, ignoring its bound.
pub fn selects(req: &DeleteRequest, seq: u64, tag: &[u8]) -> bool {
    req.before_seq.is_none_or(|b| seq < b)
        && req.matching.as_ref().is_none_or(|m| match m {
            TopicMatch::Eq(t) => !tag.is_empty() && tag == t,
            TopicMatch::Glob(p) => !tag.is_empty() && tag.starts_with(p),
        })
}

/// How a call ended.
#[derive(Clone, Debug)]
pub enum Reply {
    Appended {
        topic_id: u64,
        first_seq: u64,
        created: bool,
        deduped: bool,
        class: Durability,
    },
    Created(Box<CreatedTopic>),
    Dropped {
        existed: bool,
    },
    Deleted(Box<Deleted>),
    Done,
    /// Refused by a rule, without effect.
    Refused(&'static str),
    /// Failed: the outcome is unknown.
    Failed(String),
}

#[derive(Clone, Debug)]
pub enum Body {
    Begin(CallId, Box<Op>),
    End(CallId, Reply),
    /// A full read of the running engine.
    Seen(Arc<Observation>),
    /// The process ended, at worst in this way; calls in flight stay undetermined.
    Died(Keep),
    /// An open returned and serves this state. `shards` is the count of the new layout.
    Opened {
        seen: Arc<Observation>,
        shards: u32,
    },
    /// An open failed.
    OpenFailed(String),
    /// The number of shards of the first open.
    Shards(u32),
    /// The clocks moved: both by `passed` ms, or, if that is 0, only the wall clock.
    Clock {
        passed: u64,
    },
    /// A call of the disk failed, possibly without an effect on any answer.
    Trouble,
}

/// One line of the log.
#[derive(Clone, Debug)]
pub struct Event {
    /// The number of the mount.
    pub life: usize,
    /// Mutating calls of this mount before the event.
    pub at: usize,
    /// The wall clock.
    pub wall: u64,
    pub body: Body,
}

impl Event {
    /// A readable form.
    pub fn line(&self) -> String {
        let what = match &self.body {
            Body::Begin(id, op) => format!("{id} {}", op.line()),
            Body::End(id, reply) => match reply {
                Reply::Created(c) => format!("{id} = id {} created {}", c.topic_id, c.created),
                Reply::Deleted(d) => format!("{id} = {} deleted", d.deleted),
                reply => format!("{id} = {reply:?}"),
            },
            Body::Seen(seen) => format!("seen{}", seen.line()),
            Body::Opened { seen, shards } => format!("opened, {shards} shards{}", seen.line()),
            body => format!("{body:?}"),
        };
        format!("@{} {what}", self.wall)
    }
}

impl Op {
    fn line(&self) -> String {
        match self {
            Self::Append { topic, attempt, recs, key, expect_head, sync, config } => {
                let key = key.as_ref().map(|k| String::from_utf8_lossy(k));
                let class = config.as_ref().and_then(|c| c.durability);
                let (n, bytes) = (recs.len(), recs.iter().map(Rec::bytes).sum::<u64>());
                format!(
                    "append {topic} attempt {attempt}, {n} of {bytes} bytes, {key:?}, \
                     head {expect_head:?}, sync {sync}, {class:?}"
                )
            }
            op => {
                let text = format!("{op:?}");
                let set = text.split(", ").filter(|t| !t.contains(": None"));
                set.collect::<Vec<_>>().join(", ")
            }
        }
    }
}
