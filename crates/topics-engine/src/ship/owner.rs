//! The owner of the prefix, shared by passes of the archive and by rounds.

use std::fmt;
use std::sync::Arc;

use topics_env::sync::Mutex;
use topics_remote::probe::probe;
use topics_remote::writer::{Claim, Identity, ObjectWriter, RemoteWriter, is_present};
use topics_remote::{RemoteError, Retry, read};

use crate::checkpoint::Store;
use crate::types::error::{Error, Result};
use crate::types::options::RemoteOptions;

/// The owner of the prefix. It opens the prefix with the first call that needs it.
pub(crate) struct PrefixOwner {
    core: Arc<Store>,
    pub remote: RemoteOptions,
    /// One attempt at each request: the next pass or round is the retry.
    pub retry: Retry,
    /// Locked during the requests of a round or of a catalog, never during those of a pack.
    state: Mutex<OwnerState>,
}

#[derive(Default)]
struct OwnerState {
    writer: Option<RemoteWriter>,
    /// Whether the prefix is not new, or its server has what the remote needs.
    is_probed: bool,
    /// What the server lacks: it is not probed again.
    unsuitable: Option<RemoteError>,
}

impl fmt::Debug for PrefixOwner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PrefixOwner").field("remote", &self.remote).finish_non_exhaustive()
    }
}

/// The error of a request.
pub(crate) fn remote_error(e: RemoteError) -> Error {
    e.into()
}

impl PrefixOwner {
    /// The owner for a store with a remote in its options.
    pub(crate) fn new(core: &Arc<Store>) -> Option<Arc<Self>> {
        let remote = core.options.remote.clone()?;
        let retry = Retry::once(core.env.clone());
        Some(Arc::new(Self { core: core.clone(), remote, retry, state: Mutex::default() }))
    }

    /// Runs `f` with the writer.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut RemoteWriter) -> Result<R>) -> Result<R> {
        let state = &mut *self.state.lock();
        if state.writer.is_none() {
            state.writer = Some(self.open(state, Claim::Own)?);
        }
        match &mut state.writer {
            Some(writer) => f(writer),
            None => Err(Error::Internal("the prefix was not opened".into())),
        }
    }

    /// Makes this engine the owner of the prefix, although another data directory has it.
    pub(crate) fn take_over(&self) -> Result<()> {
        self.check_usable()?;
        let state = &mut *self.state.lock();
        self.check_packs()?;
        state.writer = None;
        state.writer = Some(self.open(state, Claim::TakeOver)?);
        Ok(())
    }

    fn open(&self, state: &mut OwnerState, claim: Claim) -> Result<RemoteWriter> {
        self.check_server(state)?;
        let (store_id, timeline) = (self.core.disk.store_id, self.core.disk.timeline);
        let (pid, dir) = (std::process::id(), self.core.dir.display());
        let holder = format!("process {pid} with {dir}");
        // Known before the first request, so that no crash leaves a prefix that is not recognised.
        let identity = Identity { store_id, timeline, holder };
        let (store, retry) = (self.remote.store.clone(), self.retry.clone());
        let writer = RemoteWriter::open(store, retry, &identity, claim).map_err(remote_error)?;
        // A prefix that has a catalog of this directory has its packs.
        if writer.head().catalog.is_none() {
            self.check_packs()?;
        }
        Ok(writer)
    }

    /// Refuses a prefix that lacks packs of this directory.
    fn check_packs(&self) -> Result<()> {
        for number in self.core.packs.numbers() {
            let Some(pack) = self.core.packs.get(number) else { continue };
            let object = pack.object();
            let found = is_present(&*self.remote.store, &self.retry, &object);
            if !found.map_err(remote_error)? {
                let detail = format!(
                    "the prefix lacks object {}, which has records of this directory: open it with \
                     the remote that it was archived to",
                    object.key
                );
                return Err(Error::StorageUnavailable { reason: "remote", detail });
            }
        }
        Ok(())
    }

    /// Refuses a new prefix on a server that lacks what the remote needs.
    fn check_server(&self, state: &mut OwnerState) -> Result<()> {
        let store = &*self.remote.store;
        if self.remote.limits.single_writer || state.is_probed {
            return Ok(());
        }
        if let Some(e) = &state.unsuitable {
            return Err(remote_error(e.clone()));
        }
        let is_new = read::head(store, &self.retry).map_err(remote_error)?.is_none();
        let found = match is_new {
            true => probe(store, &self.core.env, 0).require_suitable(),
            false => Ok(()),
        };
        if let Err(e @ RemoteError::Unsuitable { .. }) = &found {
            state.unsuitable = Some(e.clone());
        }
        found.map_err(remote_error)?;
        state.is_probed = true;
        Ok(())
    }

    /// The writer of packs, bitmaps and staged rows.
    pub(crate) fn objects(&self) -> Result<ObjectWriter> {
        self.with(|writer| writer.objects().map_err(remote_error))
    }

    /// Whether another writer has the prefix.
    pub(crate) fn is_fenced(&self) -> bool {
        self.state.lock().writer.as_ref().is_some_and(RemoteWriter::is_fenced)
    }

    /// Says in `HEAD` that nothing is left to ship.
    pub(crate) fn close(&self) -> Result<()> {
        match self.state.lock().writer.take() {
            Some(writer) => writer.close().map_err(remote_error),
            None => Ok(()),
        }
    }

    /// Whether the engine may write, here and to the prefix.
    pub(crate) fn check_usable(&self) -> Result<()> {
        self.core.check_open()?;
        self.core.check_writable()?;
        self.core.check_lock()
    }
}
