//! The journal of one run: one line per event, written by the child before and after every call.

use std::fmt;
use std::str::{FromStr, SplitWhitespace};

use topics_engine::Durability;

use super::payload::Origin;

/// The request of a call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Call {
    /// Rows per topic, all or nothing; `synced`: durable when acked, whatever the class.
    Write { rows: Vec<(String, u32)>, synced: bool },
    /// A topic.
    Create { topic: String, class: Durability },
    /// Records below a seq.
    Delete { topic: String, before: u64 },
    /// An ack of one job.
    Ack { queue: String, seq: u64 },
}

/// The positions of the rows of an acked call; an empty range only names the id of a topic.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Placed {
    pub topic: String,
    pub id: u64,
    pub first: u64,
    pub last: u64,
}

/// Records with ascending seqs and indices of one call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    pub topic: String,
    pub id: u64,
    pub seq: u64,
    pub origin: Origin,
    pub len: u32,
}

/// How a child's process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Without a signal, its engine closed or dropped.
    Clean,
    /// By SIGKILL.
    Kill,
    /// By SIGKILL, after its file system lost un-synced data.
    PowerCut,
}

/// The count of a topic that changed during the read.
pub const UNKNOWN: u64 = u64::MAX;

/// A line of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A call starts.
    Begin(u64, Call),
    /// It succeeded, at this time of the monotonic clock, ns.
    Acked { op: u64, at: u64, placed: Vec<Placed> },
    /// It failed; `certain`: it has no effect, now or later.
    Refused { op: u64, certain: bool, error: String },
    /// A reader received these records.
    Seen(Run),
    /// An audit starts: a read of everything while no other work runs.
    Audit(String),
    /// A topic as its state describes it.
    Topic { topic: String, id: u64, head: u64, count: u64 },
    /// A range that is reported as lost.
    Gap { topic: String, from: u64, to: u64, reason: String },
    /// The audit has ended. `settled`: and no background work is left.
    Audited { settled: bool },
    /// The child's next step.
    Note(String),
    /// A problem that the child detected.
    Problem(String),
    /// The process ended.
    End(End),
}

fn list<T>(items: &[T], show: impl Fn(&T) -> String) -> String {
    if items.is_empty() {
        return "-".into();
    }
    items.iter().map(show).collect::<Vec<_>>().join(",")
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Write { rows, synced } => {
                let rows = list(rows, |(t, n)| format!("{t}={n}"));
                write!(f, "write {rows} {}", u8::from(*synced))
            }
            Self::Create { topic, class } => write!(f, "create {topic} {}", class.as_str()),
            Self::Delete { topic, before } => write!(f, "delete {topic} {before}"),
            Self::Ack { queue, seq } => write!(f, "ack {queue} {seq}"),
        }
    }
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let flat = |text: &str| text.replace('\n', " ");
        match self {
            Self::Begin(op, call) => write!(f, "begin {op} {call}"),
            Self::Acked { op, at, placed } => {
                let show = |p: &Placed| format!("{}:{}:{}:{}", p.topic, p.id, p.first, p.last);
                write!(f, "acked {op} {at} {}", list(placed, show))
            }
            Self::Refused { op, certain, error } => {
                write!(f, "refused {op} {} {}", u8::from(*certain), flat(error))
            }
            Self::Seen(r) => {
                let (op, index) = (r.origin.op, r.origin.index);
                write!(f, "seen {} {} {} {op} {index} {}", r.topic, r.id, r.seq, r.len)
            }
            Self::Audit(name) => write!(f, "audit {name}"),
            Self::Topic { topic, id, head, count } => {
                write!(f, "topic {topic} {id} {head} {count}")
            }
            Self::Gap { topic, from, to, reason } => write!(f, "gap {topic} {from} {to} {reason}"),
            Self::Audited { settled } => write!(f, "audited {}", u8::from(*settled)),
            Self::Note(text) => write!(f, "note {}", flat(text)),
            Self::Problem(text) => write!(f, "problem {}", flat(text)),
            Self::End(End::Clean) => write!(f, "end clean"),
            Self::End(End::Kill) => write!(f, "end kill"),
            Self::End(End::PowerCut) => write!(f, "end power-cut"),
        }
    }
}

