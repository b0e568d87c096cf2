//! The batches that no leader has taken, and the permits to stage more.

use std::collections::VecDeque;
use std::sync::Arc;

use topics_env::sync::Condvar;

use crate::wal::Batch;
use crate::wal::effects::QueuedBatch;

/// The queue of a shard. Tickets rise in it, and everything up to the ticket before its first batch
/// has been taken.
#[derive(Default)]
pub(in crate::wal) struct StagedBatches {
    pub batches: VecDeque<QueuedBatch>,
    /// Bytes of these batches.
    pub bytes: usize,
    /// Bytes of permits, of the queue, and of written batches that wait for a sync.
    pub reserved_bytes: usize,
    /// Their number.
    pub reserved_batches: usize,
    /// Callers that wait for a staging permit, oldest first.
    pub permit_waiters: VecDeque<Arc<Condvar>>,
    pub last_ticket: u64,
}

impl StagedBatches {
    /// Queues a batch whose reservation was taken before; returns its ticket.
    pub fn push(&mut self, batch: Batch, reserved: usize) -> u64 {
        self.last_ticket += 1;
        let (n, bytes) = (self.last_ticket, batch.bytes());
        self.bytes += bytes;
        self.batches.push_back(QueuedBatch { n, batch, bytes, reserved });
        n
    }

    /// Whether a batch of this many bytes may be staged now. A batch larger than the bound is admitted
    /// when nothing else is staged.
    pub fn has_capacity(&self, bytes: usize, max_bytes: usize, max_batches: usize) -> bool {
        let fits = self.reserved_bytes + bytes <= max_bytes || self.reserved_batches == 0;
        fits && self.reserved_batches < max_batches
    }

    /// Reserves the bytes of one batch.
    pub fn reserve(&mut self, bytes: usize) {
        self.reserved_bytes += bytes;
        self.reserved_batches += 1;
    }

    /// Whether a ticket is still in the queue.
    pub fn is_queued(&self, n: u64) -> bool {
        self.batches.front().is_some_and(|q| q.n <= n)
    }

    /// The last ticket before the queue: all up to it have left the queue.
    pub fn before_queue(&self) -> u64 {
        self.batches.front().map_or(self.last_ticket, |q| q.n - 1)
    }

    /// Wakes the first caller that waits for a permit.
    pub fn wake_permit_waiter(&self) {
        if let Some(first) = self.permit_waiters.front() {
            first.notify_one();
        }
    }

    /// Releases the reservations of taken batches.
    pub fn release<'q>(&mut self, taken: impl IntoIterator<Item = &'q QueuedBatch>) {
        for q in taken {
            self.bytes -= q.bytes;
            self.release_reserved(q.reserved);
        }
    }

    /// Releases the reservation of one batch.
    pub fn release_reserved(&mut self, bytes: usize) {
        self.reserved_bytes -= bytes;
        self.reserved_batches -= 1;
    }
}
