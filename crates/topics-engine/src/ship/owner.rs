//! The owner of the prefix, shared by passes of the archive and by rounds.

use std::fmt;
use std::path::Path;
use std::sync::Arc;

use topics_env::Env;
use topics_env::sync::Mutex;
use topics_remote::claim::{Claimant, DirectoryRecord};
use topics_remote::format::sealed::ObjectHeader;
use topics_remote::probe::probe;
use topics_remote::writer::{PackStore, RemoteWriter};
use topics_remote::{RemoteError, Retry};
use topics_storage::dir::Paths;

use crate::checkpoint::Store;
use crate::tier::{ArchivedPack, lost};
use crate::types::error::{Error, Result};
use crate::types::options::RemoteOptions;
use crate::types::requests::RemoteState;

/// How long a refusal holds before the prefix is looked at again, ms. It is logged each time.
const REFUSED_MS: u64 = 60_000;

/// The owner of the prefix. It opens the prefix with the first call that needs it.
pub(crate) struct PrefixOwner {
    store: Arc<Store>,
    pub remote: RemoteOptions,
    /// One attempt at each request: the next pass or round is the retry.
    pub retry: Retry,
    /// Locked during the requests of a round or of a base, never during those of a pack.
    state: Mutex<OwnerState>,
    /// Never locked during a request.
    status: Mutex<Status>,
}

/// Who uses the prefix.
#[derive(Clone, Copy, Debug)]
pub(crate) enum User {
    /// Passes of the archive.
    Archive,
    /// Rounds.
    Ship,
}

/// What came of the last use of the prefix by each of its users.
#[derive(Debug, Default)]
struct Status {
    /// Why neither user can write to it.
    blocked: Option<RemoteState>,
    of: [RemoteState; 2],
    /// The error of the last use by each, none after a success.
    errors: [Option<String>; 2],
    /// Why the chain of rounds was broken, until a base is published after it.
    broken: Option<String>,
}

#[derive(Default)]
struct OwnerState {
    writer: Option<RemoteWriter>,
    /// Why the prefix must not be written to, and when that was found (monotonic ms).
    refused: Option<(Error, u64)>,
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

/// This process, as it says in `HEAD` who it is.
pub(crate) fn holder(env: &Env, dir: &Path) -> String {
    format!("process {} with {}", env.process_id(), dir.display())
}

impl PrefixOwner {
    /// The owner for a store with a remote in its options.
    pub(crate) fn new(store: &Arc<Store>) -> Option<Arc<Self>> {
        let remote = store.base().options.remote.clone()?;
        let retry = Retry::once(store.base().env.clone());
        let (store, state, status) = (store.clone(), Mutex::default(), Mutex::default());
        Some(Arc::new(Self { store, remote, retry, state, status }))
    }

    /// Runs `f` with the writer.
    pub(crate) fn with<R>(&self, f: impl FnOnce(&mut RemoteWriter) -> Result<R>) -> Result<R> {
        let state = &mut *self.state.lock();
        if state.writer.is_none() {
            state.writer = Some(self.open(state)?);
        }
        let Some(writer) = &mut state.writer else {
            return Err(Error::Internal("the prefix was not opened".into()));
        };
        let done = f(writer);
        let is_fenced = writer.is_fenced();
        self.status.lock().blocked = is_fenced.then_some(RemoteState::Fenced);
        done
    }

    /// The state of the remote, and why it is not a better one: the worse one, if its users have come to
    /// different ones.
    pub(crate) fn condition(&self) -> (RemoteState, Option<String>) {
        let status = self.status.lock();
        let [a, b] = status.of;
        let state = a.max(b);
        let mut of_state = status.of.iter().zip(&status.errors).filter(|(s, _)| **s == state);
        let error = of_state.find_map(|(_, e)| e.clone());
        match &status.broken {
            Some(why) if state < RemoteState::Broken => {
                let error = error.map(|e| format!(". The store: {e}")).unwrap_or_default();
                (RemoteState::Broken, Some(format!("{why}{error}")))
            }
            _ => (state, error),
        }
    }

