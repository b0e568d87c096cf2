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

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::Ordering;
use topics_remote::Retry;
use topics_remote::format::head::Head;
use topics_storage::dir::{Paths, RemoteRecord};

use self::plan::PendingSegment;
use self::publish::Published;
pub use self::sweep::Swept;
use self::tails::Tails;
use self::thread::ArchiveThread;
use crate::catalog::unloaded::CatalogEntry;
use crate::checkpoint::{Store, round};
use crate::ship::Shipper;
use crate::ship::owner::{PrefixOwner, User, remote_error};
use crate::types::error::{Error, Result};
use crate::types::options::RemoteOptions;
use crate::types::requests::{ArchiveGauges, RemoteState};

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    /// Packs that were written.
    pub packs: u64,
    /// Segments in them.
    pub segments: u64,
    /// Bytes of the packs.
    pub bytes: u64,
    /// Segments that were left out because they are damaged or cannot be read.
    pub damaged: u64,
    /// Whether a catalog was published.
    pub published: bool,
    /// Segments that became cold.
    pub cooled: u64,
}

/// Archives the segments of a store.
pub(crate) struct Archiver {
    store: Arc<Store>,
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
    /// File numbers of segments that are damaged or cannot be read, and until when (monotonic ms).
    skipped: HashMap<u64, u64>,
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
    /// Whether the folders were searched for `.data` of cold segments.
    is_searched: bool,
}

/// Forgets the prefix of a directory whose records are all in its files.
pub(crate) fn forget(store: &Arc<Store>) -> Result<()> {
    let mut cold = 0;
    store.catalog().every(|entry| {
        cold += match entry {
            CatalogEntry::Loaded(topic) => {
                topic.state.read().index.segs.iter().filter(|s| s.meta.cold).count()
            }
            CatalogEntry::Unloaded(unloaded) => {
                unloaded.topic_header()?.segments.iter().filter(|m| m.cold).count()
            }
        };
        Ok(())
    })?;
    if cold > 0 {
        return Err(Error::InvalidRequest(format!(
            "the records of {cold} segments may be in the remote only: `topics backup`, with the \
             remote set, makes a copy of the directory that has them"
        )));
    }
    store.base().packs.remove(&store.base().packs.numbers());
    store.replaced.store(true, Ordering::Relaxed);
    // Neither kept snapshot names a pack.
    for _ in 0..2 {
        round::checkpoint(store)?;
        store.replaced.store(true, Ordering::Relaxed);
    }
    Ok(RemoteRecord::remove(&store.base().env, &Paths::new(&store.base().dir))?)
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver").field("remote", &self.remote).finish_non_exhaustive()
    }
}

impl Archiver {
    /// The archiver of a store with a remote in its options.
    pub(crate) fn new(
        store: &Arc<Store>,
        prefix: Option<&Arc<PrefixOwner>>,
        shipper: Option<&Arc<Shipper>>,
    ) -> Option<Arc<Self>> {
        let (prefix, shipper) = (prefix?.clone(), shipper.cloned());
        let (remote, retry) = (prefix.remote.clone(), prefix.retry.clone());
        let (pass, thread) = (Mutex::default(), ArchiveThread::default());
        let (store, gauges) = (store.clone(), ArchiveGauges::default());
        Some(Arc::new(Self { store, remote, retry, prefix, shipper, pass, gauges, thread }))
    }

    /// The state of the remote.
    pub(crate) fn state(&self) -> RemoteState {
        self.prefix.state()
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
        let now = self.store.base().time.mono_ms();
        let waited = state.pending_since.map_or(0, |since| now.saturating_sub(since));
        self.gauges.lag_bytes.store(state.pending_bytes, Ordering::Relaxed);
        self.gauges.lag_ms.store(waited, Ordering::Relaxed);
        done
    }

    fn pass(&self, state: &mut PassState, now: bool) -> Result<Archived> {
        self.check_usable()?;
        let mut out = Archived::default();
        let now_ms = self.store.base().time.mono_ms();
        state.skipped.retain(|_, until| *until > now_ms);
        let pending = plan::pending(self.store.catalog(), &state.skipped)?;
        state.pending_bytes = pending.iter().map(|p| p.meta.data_len).sum();
        if !now && !self.is_due(state, &pending) {
            return Ok(out);
        }
        let done = self.work(state, &pending, &mut out);
        self.prefix.noted(User::Archive, done).map(|()| out)
    }

    fn work(
        &self,
        state: &mut PassState,
        pending: &[PendingSegment],
        out: &mut Archived,
    ) -> Result<()> {
        self.claim(state)?;
        let mut rest = pending;
        while !rest.is_empty() {
            self.check_usable()?;
            let tried = self.pack(state, rest, out)?;
            rest = &rest[tried..];
        }
        (state.pending_since, state.pending_bytes) = (None, 0);
        out.published = self.publish(state)?;
        if self.remote.mode.tiers() {
            self.drop_local(state)?;
            out.cooled = self.cool(state)?;
        }
        Ok(())
    }

    /// Whether the engine may write, here and to the prefix.
    fn check_usable(&self) -> Result<()> {
        self.prefix.check_usable()
    }

    fn is_due(&self, state: &mut PassState, pending: &[PendingSegment]) -> bool {
        let now = self.store.base().time.mono_ms();
        let since = match pending.is_empty() {
            true => state.pending_since.take(),
            false => Some(*state.pending_since.get_or_insert(now)),
        };
        let waited = since.map_or(0, |since| now.saturating_sub(since));
        let old =
            !pending.is_empty() && waited >= self.remote.limits.pack_max_wait.as_millis() as u64;
        let is_full = state.pending_bytes >= self.remote.limits.pack_bytes;
        is_full || old || self.is_unpublished(state) || self.has_local()
    }

    /// Whether a catalog is due: the published one names other packs than the table, or it is to be the
    /// base of later rounds.
    fn is_unpublished(&self, state: &PassState) -> bool {
        let packs = self.store.base().packs.identities();
        let owner = state.owner.as_ref();
        owner.map_or(!packs.is_empty(), |o| o.published.packs != packs) || self.is_base_due()
    }

    /// Whether `.data` of cold segments waits for a look at its objects.
    fn has_local(&self) -> bool {
        let local = self.store.disk.checkpoints.local_cold(false);
        self.remote.mode.tiers() && local.is_ok_and(|local| !local.is_empty())
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
        let next_sweep = sweep::first_sweep(self.store.base().time.mono_ms());
        state.owner = Some(Owner { head, published, next_sweep, is_searched: false });
        Ok(())
    }

    /// A snapshot that names every pack of the table.
    fn name_packs(&self) -> Result<()> {
        self.check_usable()?;
        round::checkpoint(&self.store).map(drop)
    }
}
