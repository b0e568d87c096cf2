//! Reads of cold segments: blocks of packs in memory.
//!
//! A read takes its bytes from blocks. It requests the ones that are missing (`admission.rs`), one request for
//! adjacent ones, and returns the fetch that its caller waits for or is called by. Threads make the requests
//! (`fetch.rs`). An engine without threads makes them in [`ColdTier::run`].

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_env::sync::atomic::{AtomicBool, Ordering};
use topics_env::sync::{Condvar, Mutex};
use topics_storage::StorageError;
use topics_storage::segment::{ColdFiles, Fetch, FileKind};

use super::blocks::{BLOCK, Block, BlockRead, ReadAhead, State};
use super::{ArchivedPack, PackTable};
use crate::types::metrics::Counter;
use crate::types::options::RemoteOptions;

pub(super) type Result<T> = std::result::Result<T, StorageError>;

/// What the tier counts.
#[derive(Debug, Default)]
pub(crate) struct ColdCounters {
    /// Requests.
    pub fetches: Counter,
    pub bytes: Counter,
    /// Requests that failed.
    pub failures: Counter,
    /// Blocks that a read found in memory.
    pub hits: Counter,
    /// Blocks that were requested.
    pub misses: Counter,
    /// Reads that waited for memory.
    pub memory_waits: Counter,
}

/// The cold segments of an engine.
pub(crate) struct ColdTier {
    pub(super) env: Env,
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) packs: Arc<PackTable>,
    pub(super) timeout: Duration,
    pub(super) memory_bytes: u64,
    has_threads: AtomicBool,
    /// Reads wait for the store: no lock is held, because the engine is being opened.
    is_opening: AtomicBool,
    /// Whether a read of an `.idx`, `.tags` or `.attrs` waits.
    pub(super) waits_for_sides: AtomicBool,
    pub(super) state: Mutex<State>,
    pub(super) queued: Condvar,
    pub(super) closing: Condvar,
    pub(super) ended: Condvar,
    pub counters: ColdCounters,
}

impl fmt::Debug for ColdTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ColdTier").field("store", &self.store).finish_non_exhaustive()
    }
}

pub(super) fn unreachable(detail: String) -> StorageError {
    StorageError::Unreachable { detail }
}

impl ColdTier {
    pub(crate) fn new(
        env: &Env,
        remote: &RemoteOptions,
        packs: Arc<PackTable>,
        has_threads: bool,
    ) -> Arc<Self> {
        Arc::new(Self {
            env: env.clone(),
            store: remote.store.clone(),
            packs,
            timeout: remote.limits.cold_timeout,
            memory_bytes: remote.limits.cold_memory_bytes,
            has_threads: AtomicBool::new(has_threads),
            is_opening: AtomicBool::new(true),
            waits_for_sides: AtomicBool::new(false),
            state: Mutex::default(),
            queued: Condvar::new(),
            closing: Condvar::new(),
            ended: Condvar::new(),
            counters: ColdCounters::default(),
        })
    }

    pub(super) fn has_threads(&self) -> bool {
        self.has_threads.load(Ordering::Relaxed)
    }

    /// Fetches on threads from now on.
    pub(crate) fn use_threads(&self) {
        self.has_threads.store(true, Ordering::Relaxed);
    }

    /// The engine is open: from now on a read that needs a fetch returns it.
    pub(crate) fn opened(&self) {
        self.is_opening.store(false, Ordering::Relaxed);
    }

    /// From now on a read of an `.idx`, `.tags` or `.attrs` waits: for an engine whose directory lacks them.
    pub(crate) fn wait_for_sides(&self) {
        self.waits_for_sides.store(true, Ordering::Relaxed);
    }

    /// Waits until a fetch has ended. An engine without threads fetches here.
    pub(crate) fn wait(&self, fetch: &Fetch) -> Result<()> {
        if !self.has_threads() {
            self.run();
        }
        fetch.wait()
    }

    /// Fetches everything that is queued, if the engine has no threads for it.
    pub(crate) fn run(&self) {
        if self.has_threads() {
            return;
        }
        loop {
            let mut state = self.state.lock();
            let Some(job) = self.next_job(&mut state) else { return };
            drop(state);
            self.fetch(&job);
        }
    }

    /// The pack that holds a file of a segment, and offset and length there.
    fn locate(&self, file_no: u64, kind: FileKind) -> Result<(Arc<ArchivedPack>, (u64, u64))> {
        let Some((pack, segment)) = self.packs.find(file_no) else {
            return Err(unreachable(format!(
                "no pack holds the cold segment {file_no:016x}: run `topics verify`"
            )));
        };
        Ok((pack, segment.part(kind)))
    }
}

