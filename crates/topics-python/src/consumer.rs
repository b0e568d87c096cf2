//! Reads of consumers of an embedded engine.

use std::sync::Arc;

use parking_lot::Mutex;
use pyo3::prelude::*;
use topics_engine::{ConsumerRead, ReadBatch, WaitId};

use crate::args::match_of;
use crate::batch::Batch;
use crate::calls::Calls;
use crate::pending::complete_read;
use crate::shared::{ProcessOwned, Shared, or_fetch, read_fetching, seconds, wait_in_slices};

/// Topic, consumer, and the reader of `at_least_once`.
pub(crate) type ReaderOf<'a> = (&'a str, &'a str, Option<&'a str>);
/// Bytes, records, checkpoint, wait, match, whether to fail if busy.
pub(crate) type ReadArgs = (usize, usize, bool, f64, Option<String>, bool);

fn request(py: Python<'_>, args: &ReadArgs) -> PyResult<ConsumerRead> {
    let (max_bytes, max_records, checkpoint, wait, matching, fail_if_busy) = args;
    Ok(ConsumerRead {
        max_bytes: *max_bytes,
        max_records: *max_records,
        checkpoint: *checkpoint,
        wait: seconds(*wait),
        matching: match_of(py, matching.as_deref())?,
        fail_if_busy: *fail_if_busy,
        // The handle has the position of its reader.
        after: None,
    })
}

/// Reads; waits for the first record in slices, between which signals are handled.
pub(crate) fn read(
    py: Python<'_>,
    shared: &Arc<Shared>,
    (topic, name, reader): ReaderOf<'_>,
    args: &ReadArgs,
) -> PyResult<Batch> {
    let req = request(py, args)?;
    let consumer = shared.run(py, |_| shared.local()?.consumer(topic, name, reader))?;
    let attempt = |wait| {
        let req = ConsumerRead { wait, ..req.clone() };
        read_fetching(py, || shared.run(py, |_| or_fetch(consumer.read_present(&req))))
    };
    let nothing = |b: &ReadBatch| b.is_empty() && b.tombstone.is_none();
    wait_in_slices(py, Some(args.3), nothing, attempt).map(Batch)
}

/// A read that a worker thread begins, and its cancellation.
enum PendingRead {
    New,
    Begun(WaitId),
    Cancelled,
}

/// Reads as [`read`] does; resolves the call with a `PendingBatch`. A worker thread begins it, because the
/// first read may wait for the disk.
pub(crate) fn read_later(
    py: Python<'_>,
    (calls, token): (&Calls, u64),
    shared: &Arc<Shared>,
    (topic, name, reader): ReaderOf<'_>,
    args: &ReadArgs,
) -> PyResult<()> {
    let req = request(py, args)?;
    let consumer = shared.run(py, |_| shared.local()?.consumer(topic, name, reader))?;
    let consumer = Arc::new(ProcessOwned::new(shared.clone(), consumer));
    let done = complete_read(calls.call(token), req.checkpoint.then(|| consumer.clone()));
    let state = Arc::new(Mutex::new(PendingRead::New));
    let (begun, shared) = (state.clone(), shared.clone());
    let cancel_begun = {
        let shared = shared.clone();
        move |id| {
            if let Ok(engine) = shared.engine() {
                engine.cancel_wait(id);
            }
        }
    };
    let cancel_late = cancel_begun.clone();
    calls.inner.pool.run(Box::new(move || {
        if matches!(*begun.lock(), PendingRead::Cancelled) {
            return;
        }
        let reader = match consumer.call(|c| Ok(c.clone())) {
            Ok(reader) => reader,
            Err(_) => return done(Err(topics_engine::Error::Closed)),
        };
        let id = reader.read_async(req, done);
        let before = std::mem::replace(&mut *begun.lock(), PendingRead::Begun(id));
        if matches!(before, PendingRead::Cancelled) {
            cancel_late(id);
        }
    }));
    let cancel = move || {
        if let PendingRead::Begun(id) =
            std::mem::replace(&mut *state.lock(), PendingRead::Cancelled)
        {
            cancel_begun(id);
        }
    };
    calls.set_wait(token, &shared, cancel);
    Ok(())
}
