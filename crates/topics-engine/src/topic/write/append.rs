//! What orders a topic's writes, and what a decided write waits for.

use std::sync::Arc;

use topics_storage::wal::{Level, Ticket};

use super::pending_writes::PendingWrites;
use super::prepare::Prepared;
use super::reserve::Reserve;
use crate::topic::retention::Need;
use crate::topic::{Life, Topic};
use crate::types::api::{Appended, Durability, Gap};
use crate::types::config::TopicConfig;
use crate::types::wait::Waiters;

/// What orders a topic's writes.
#[derive(Debug)]
pub(crate) struct AppendState {
    pub config: Arc<TopicConfig>,
    pub next_seq: u64,
    pub last_ts: u64,
    /// Whether the creation is staged or logged.
    pub logged: bool,
    /// Another verb has the topic exclusively.
    pub is_exclusive: bool,
    /// The topic is gone: look the name up again.
    pub closed: bool,
    pub reserve: Reserve,
    /// The part of the reservation that is known to be synced.
    pub synced_to: u64,
    /// The newest batch, and the level at which it is applied.
    pub last: Option<(Ticket, Level)>,
    /// How often seqs were given back.
    pub round: u32,
    /// Kept while the topic has a cap.
    pub pending_writes: Option<Box<PendingWrites>>,
    /// Losses that are not in the log yet.
    pub unlogged: Vec<Gap>,
    /// A batch that failed was to log the evict floor that readers were shown: the next write does.
    pub floor_unlogged: bool,
    /// Asynchronous writes that came while a verb had the topic exclusively.
    pub parked: Waiters,
}

impl AppendState {
    pub(crate) fn new(config: Arc<TopicConfig>) -> Self {
        Self {
            config,
            next_seq: 1,
            last_ts: 0,
            logged: false,
            is_exclusive: false,
            closed: false,
            reserve: Reserve::default(),
            synced_to: 0,
            last: None,
            round: 0,
            pending_writes: None,
            unlogged: Vec::new(),
            floor_unlogged: false,
            parked: Waiters::default(),
        }
    }

    pub(crate) fn head(&self) -> u64 {
        self.next_seq - 1
    }
}

/// Room for the control frames of a write, beside its name and config.
const CONTROL: usize = 1024;

impl Prepared {
    /// What it takes in a queue, at most.
    pub(crate) fn staging_bytes(&self) -> usize {
        self.frames().len() + CONTROL + self.topic.len()
    }
}

/// The level at which a topic's batches are applied.
pub(crate) fn apply_level(class: Durability) -> Level {
    if class == Durability::Fsync { Level::Synced } else { Level::Written }
}

/// A write that is decided.
pub(crate) struct Decided {
    pub answer: Appended,
    /// Nothing to wait for when `None`.
    pub ticket: Option<Ticket>,
    pub level: Level,
    /// The reservation that is synced when the ticket is, at level `Synced`.
    pub reserved: u64,
    /// A reservation went with it: its sync is started.
    pub renewed: bool,
}

/// Why nothing is decided yet.
pub(crate) enum Halt {
    /// Something must be read.
    Read(Need),
    /// The head that was expected is what readers see, and a write is on its way: whether it
    /// becomes the head is known when this ticket has reached this level.
    Until(Ticket, Level),
}

impl From<Need> for Halt {
    fn from(need: Need) -> Self {
        Self::Read(need)
    }
}

impl Topic {
    /// Everything up to a reservation may be shown: it is synced.
    pub(crate) fn reservation_synced(&self, to: u64) {
        {
            let mut a = self.append.lock();
            if a.config.durability == Durability::Fsync || to <= a.synced_to {
                return;
            }
            a.synced_to = to;
        }
        let head = {
            let mut state = self.state.write();
            state.reserved_synced = state.reserved_synced.max(to);
            state.visible()
        };
        if self.life() != Life::Dead {
            self.gate.publish(head);
        }
    }
}
