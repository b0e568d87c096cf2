//! The state of a stream under its lock: the queue, and a slot for each topic.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use super::Ready;
use crate::delivery::frame::{Event, Frame};
use crate::topic::Topic;
use crate::types::api::Tombstone;
use crate::types::error::Error;

/// How a topic of the stream gets its records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// The watcher's end reads them.
    Backlog,
    /// The topic's worker pushes them.
    Live,
    /// The topic was deleted; its slot is free when no event of it is queued.
    Gone,
    /// The topic cannot be read. Its cursor stays, for a later stream.
    Failed,
}

pub(super) struct StreamTopic {
    pub topic: Arc<Topic>,
    pub mode: Mode,
    /// The watcher got every record up to here.
    pub cursor: u64,
    /// Every record up to here was queued.
    pub pushed: u64,
    pub queued: u32,
    /// The topic id that the first cursor belongs to.
    pub id: Option<u64>,
    /// Whether no record was read for the topic yet.
    pub fresh: bool,
}

/// A queued event.
pub(super) struct Item {
    pub slot: u32,
    pub event: Event,
    pub next: u64,
    pub usage: usize,
}

/// The state of a stream under its lock.
#[derive(Default)]
pub(super) struct Outbound {
    pub queue: VecDeque<Item>,
    pub usage: usize,
    pub topics: Vec<StreamTopic>,
    pub by_topic: HashMap<u64, u32>,
    pub backlog: VecDeque<u32>,
    /// Name, id and cursor of topics whose deletion comes before the other events.
    pub gone: VecDeque<(Arc<str>, u64, u64)>,
    /// Names without a topic: a new topic of such a name joins.
    pub missing: HashSet<Arc<str>>,
    pub ended: Option<Error>,
    /// Whether a push found the queue full, and it has not been empty since.
    pub lagging: bool,
    pub taken_at: u64,
    pub event_at: u64,
    pub blocked: bool,
    /// Whether the next queued event calls `ready`.
    pub armed: bool,
    pub ready: Option<Ready>,
}

impl Outbound {
    /// Adds a topic from a cursor on, in the slot `gone` of an ended topic or in a new one.
    pub fn add(&mut self, gone: Option<usize>, topic: &Arc<Topic>, cursor: u64, id: Option<u64>) {
        let entry = StreamTopic {
            topic: topic.clone(),
            mode: Mode::Backlog,
            cursor,
            pushed: cursor,
            queued: 0,
            id,
            fresh: true,
        };
        let at = match gone {
            Some(at) => {
                let old = self.topics[at].topic.id();
                self.by_topic.remove(&old);
                self.topics[at] = entry;
                at
            }
            None => {
                self.topics.push(entry);
                self.topics.len() - 1
            }
        } as u32;
        self.by_topic.insert(topic.id(), at);
        self.missing.remove(&topic.name);
        self.backlog.push_back(at);
    }

    /// Queues an event of a topic; `next` is the cursor after it, `usage` its bytes of memory.
    pub fn queue(&mut self, slot: u32, event: Event, next: u64, usage: usize) {
        let p = &mut self.topics[slot as usize];
        p.queued += 1;
        p.pushed = next;
        self.usage += usage;
        self.queue.push_back(Item { slot, event, next, usage });
    }

    /// Queues a tombstone and a frame of one read, as far as there are.
    pub fn queue_batch(
        &mut self,
        slot: u32,
        tombstone: Option<Tombstone>,
        frame: Option<Arc<Frame>>,
        next: u64,
        usage: usize,
    ) {
        if let Some(tombstone) = tombstone {
            let p = &self.topics[slot as usize];
            let (topic, topic_id) = (p.topic.name.clone(), p.topic.id());
            let reason = tombstone.reason.as_str();
            let to = if frame.is_some() { tombstone.cursor().min(next) } else { next };
            self.queue(slot, Event::Tombstone { topic, topic_id, tombstone, reason }, to, 0);
        }
        if let Some(frame) = frame {
            self.queue(slot, Event::Records(frame), next, usage);
        }
    }

    /// Whether a thread or a callback waits for an event.
    pub fn notify(&mut self) -> bool {
        self.blocked || self.armed
    }
}
