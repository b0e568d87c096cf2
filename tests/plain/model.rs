//! The model: topics, their readers and writers, in memory.

use std::collections::BTreeMap;

use topics_model::queue::{NewJob, Queue};
use topics_model::topic::{Record, Topic};

/// A record of the model; the engine's commit time is not known yet.
pub fn written(name: &str, tag: &str, wall: u64) -> Record {
    Record { name: name.to_owned(), tag: tag.to_owned(), wall, ..Record::default() }
}

/// A stored cursor.
#[derive(Clone, Debug)]
pub struct Cursor {
    pub topic: usize,
    pub stored: u64,
}

/// A handle: the position of its next read.
#[derive(Clone, Debug)]
pub struct Handle {
    pub next: u64,
}

/// A router.
#[derive(Clone, Debug)]
pub struct Router {
    pub at: u64,
}

/// A row of a transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Row {
    Record { topic: usize, name: String, tag: &'static str },
    Job(NewJob),
}

/// The positions of a transaction in a topic: its id, the first and last seq.
pub type Got = BTreeMap<&'static str, (u64, u64, u64)>;

/// A stage of a writer: rows by part, and the time of the newest part.
#[derive(Clone, Debug, Default)]
pub struct Stage {
    pub parts: BTreeMap<u32, Vec<Row>>,
    pub at: u64,
}

/// The last transaction of a writer.
#[derive(Clone, Debug)]
pub struct LastEpoch {
    pub epoch: u64,
    /// The query that committed it.
    pub query: &'static str,
    /// Its answer.
    pub got: Got,
}

/// A writer of transactions.
#[derive(Clone, Debug, Default)]
pub struct Writer {
    pub last: Option<LastEpoch>,
    pub stages: BTreeMap<usize, Stage>,
}

/// The whole model. Logs: source, destination, destination of the destination, dead letters.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub logs: [Option<Topic>; 4],
    pub queue: Queue,
    /// The original jobs of dead letters and their last errors, by the seqs of the letters.
    pub letters: BTreeMap<u64, (NewJob, Option<String>)>,
    pub routers: [Option<Router>; 2],
    pub cursors: BTreeMap<usize, Cursor>,
    pub handles: BTreeMap<usize, Handle>,
    /// Cursors of the watch on source and destination, with the topic's id.
    pub watch: Option<[(u64, u64); 2]>,
    pub writers: [Writer; 2],
    /// All records of deleted topics, by id.
    pub graves: BTreeMap<u64, BTreeMap<u64, Record>>,
    /// The time of the engine's last complete sweep.
    pub swept_at: Option<u64>,
}

impl Model {
    /// Deletes a topic and everything that belongs to it.
    pub fn drop_log(&mut self, topic: usize) {
        self.graves.extend(self.logs[topic].take().map(|log| (log.id, log.records)));
        for (i, r) in self.routers.iter_mut().enumerate() {
            if i == topic || i + 1 == topic {
                *r = None;
            }
        }
        let of: Vec<usize> =
            self.cursors.iter().filter(|(_, c)| c.topic == topic).map(|(w, _)| *w).collect();
        for which in of {
            self.cursors.remove(&which);
            self.handles.remove(&which);
        }
    }

    /// The records that a router has to copy, in order.
    pub fn due(&self, router: usize, filter: Option<&str>) -> Vec<Record> {
        let (Some(r), Some(source)) = (&self.routers[router], &self.logs[router]) else {
            return Vec::new();
        };
        let due = source.after(r.at).filter(|(_, rec)| filter.is_none_or(|f| rec.tag == f));
        due.map(|(_, rec)| rec.clone()).collect()
    }
}