/// The words of a line.
struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| "a word is missing".to_owned())
    }
    fn text(&mut self) -> Result<String, String> {
        self.word().map(str::to_owned)
    }
    fn number<T: FromStr>(&mut self) -> Result<T, String> {
        number(self.word()?)
    }
    fn rest(self) -> String {
        self.0.collect::<Vec<_>>().join(" ")
    }
    fn items(&mut self) -> Result<Vec<&'a str>, String> {
        let text = self.word()?;
        Ok(if text == "-" { Vec::new() } else { text.split(',').collect() })
    }
}

fn number<T: FromStr>(text: &str) -> Result<T, String> {
    text.parse().map_err(|_| format!("{text:?} is not a number"))
}

fn placed(item: &str) -> Result<Placed, String> {
    let parts: Vec<&str> = item.split(':').collect();
    let [topic, id, first, last] = parts[..] else { return Err(format!("{item:?} is no place")) };
    let topic = topic.to_owned();
    Ok(Placed { topic, id: number(id)?, first: number(first)?, last: number(last)? })
}

fn class(word: &str) -> Result<Durability, String> {
    let all = [Durability::Ephemeral, Durability::Memory, Durability::Disk, Durability::Fsync];
    let found = all.into_iter().find(|c| c.as_str() == word);
    found.ok_or_else(|| format!("{word:?} is no durability class"))
}

fn call(w: &mut Words<'_>) -> Result<Call, String> {
    Ok(match w.word()? {
        "write" => {
            let row = |item: &str| {
                let (topic, n) = item.split_once('=').ok_or("a row without a count")?;
                Ok::<_, String>((topic.to_owned(), number(n)?))
            };
            let rows = w.items()?.into_iter().map(row).collect::<Result<_, _>>()?;
            Call::Write { rows, synced: w.word()? == "1" }
        }
        "create" => Call::Create { topic: w.text()?, class: class(w.word()?)? },
        "delete" => Call::Delete { topic: w.text()?, before: w.number()? },
        "ack" => Call::Ack { queue: w.text()?, seq: w.number()? },
        other => return Err(format!("unknown call {other:?}")),
    })
}

impl FromStr for Event {
    type Err = String;

    fn from_str(line: &str) -> Result<Self, String> {
        let mut w = Words(line.split_whitespace());
        Ok(match w.word()? {
            "begin" => Self::Begin(w.number()?, call(&mut w)?),
            "acked" => {
                let (op, at) = (w.number()?, w.number()?);
                let placed = w.items()?.into_iter().map(placed).collect::<Result<_, _>>()?;
                Self::Acked { op, at, placed }
            }
            "refused" => {
                let (op, certain) = (w.number()?, w.word()? == "1");
                Self::Refused { op, certain, error: w.rest() }
            }
            "seen" => Self::Seen(Run {
                topic: w.text()?,
                id: w.number()?,
                seq: w.number()?,
                origin: Origin { op: w.number()?, index: w.number()? },
                len: w.number()?,
            }),
            "audit" => Self::Audit(w.text()?),
            "topic" => Self::Topic {
                topic: w.text()?,
                id: w.number()?,
                head: w.number()?,
                count: w.number()?,
            },
            "gap" => Self::Gap {
                topic: w.text()?,
                from: w.number()?,
                to: w.number()?,
                reason: w.text()?,
            },
            "audited" => Self::Audited { settled: w.word()? == "1" },
            "note" => Self::Note(w.rest()),
            "problem" => Self::Problem(w.rest()),
            "end" => Self::End(match w.word()? {
                "clean" => End::Clean,
                "kill" => End::Kill,
                "power-cut" => End::PowerCut,
                other => return Err(format!("unknown end {other:?}")),
            }),
            other => return Err(format!("unknown event {other:?}")),
        })
    }
}
