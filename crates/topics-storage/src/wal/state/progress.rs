//! What became of the batches that have left the queue.

use std::collections::{HashMap, VecDeque};

use topics_env::Waiters;

use crate::StorageError;
use crate::wal::Level;
use crate::wal::effects::{Effect, Unsynced};
use crate::wal::outcome::Outcomes;

/// Positions and outcomes. A batch moves from `unsynced`, if its level is a sync, to `effects`, and is
/// applied by the thread that drains them; its waiters see the outcome after that.
#[derive(Default)]
pub(in crate::wal) struct Progress {
    /// Tickets up to here have left the queue, and the write of their group has returned or failed.
    /// Later tickets may have failed too.
    pub written_ticket: u64,
    /// Tickets up to here were covered by a sync.
    pub synced_ticket: u64,
    pub next_lsn: u64,
    pub synced_lsn: u64,
    pub unsynced: VecDeque<Unsynced>,
    pub effects: VecDeque<Effect>,
    pub outcomes: Outcomes,
    /// Called when a frame above the lsn beside them is synced and applied.
    pub sync_observers: Waiters<u64>,
    /// Topics with a failure that their commits have not received yet, and the error. Batches of such
    /// a topic are refused, because they were decided on seqs that the failure will release.
    pub undelivered: HashMap<u64, StorageError>,
    /// First lsn of the batches that are being applied.
    pub applying_from: Option<u64>,
}

impl Progress {
    pub fn written_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    /// The lsn below which everything has been applied.
    pub fn applied_lsn(&self) -> u64 {
        let pending = lowest_lsn(&self.effects);
        let unsynced = self.unsynced.iter().find_map(|u| match u {
            Unsynced::Batch(p) => Some(p.first_lsn),
            Unsynced::Failure(_) => None,
        });
        let lowest = [self.applying_from, pending, unsynced].into_iter().flatten().min();
        lowest.map_or(self.written_lsn(), |lsn| lsn - 1)
    }

    /// Whether a ticket's outcome waits for a sync that has not begun to cover it.
    pub fn needs_sync(&self, n: u64, level: Level) -> bool {
        let own = level == Level::Synced && n <= self.written_ticket && n > self.synced_ticket;
        // No group is written behind a failure before a sync has passed it, so failures are last.
        own || self
            .unsynced
            .iter()
            .rev()
            .map_while(|u| if let Unsynced::Failure(f) = u { Some(f) } else { None })
            .any(|f| f.tickets.iter().any(|(from, to)| (*from..=*to).contains(&n)))
    }

    /// Whether a failure waits for a sync of what was written before it.
    pub fn failure_waits(&self) -> bool {
        matches!(self.unsynced.back(), Some(Unsynced::Failure(_)))
    }
}

pub(in crate::wal) fn lowest_lsn(effects: &VecDeque<Effect>) -> Option<u64> {
    let applied = |e: &Effect| if let Effect::Apply(p) = e { Some(p.first_lsn) } else { None };
    effects.iter().filter_map(applied).min()
}
