//! The archive: sealed segments are copied into packs of an object store.
//!
//! | module | purpose |
//! |---|---|
//! | `plan` | which segments are to be archived |
//! | `pack` | build → put → read back → name |
//! | `cool` | which archived segments become cold |
//! | `publish` | the catalog of the newest snapshot; packs that nothing needs any more |
//! | `tails` | packs of the segments that are not archived, for a catalog that is the base of a restore |
//! | `sweep` | deletes objects that nothing needs any more |
//! | `thread` | the thread that runs passes |
//!
//! A pass holds one lock that nothing else takes. It is the only user of the store, so that no other
//! work waits for a request.

mod cool;
mod pack;
mod plan;
mod publish;
mod sweep;
#[cfg(test)]
mod sweep_tests;
mod tails;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::Ordering;
use topics_remote::Retry;
use topics_remote::format::head::Head;

use self::plan::PendingSegment;
use self::publish::Published;
pub use self::sweep::Swept;
use self::tails::Tails;
use self::thread::ArchiveThread;
use crate::checkpoint::{Store, round};
use crate::ship::Shipper;
use crate::ship::owner::{PrefixOwner, remote_error};
use crate::types::error::Result;
use crate::types::options::RemoteOptions;
use crate::types::requests::ArchiveGauges;

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    /// Packs that were written.
    pub packs: u64,
    /// Segments in them.
    pub segments: u64,
    /// Bytes of the packs.
    pub bytes: u64,
    /// Segments that were left out because a record in them is damaged.
    pub damaged: u64,
    /// Whether a catalog was published.
    pub published: bool,
    /// Segments that became cold.
    pub cooled: u64,
}

/// Archives the segments of a store.
pub(crate) struct Archiver {
    core: Arc<Store>,
    remote: RemoteOptions,
    retry: Retry,
    prefix: Arc<PrefixOwner>,
    /// With continuous backup.
    shipper: Option<Arc<Shipper>>,
    pass: Mutex<PassState>,
    pub gauges: ArchiveGauges,
    thread: ArchiveThread,
}

/// The state between passes.
#[derive(Debug, Default)]
struct PassState {
    owner: Option<Owner>,
    /// File numbers of segments with a damaged record.
    damaged: HashSet<u64>,
    /// Packs that were read back.
    read_back: u64,
    /// When the oldest pending segment was first found (monotonic ms).
    pending_since: Option<u64>,
    /// The packs of segments that are not archived.
    tails: Tails,
    /// Bytes of the pending segments.
    pending_bytes: u64,
}

/// The owner of the prefix, and what the catalog in `HEAD` names.
#[derive(Debug)]
struct Owner {
    /// HEAD when the prefix was opened: its epoch is this engine's.
    head: Head,
    published: Published,
    /// When the next sweep is due (monotonic ms).
    next_sweep: u64,
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl Archiver {
    /// The archiver of a store with a remote in its options.
    pub(crate) fn new(
        core: &Arc<Store>,
        prefix: Option<&Arc<PrefixOwner>>,
        shipper: Option<&Arc<Shipper>>,
    ) -> Option<Arc<Self>> {
        let (prefix, shipper) = (prefix?.clone(), shipper.cloned());
        let (remote, retry) = (prefix.remote.clone(), prefix.retry.clone());
        let (pass, thread) = (Mutex::default(), ArchiveThread::default());
        let (core, gauges) = (core.clone(), ArchiveGauges::default());
        Some(Arc::new(Self { core, remote, retry, prefix, shipper, pass, gauges, thread }))
    }

    /// Makes this engine the owner of the prefix, although another data directory has it.
    pub(crate) fn take_over(&self) -> Result<()> {
        let state = &mut self.pass.lock();
        self.prefix.take_over()?;
        if let Some(shipper) = &self.shipper {
            shipper.begin_again();
        }
        state.owner = None;
        self.claim(state)
    }

    /// One pass: archives every sealed segment that no pack holds, then publishes the catalog.
    pub(crate) fn archive(&self) -> Result<Archived> {
        self.measured(&mut self.pass.lock(), |state| self.pass(state, true))
    }

    /// The same if a pack is full, the oldest segment has waited long enough, or a catalog is due.
    pub(crate) fn archive_if_due(&self) -> Result<Archived> {
        self.measured(&mut self.pass.lock(), |state| self.pass(state, false))
    }

    /// Runs a step, and sets the gauges after it.
    fn measured<T>(
        &self,
        state: &mut PassState,
        step: impl FnOnce(&mut PassState) -> Result<T>,
    ) -> Result<T> {
        let done = step(state);
        let now = self.core.time.mono_ms();
        let waited = state.pending_since.map_or(0, |since| now.saturating_sub(since));
        let is_fenced = self.prefix.is_fenced();
        self.gauges.lag_bytes.store(state.pending_bytes, Ordering::Relaxed);
        self.gauges.lag_ms.store(waited, Ordering::Relaxed);
        self.gauges.is_fenced.store(is_fenced, Ordering::Relaxed);
        done
    }

    fn pass(&self, state: &mut PassState, now: bool) -> Result<Archived> {
        self.check_usable()?;
        let mut out = Archived::default();
        let pending = plan::pending(&self.core, &state.damaged)?;
        state.pending_bytes = pending.iter().map(|p| p.meta.data_len).sum();
        if !now && !self.is_due(state, &pending) {
            return Ok(out);
        }
        self.claim(state)?;
        let mut rest = &pending[..];
        while !rest.is_empty() {
            self.check_usable()?;
            let tried = self.pack(state, rest, &mut out)?;
            rest = &rest[tried..];
        }
        (state.pending_since, state.pending_bytes) = (None, 0);
        out.published = self.publish(state)?;
        if self.remote.mode.tiers() {
            out.cooled = self.cool(state)?;
        }
        Ok(out)
    }

    /// Whether the engine may write, here and to the prefix.
    fn check_usable(&self) -> Result<()> {
        self.prefix.check_usable()
    }

    fn is_due(&self, state: &mut PassState, pending: &[PendingSegment]) -> bool {
        let now = self.core.time.mono_ms();
        let since = match pending.is_empty() {
            true => state.pending_since.take(),
            false => Some(*state.pending_since.get_or_insert(now)),
        };
        let waited = since.map_or(0, |since| now.saturating_sub(since));
        let old =
            !pending.is_empty() && waited >= self.remote.limits.pack_max_wait.as_millis() as u64;
        state.pending_bytes >= self.remote.limits.pack_bytes || old || self.is_unpublished(state)
    }

    /// Whether a catalog is due: the published one names other packs than the table, or it is to be the
    /// base of later rounds.
    fn is_unpublished(&self, state: &PassState) -> bool {
        let packs = self.core.packs.numbers();
        let owner = state.owner.as_ref();
        owner.map_or(!packs.is_empty(), |o| o.published.packs != packs) || self.is_base_due()
    }

    fn is_base_due(&self) -> bool {
        self.shipper.as_ref().is_some_and(|s| s.is_base_due())
    }

    /// Makes this engine the owner of the prefix, once.
    fn claim(&self, state: &mut PassState) -> Result<()> {
        if state.owner.is_some() {
            return Ok(());
        }
        let head = self.prefix.with(|writer| Ok(writer.head().clone()))?;
        let published = self.read_published(&head)?;
        let next_sweep = sweep::first_sweep(self.core.time.mono_ms());
        state.owner = Some(Owner { head, published, next_sweep });
        Ok(())
    }

    /// A snapshot that names every pack of the table.
    fn name_packs(&self) -> Result<()> {
        self.check_usable()?;
        round::checkpoint(&self.core).map(drop)
    }
}
