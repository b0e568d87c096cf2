//! The archive: what a snapshot names is copied into packs of an object store, and a base says where.
//!
//! | module | purpose |
//! |---|---|
//! | `plan` | which segments are to be archived |
//! | `pack` | build → put → read back → name |
//! | `tails` | packs of what is not an archived segment |
//! | `base` | the base of the newest snapshot |
//! | `garbage` | deletes objects that nothing needs any more |
//! | `cool` | which archived segments become cold |
//! | `thread` | the thread that runs passes |
//!
//! A pass holds one lock that nothing else takes, so that no other work waits for its requests.

mod base;
mod cool;
mod garbage;
#[cfg(test)]
mod garbage_tests;
mod pack;
mod plan;
#[cfg(test)]
mod stalled_tests;
mod tails;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicU64, Ordering};
use topics_remote::Retry;
use topics_remote::format::head::Head;
use topics_remote::format::keys::Serial;
use topics_remote::format::sealed::ObjectKind;
use topics_storage::dir::{Paths, RemoteRecord};

use self::base::Published;
pub(crate) use self::base::{NamedFiles, assemble};
pub(crate) use self::pack::push_segment;
pub(crate) use self::plan::PendingSegment;
pub(crate) use self::tails::{OtherFiles, PutFiles, Wanted, add_file};
use self::thread::ArchiveThread;
use crate::catalog::unloaded::CatalogEntry;
use crate::checkpoint::{Store, round};
use crate::ship::Shipper;
use crate::ship::owner::{PrefixOwner, User};
use crate::types::error::{Error, Result};
use crate::types::options::RemoteOptions;
use crate::types::requests::{ArchiveGauges, RemoteState};

/// The outcome of a pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Archived {
    /// Packs of sealed segments that were written.
    pub packs: u64,
    /// Segments in them.
    pub segments: u64,
    /// Bytes of all packs that were written.
    pub bytes: u64,
    /// Files that were left out because they are damaged or cannot be read.
    pub damaged: u64,
    /// Whether a base was published.
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
    shipper: Arc<Shipper>,
    pass: Mutex<PassState>,
    /// Packs that were put.
    read_back: AtomicU64,
    pub gauges: ArchiveGauges,
    thread: ArchiveThread,
}

/// Bytes of the log after which the next base is due.
const BASE_BYTES: u64 = 256 << 20;

/// The state between passes.
#[derive(Debug, Default)]
struct PassState {
    owner: Option<Owner>,
    /// File numbers of segments that are damaged or cannot be read, and until when (monotonic ms).
    skipped: HashMap<u64, u64>,
    /// When the oldest pending segment was first found (monotonic ms).
    pending_since: Option<u64>,
    /// Bytes of the pending segments.
    pending_bytes: u64,
    put: PutFiles,
    /// When the last base of this process was published (monotonic ms), and the bytes logged before it.
    based: Option<(u64, u64)>,
}

