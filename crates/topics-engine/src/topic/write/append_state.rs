//! The state under the append lock, which orders a topic's writes, and the result of a decision.

use std::sync::Arc;

use topics_env::Waiters;
use topics_storage::wal::{Level, Ticket};

use super::losses::{LostAcks, Unlogged};
use super::pending_writes::PendingWrites;
use super::reserve::Reserve;
use crate::topic::load::Need;
use crate::topic::{Life, Topic};
use crate::types::api::{Appended, Durability};
use crate::types::config::TopicConfig;

/// The state that a topic's writes are decided on, in their order.
#[derive(Debug)]
pub(crate) struct AppendState {
    pub config: Arc<TopicConfig>,
    pub next_seq: u64,
    pub last_ts: u64,
    /// Whether the creation is staged or logged.
    pub logged: bool,
    /// Another verb has the topic exclusively.
    pub is_exclusive: bool,
    /// The topic was deleted: the caller looks its name up again.
    pub closed: bool,
    pub reserve: Reserve,
    /// The part of the reservation that is known to be synced.
    pub synced_to: u64,
    /// The newest batch, and the level at which it is applied.
    pub last: Option<(Ticket, Level)>,
    /// How often the seqs of failed writes were released.
    pub round: u32,
    /// Staged writes; kept while the topic has a cap.
    pub pending_writes: Option<Box<PendingWrites>>,
    /// Losses that the log does not have yet.
    pub unlogged: Unlogged,
    /// Lost acked records that no sync has reported.
    pub lost_acks: Option<LostAcks>,
    /// Asynchronous writes that wait for the verb that has the topic exclusively.
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
            unlogged: Unlogged::default(),
            lost_acks: None,
            parked: Waiters::default(),
        }
    }

    pub(crate) fn head(&self) -> u64 {
        self.next_seq - 1
    }
}

/// The level at which a topic's batches are applied.
pub(crate) fn apply_level(class: Durability) -> Level {
    if class == Durability::Fsync { Level::Synced } else { Level::Written }
}

/// A decided write.
pub(crate) struct Decided {
    pub answer: Appended,
    /// The batch to wait for; `None`: none.
    pub ticket: Option<Ticket>,
    pub level: Level,
    /// The end of the reservation that is synced when the ticket has reached `Synced`.
    pub reserved: u64,
    /// Whether the write logged a reservation, whose sync is then started.
    pub renewed: bool,
}

/// Why a write is not decided yet.
pub(crate) enum Halt {
    /// Data of a segment must be read first.
    Read(Need),
    /// Readers see the expected head, but a staged write would raise it. Whether it does is known when
    /// this ticket has reached this level.
    Until(Ticket, Level),
}

impl From<Need> for Halt {
    fn from(need: Need) -> Self {
        Self::Read(need)
    }
}

impl Topic {
    /// Shows records up to a reservation that is synced now.
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
            state.reservation.synced = state.reservation.synced.max(to);
            state.visible()
        };
        if self.life() != Life::Dead {
            self.gate.publish(head);
        }
    }
}
