//! Topic ids. One counter assigns ids and epochs; neither is ever assigned again.
//!
//! Ids are reserved ahead by a HeadWatermark of topic 0 on shard 0, and assigned only below a synced
//! reservation. So an id of a lost creation frame is never assigned to another topic.

use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_storage::format::record::{Body, HeadWatermark};
use topics_storage::wal::{Batch, Level, Ticket};

use super::Catalog;
use crate::ctx::Wait;
use crate::topic::Applied;
use crate::topic::events::Ctx;
use crate::types::error::Result;

/// Number of ids in a reservation.
const CHUNK: u64 = 1024;

#[derive(Debug)]
struct State {
    /// The next id.
    next: u64,
    /// The end of the logged reservation, exclusive.
    logged: u64,
    /// The end of the synced reservation, exclusive.
    synced: u64,
    /// A staged reservation, and its end.
    pending: Option<(Ticket, u64)>,
}

/// The counter of ids.
#[derive(Debug)]
pub(crate) struct Ids(Mutex<State>);

impl Default for Ids {
    fn default() -> Self {
        Self(Mutex::new(State { next: 1, logged: 1, synced: 1, pending: None }))
    }
}

/// The result of [`Ids::take`].
pub(crate) enum Id {
    /// A new id.
    Taken(u64),
    /// The caller asks again when this batch is synced.
    After(Ticket),
}

impl Ids {
    /// Sets the positions that a snapshot has.
    pub(crate) fn found(&self, next: u64, reserved: u64) {
        let mut s = self.0.lock();
        s.next = s.next.max(next);
        s.logged = s.logged.max(reserved);
    }

    /// Skips an id for each lost frame of the log, because each may have assigned one.
    pub(crate) fn skip(&self, frames: u64) {
        let mut s = self.0.lock();
        s.next = s.next.max(s.logged).saturating_add(frames);
    }

    /// Skips an id that a topic has.
    pub(crate) fn seen(&self, id: u64) {
        let mut s = self.0.lock();
        s.next = s.next.max(id + 1);
    }

    /// Sets the end of a logged reservation.
    pub(crate) fn logged(&self, to: u64) {
        self.0.lock().logged = to;
    }

    /// Ends recovery: every replayed frame is synced. After an unclean close ids up to the reservation
    /// may have been assigned, so all of them are skipped.
    pub(crate) fn recovered(&self) {
        let mut s = self.0.lock();
        s.next = s.next.max(s.logged);
        s.synced = s.next;
        s.logged = s.next;
    }

    /// (next, reserved) for the snapshot.
    pub(crate) fn positions(&self) -> (u64, u64) {
        let s = self.0.lock();
        (s.next, s.logged.max(s.next))
    }

    /// The next id, if it is below a synced reservation. Reserves ahead when half is used.
    pub(crate) fn take(&self, catalog: &Arc<Catalog>) -> Result<Id> {
        loop {
            let (low, pending) = {
                let mut s = self.0.lock();
                let low = s.next + CHUNK / 2 > s.synced;
                if s.next < s.synced {
                    s.next += 1;
                    let id = s.next - 1;
                    let pending = s.pending.is_some();
                    drop(s);
                    if low && !pending {
                        // Reserved ahead of need; a failure matters only when the ids are used up.
                        let _ = self.reserve(catalog);
                    }
                    return Ok(Id::Taken(id));
                }
                (low, s.pending)
            };
            debug_assert!(low);
            if let Some((ticket, _)) = pending {
                return Ok(Id::After(ticket));
            }
            self.reserve(catalog)?;
        }
    }

    /// Stages a reservation and asks for its sync.
    fn reserve(&self, catalog: &Arc<Catalog>) -> Result<()> {
        let mut s = self.0.lock();
        if s.pending.is_some() {
            return Ok(());
        }
        let to = s.next.max(s.logged) + CHUNK;
        let ticket = stage(catalog.ctx(), to, false, Wait::No)?;
        s.pending = Some((ticket, to));
        drop(s);
        let ids = catalog.ids.clone();
        let done = move |outcome| ids.synced(ticket, to, outcome);
        catalog.ctx().wal.on_level(ticket, Level::Synced, Box::new(done));
        Ok(())
    }

    /// Handles the outcome of a staged reservation.
    pub(crate) fn synced(&self, ticket: Ticket, to: u64, outcome: topics_storage::Result<()>) {
        let mut s = self.0.lock();
        if s.pending.is_some_and(|(t, _)| t == ticket) {
            s.pending = None;
            if outcome.is_ok() {
                s.synced = s.synced.max(to);
            }
        }
    }

    /// Marks a reservation as synced on the caller's thread, which has waited for it: the callback may run
    /// later.
    pub(crate) fn on_synced(&self, ticket: Ticket) {
        let pending = self.0.lock().pending;
        if let Some((t, to)) = pending.filter(|(t, _)| *t == ticket) {
            self.synced(t, to, Ok(()));
        }
    }

    /// Releases reserved ids that were not used, at a clean close.
    pub(crate) fn lower(&self, ctx: &Arc<Ctx>) -> Result<()> {
        let next = {
            let mut s = self.0.lock();
            if s.logged <= s.next {
                return Ok(());
            }
            s.synced = s.next;
            s.next
        };
        stage(ctx, next, true, Wait::Bounded)?;
        Ok(())
    }
}

fn stage(ctx: &Arc<Ctx>, to: u64, lowered: bool, wait: Wait) -> Result<Ticket> {
    let mut head = Vec::new();
    HeadWatermark { reserved_to: to, lowered }.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(ctx, "a reservation of topic ids"));
    let control = Batch::control(head, ctx.base().time.steady(), Level::Written, commit);
    // Lowering belongs to a close, which a full disk must not prevent.
    let batch = Batch { frees_space: lowered, ..control };
    ctx.stage_control(0, batch, wait)
}