/// The owner of the prefix, and what the base in `HEAD` names.
#[derive(Debug)]
struct Owner {
    /// HEAD when the prefix was opened: its epoch is this engine's.
    head: Head,
    published: Published,
    /// What earlier epochs have put and no base knows of; `None`: it was not looked for yet.
    leftover: Option<Vec<(ObjectKind, Serial)>>,
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
    store.base().packs.remove(&store.base().packs.serials());
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
        let (prefix, shipper) = (prefix?, shipper?);
        Some(Arc::new(Self {
            store: store.clone(),
            remote: prefix.remote.clone(),
            retry: prefix.retry.clone(),
            prefix: prefix.clone(),
            shipper: shipper.clone(),
            pass: Mutex::default(),
            read_back: AtomicU64::new(0),
            gauges: ArchiveGauges::default(),
            thread: ArchiveThread::default(),
        }))
    }

    /// The state of the remote, and why it is not a better one.
    pub(crate) fn condition(&self) -> (RemoteState, Option<String>) {
        self.prefix.condition()
    }

    /// One pass: archives every sealed segment that no pack holds, then publishes a base if anything has
    /// changed since the last one.
    pub(crate) fn archive(&self) -> Result<Archived> {
        self.measured(&mut self.pass.lock(), |state| self.pass(state, true))
    }

    /// The same also if nothing has changed.
    pub(crate) fn archive_last(&self) -> Result<Archived> {
        self.measured(&mut self.pass.lock(), |state| {
            state.based = None;
            self.pass(state, true)
        })
    }

    /// One pass that publishes a base only if one is due. If segments fill a pack, they are archived.
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
        self.plan(state)?;
        let is_base = if now { self.has_changed(state) } else { self.is_base_due(state) };
        let is_full = state.pending_bytes >= self.remote.limits.pack_bytes;
        if !(is_base || is_full || self.has_local()) {
            return Ok(out);
        }
        let done = self.work(state, is_base, &mut out);
        self.prefix.noted(User::Archive, done).map(|()| out)
    }

    fn work(&self, state: &mut PassState, is_base: bool, out: &mut Archived) -> Result<()> {
        self.claim(state)?;
        let has_base = state.owner.as_ref().is_some_and(|o| o.published.base.is_some());
        match is_base || !has_base {
            true => self.publish(state, out)?,
            false => self.pack_pending(state, self.remote.limits.pack_bytes, out)?,
        }
        self.drop_local(state)?;
        out.cooled = self.cool(state)?;
        Ok(())
    }

    /// The segments that are to be archived.
    fn plan(&self, state: &mut PassState) -> Result<Vec<PendingSegment>> {
        let now = self.store.base().time.mono_ms();
        state.skipped.retain(|_, until| *until > now);
        let pending = plan::pending(self.store.catalog(), &state.skipped)?;
        state.pending_bytes = pending.iter().map(|p| p.meta.data_len).sum();
        match pending.is_empty() {
            true => state.pending_since = None,
            false => _ = state.pending_since.get_or_insert(now),
        }
        Ok(pending)
    }

    /// Archives segments while at least `min` bytes of them are pending.
    fn pack_pending(&self, state: &mut PassState, min: u64, out: &mut Archived) -> Result<()> {
        let pending = self.plan(state)?;
        let mut rest = &pending[..];
        while !rest.is_empty() && state.pending_bytes >= min {
            self.check_usable()?;
            let tried = self.pack(state, rest, out)?;
            let (done, left) = rest.split_at(tried);
            state.pending_bytes -= done.iter().map(|p| p.meta.data_len).sum::<u64>();
            rest = left;
        }
        if rest.is_empty() {
            state.pending_since = None;
        }
        Ok(())
    }

    /// Whether the engine may write, here and to the prefix.
    fn check_usable(&self) -> Result<()> {
        self.prefix.check_usable()
    }

    /// Whether anything has changed since the last base of this process.
    fn has_changed(&self, state: &PassState) -> bool {
        let wal = &self.store.ctx().wal;
        let Some((_, logged)) = state.based else { return true };
        let packs = &state.owner.as_ref().map(|o| &o.published.packs);
        wal.counters().bytes != logged || *packs != Some(&self.store.base().packs.identities())
    }

    /// Whether a base is due: the first one of a process immediately, because a process before it may have
    /// ended without one; then from time to time, after many bytes, and when the rounds have none.
    fn is_base_due(&self, state: &PassState) -> bool {
        let wal = &self.store.ctx().wal;
        let Some((at, logged)) = state.based else { return true };
        let waited = self.store.base().time.mono_ms().saturating_sub(at);
        let is_late = waited >= self.remote.limits.base_interval.as_millis() as u64;
        let bytes = wal.counters().bytes.saturating_sub(logged);
        self.shipper.is_base_due() || bytes >= BASE_BYTES || (is_late && self.has_changed(state))
    }

    /// The same, for the thread.
    fn is_due(&self) -> bool {
        self.is_base_due(&self.pass.lock())
    }

    /// Whether `.data` of cold segments waits for a look at its objects.
    fn has_local(&self) -> bool {
        let local = self.store.disk.checkpoints.local_cold(false);
        local.is_ok_and(|local| !local.is_empty())
    }

    /// Makes this engine the owner of the prefix, once.
    fn claim(&self, state: &mut PassState) -> Result<()> {
        if state.owner.is_some() {
            return Ok(());
        }
        let head = self.prefix.with(|writer| Ok(writer.head().clone()))?;
        let published = self.read_published(&head, &mut state.put)?;
        self.gauges.dead.store(published.dead.len() as u64, Ordering::Relaxed);
        state.owner = Some(Owner { head, published, leftover: None, is_searched: false });
        Ok(())
    }
}
