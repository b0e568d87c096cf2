//! The bytes of answers and events that are built and that their clients have not taken yet.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use topics_wire::Failure;

use super::Sink;

/// An answer of fewer payload bytes is built even without room: a connection holds as much anyway
/// before it stops to write.
const SMALL: u64 = 64 << 10;

/// When the client is to try again.
const RETRY_MS: u64 = 1000;

/// A limit on the unsent bytes of all connections; 0 is no limit.
///
/// What is built is counted, so the sum exceeds the limit by at most one answer of each thread.
#[derive(Default)]
pub struct UnsentBytes {
    most: u64,
    held: AtomicU64,
    /// The streams that wait for room, by token.
    waiting: Mutex<HashMap<u64, Arc<dyn Sink>>>,
}

impl UnsentBytes {
    /// A limit of `most` bytes.
    #[must_use]
    pub fn new(most: u64) -> Self {
        Self { most, ..Self::default() }
    }

    /// The bytes that are held now.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether nothing large may be built.
    #[must_use]
    pub fn is_full(&self) -> bool {
        self.most > 0 && self.held() >= self.most
    }

    /// Counts bytes.
    pub fn add(&self, size: u64) {
        self.held.fetch_add(size, Ordering::Relaxed);
    }

    /// Counts bytes less, and wakes the streams that wait when there is room again.
    pub fn remove(&self, size: u64) {
        let before = self.held.fetch_sub(size, Ordering::Relaxed);
        if self.most > 0 && before >= self.most && before - size < self.most {
            let waiting = std::mem::take(&mut *self.waiting.lock());
            for (token, sink) in waiting {
                sink.wake(token);
            }
        }
    }

    /// Has a stream woken when there is room.
    pub(super) fn wake_later(&self, token: u64, sink: &Arc<dyn Sink>) {
        self.waiting.lock().insert(token, sink.clone());
        // Room that there was before the entry woke nobody.
        if !self.is_full() && self.waiting.lock().remove(&token).is_some() {
            sink.wake(token);
        }
    }

    pub(super) fn forget(&self, token: u64) {
        self.waiting.lock().remove(&token);
    }

    /// Refuses an answer with so many payload bytes while there is no room for it.
    pub(super) fn check(&self, payload: u64) -> Result<(), Failure> {
        if payload < SMALL || !self.is_full() {
            return Ok(());
        }
        let text = format!(
            "max_unsent_bytes is at its limit of {}: clients must read the answers that they asked \
             for; try again later",
            self.most
        );
        let detail = format!(
            "{{\"limit\":\"max_unsent_bytes\",\"max\":{},\"retry_after_ms\":{RETRY_MS}}}",
            self.most
        );
        Err(Failure { detail: Some(detail), ..Failure::new("throttled", text) })
    }
}

impl std::fmt::Debug for UnsentBytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UnsentBytes").field("held", &self.held()).finish_non_exhaustive()
    }
}