    /// Notes that the chain of rounds was broken.
    pub(crate) fn chain_broken(&self, why: &str) {
        self.status.lock().broken = Some(why.to_owned());
    }

    /// Notes that a base was published for the chain of rounds.
    pub(crate) fn chain_whole(&self) {
        self.status.lock().broken = None;
    }

    /// Notes what came of a pass or a round, and returns it.
    pub(crate) fn noted<T>(&self, user: User, done: Result<T>) -> Result<T> {
        let mut status = self.status.lock();
        let blocked = status.blocked;
        status.errors[user as usize] = done.as_ref().err().map(ToString::to_string);
        status.of[user as usize] = match &done {
            Ok(_) => RemoteState::Ok,
            Err(_) => blocked.unwrap_or(RemoteState::Failing),
        };
        done
    }

    fn open(&self, state: &mut OwnerState) -> Result<RemoteWriter> {
        let now = self.store.base().time.mono_ms();
        if let Some((e, since)) = &state.refused
            && now < since + REFUSED_MS
        {
            return Err(e.clone());
        }
        if let Some(e) = &state.unsuitable {
            return Err(remote_error(e.clone()));
        }
        let claimant = Claimant {
            store_id: self.store.disk.store_id,
            holder: holder(&self.store.base().env, &self.store.base().dir),
            has_packs: self.store.base().packs.len() > 0,
            record: Arc::new(DirectoryRecord {
                env: self.store.base().env.clone(),
                paths: Paths::new(&self.store.base().dir),
            }),
        };
        // What an earlier look at the prefix showed may have been another one.
        self.store.base().packs.forget_seen();
        let (store, retry) = (self.remote.store.clone(), self.retry.clone());
        let opened = RemoteWriter::open(store, retry, &claimant, &|| self.check_server());
        opened.map_err(|e| {
            let blocked = match &e {
                RemoteError::NotOurs(_) => Some(RemoteState::Refused),
                RemoteError::Unsuitable { .. } => {
                    state.unsuitable = Some(e.clone());
                    Some(RemoteState::Unsuitable)
                }
                _ => None,
            };
            let error = remote_error(e);
            self.status.lock().blocked = blocked;
            if blocked == Some(RemoteState::Refused) {
                log::warn!(
                    "remote: {error}. Nothing is written to it, and no segment becomes cold"
                );
                state.refused = Some((error.clone(), now));
            }
            error
        })
    }

    /// Whether a failure was a refusal, which is logged already.
    pub(crate) fn is_refused(&self) -> bool {
        self.status.lock().blocked == Some(RemoteState::Refused)
    }

    /// Refuses a server that lacks what the remote needs.
    fn check_server(&self) -> topics_remote::Result<()> {
        match self.remote.limits.single_writer {
            true => Ok(()),
            false => probe(&*self.remote.store, &self.store.base().env, 0).require_suitable(),
        }
    }

    /// Looks at a pack in the store: its length, its footer and its directory. Until then the local
    /// copies of its segments stay, also if it is missing or another one, which is logged.
    pub(crate) fn look_at(&self, pack: &ArchivedPack) -> Result<()> {
        let (store, retry) = (&*self.remote.store, &self.retry);
        match lost(store, retry, pack)? {
            None => self.store.base().packs.saw(pack.serial),
            Some(why) if self.store.base().packs.missed(pack.serial) => {
                log::error!("the local copies of archived segments stay: {why}");
            }
            Some(_) => {}
        }
        Ok(())
    }

    /// What puts packs.
    pub(crate) fn packs(&self) -> Result<PackStore> {
        self.with(|writer| writer.packs().map_err(remote_error))
    }

    /// The header of the next pack.
    pub(crate) fn next_pack(&self) -> Result<ObjectHeader> {
        self.with(|writer| writer.next_pack().map_err(remote_error))
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
        self.store.ctx().check_open()?;
        self.store.ctx().check_writable()?;
        self.store.ctx().check_lock()
    }
}