#[cfg(test)]
impl ColdTier {
    /// Drops every block.
    pub(crate) fn forget(&self) {
        let mut state = self.state.lock();
        assert!(state.active.is_empty() && state.queue.is_empty());
        state.blocks.clear();
        state.distrusted.clear();
        state.present_bytes = 0;
    }

    /// Whether no fetch is queued or runs.
    pub(crate) fn is_idle(&self) -> bool {
        let state = self.state.lock();
        state.active.is_empty() && state.queue.is_empty()
    }

    /// Bytes of memory in use.
    pub(crate) fn memory(&self) -> u64 {
        let state = self.state.lock();
        state.present_bytes + state.requested_bytes
    }
}

/// A reference to the tier that starts its threads.
#[derive(Debug)]
pub(crate) struct ColdReader(pub Arc<ColdTier>);

impl ColdReader {
    /// Reads what is in memory.
    fn read_present(&self, file_no: u64, kind: FileKind, at: u64, buf: &mut [u8]) -> Result<()> {
        let (pack, (offset, len)) = self.0.locate(file_no, kind)?;
        let n = buf.len().min(usize::try_from(len.saturating_sub(at)).unwrap_or(usize::MAX));
        buf[n..].fill(0);
        if n == 0 {
            return Ok(());
        }
        let begin = offset + at;
        let (first, last) = (begin / BLOCK, (begin + n as u64 - 1) / BLOCK);
        let end = (offset + len - 1) / BLOCK;
        let ahead = (kind == FileKind::Data).then_some(ReadAhead { segment: file_no, end });
        let mut state = self.0.state.lock();
        if kind == FileKind::Idx {
            state.with_index.insert(file_no);
        }
        let now = self.0.env.clock.mono_ns();
        let is_end = at + n as u64 >= len;
        let Some(found) = state.take(pack.serial, first..=last, (now, is_end)) else {
            let fetch = self.0.request(&mut state, BlockRead { pack, blocks: first..=last, ahead });
            drop(state);
            self.0.start_thread();
            return Err(StorageError::Fetching(fetch?));
        };
        let queued = state.queue.len();
        if let Some(ahead) = ahead {
            self.0.request_ahead(&mut state, &pack, (last, is_end), ahead);
            if is_end {
                state.sequential.remove(&file_no);
            }
        }
        let has_requested = state.queue.len() > queued;
        drop(state);
        if has_requested {
            self.0.start_thread();
        }
        self.0.counters.hits.add(found.len() as u64);
        let mut done = 0;
        for (block, bytes) in (first..).zip(&found) {
            let from = (begin + done as u64 - block * BLOCK) as usize;
            let part = bytes.get(from..).unwrap_or_default();
            let part = &part[..part.len().min(n - done)];
            buf[done..done + part.len()].copy_from_slice(part);
            done += part.len();
        }
        Ok(())
    }
}

/// How often a read that waits fetches again what was evicted meanwhile.
const WAITING_FETCHES: usize = 16;

impl ColdFiles for ColdReader {
    fn read(&self, file_no: u64, kind: FileKind, at: u64, buf: &mut [u8]) -> Result<()> {
        let is_opening = || self.0.is_opening.load(Ordering::Relaxed);
        let waits = || kind != FileKind::Data && self.0.waits_for_sides.load(Ordering::Relaxed);
        for _ in 0..WAITING_FETCHES {
            match self.read_present(file_no, kind, at, buf) {
                Err(StorageError::Fetching(fetch)) if is_opening() || waits() => {
                    self.0.wait(&fetch)?;
                }
                done => return done,
            }
        }
        self.read_present(file_no, kind, at, buf)
    }

    fn len(&self, file_no: u64, kind: FileKind) -> Result<u64> {
        self.0.locate(file_no, kind).map(|(_, (_, len))| len)
    }

    fn is_seen(&self, file_no: u64) -> bool {
        self.0.packs.is_segment_seen(file_no)
    }

    fn distrust(&self, file_no: u64, kind: FileKind, at: u64, len: u64) -> bool {
        let Ok((pack, (offset, _))) = self.0.locate(file_no, kind) else { return false };
        let begin = offset + at;
        let mut state = self.0.state.lock();
        let mut again = false;
        for block in begin / BLOCK..=(begin + len.max(1) - 1) / BLOCK {
            let key = (pack.serial, block);
            match state.blocks.get(&key) {
                Some(Block::Present(b)) if b.is_second => {}
                Some(Block::Present(_)) => {
                    state.remove(key);
                    state.distrusted.insert(key);
                    again = true;
                }
                // Evicted or requested since.
                _ => again |= state.distrusted.insert(key),
            }
        }
        again
    }
}
