//! The archive: sealed segments are copied into packs of an object store.
//!
//! | module | purpose |
//! |---|---|
//! | `plan` | which segments are to be archived |
//! | `pack` | build → put → read back → name |
//! | `cool` | which archived segments become cold |
//! | `publish` | the catalog of the newest snapshot; packs that nothing needs any more |
//! | `thread` | the thread that runs passes |
//!
//! A pass holds one lock that nothing else takes. It is the only user of the store, so that no other
//! work waits for a request.

mod cool;
mod pack;
mod plan;
mod publish;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_remote::writer::{Claim, Identity, RemoteWriter};
use topics_remote::{RemoteError, Retry};

use self::plan::PendingSegment;
use self::publish::Published;
use self::thread::ArchiveThread;
use crate::checkpoint::{Store, round};
use crate::types::error::{Error, Result};
use crate::types::options::RemoteOptions;

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
    pass: Mutex<PassState>,
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
}

/// The owner of the prefix, and what the catalog in `HEAD` names.
#[derive(Debug)]
struct Owner {
    writer: RemoteWriter,
    published: Published,
}

impl fmt::Debug for Archiver {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Archiver").field("remote", &self.remote).finish_non_exhaustive()
    }
}

/// The error of a request.
fn remote_error(e: RemoteError) -> Error {
    match e {
        RemoteError::Storage(e) => e.into(),
        e => Error::StorageUnavailable { reason: "remote", detail: e.to_string() },
    }
}

impl Archiver {
    /// The archiver of a store with a remote in its options.
    pub(crate) fn new(core: &Arc<Store>) -> Option<Arc<Self>> {
        let remote = core.options.remote.clone()?;
        // One attempt at each request: the next pass is the retry.
        let retry = Retry::once(core.env.clone());
        let (pass, thread) = (Mutex::default(), ArchiveThread::default());
        Some(Arc::new(Self { core: core.clone(), remote, retry, pass, thread }))
    }

    /// One pass: archives every sealed segment that no pack holds, then publishes the catalog.
    pub(crate) fn archive(&self) -> Result<Archived> {
        self.pass(&mut self.pass.lock(), true)
    }

    /// The same if a pack is full, the oldest segment has waited long enough, or a catalog is due.
    pub(crate) fn archive_if_due(&self) -> Result<Archived> {
        self.pass(&mut self.pass.lock(), false)
    }

    fn pass(&self, state: &mut PassState, now: bool) -> Result<Archived> {
        self.check_usable()?;
        let mut out = Archived::default();
        let pending = plan::pending(&self.core, &state.damaged)?;
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
        state.pending_since = None;
        out.published = self.publish(state)?;
        out.cooled = self.cool(state)?;
        Ok(out)
    }

    /// Whether the engine may write, here and to the prefix.
    fn check_usable(&self) -> Result<()> {
        self.core.check_open()?;
        self.core.check_writable()?;
        self.core.check_lock()
    }

    fn is_due(&self, state: &mut PassState, pending: &[PendingSegment]) -> bool {
        let now = self.core.time.mono_ms();
        let since = match pending.is_empty() {
            true => state.pending_since.take(),
            false => Some(*state.pending_since.get_or_insert(now)),
        };
        let waited = since.map_or(0, |since| now.saturating_sub(since));
        let bytes: u64 = pending.iter().map(|p| p.meta.data_len).sum();
        let old =
            !pending.is_empty() && waited >= self.remote.limits.pack_max_wait.as_millis() as u64;
        bytes >= self.remote.limits.pack_bytes || old || self.is_unpublished(state)
    }

    /// Whether the published catalog names other packs than the table.
    fn is_unpublished(&self, state: &PassState) -> bool {
        let packs = self.core.packs.numbers();
        state.owner.as_ref().map_or(!packs.is_empty(), |o| o.published.packs != packs)
    }

    /// Makes this engine the owner of the prefix, once.
    fn claim(&self, state: &mut PassState) -> Result<()> {
        if state.owner.is_some() {
            return Ok(());
        }
        let id = self.core.disk.store_id;
        let (pid, dir) = (std::process::id(), self.core.dir.display());
        let holder = format!("process {pid} with {dir}");
        // Known before the first request, so that no crash leaves a prefix that is not recognised.
        let identity = Identity { store_id: id, timeline: id, holder };
        let store = self.remote.store.clone();
        let writer = RemoteWriter::open(store, self.retry.clone(), &identity, Claim::Own);
        let writer = writer.map_err(remote_error)?;
        let published = Published::read(&*self.remote.store, &self.retry, writer.head())?;
        state.owner = Some(Owner { writer, published });
        Ok(())
    }

    /// A snapshot that names every pack of the table.
    fn name_packs(&self) -> Result<()> {
        self.check_usable()?;
        round::checkpoint(&self.core).map(drop)
    }
}
