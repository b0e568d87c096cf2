//! Arrow scans as streams: a worker thread encodes one batch ahead of the client.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::Error;
use topics_wire::arrow::{self, ScanRequest};
use topics_wire::{Failure, read, split, topics};

use super::dispatch::Answer;
use super::scan::{IpcStream, Scan};
use super::streams::{NextAction, PULL_BYTES, Source, take_bytes};
use super::{LARGE_BODY, Reply, Request, Service, Verb};

/// The outcome of encoding a batch.
enum NextBatch {
    Batch(Vec<Bytes>),
    Failed(Failure),
}

/// The progress of a scan. The worker thread that encodes the next batch has the stream meanwhile.
#[derive(Default)]
struct ScanState {
    stream: Option<IpcStream>,
    next_batch: Option<NextBatch>,
    /// The rest of the batch that the client is taking.
    rest: VecDeque<Bytes>,
    /// No batch follows `rest` and `next_batch`.
    ended: bool,
    /// The client has taken every batch and waits for a wake.
    waiting: bool,
}

/// A scan and its client; empty until the scan has begun.
#[derive(Clone, Default)]
pub(super) struct ScanStream(Arc<Mutex<ScanState>>);

impl ScanStream {
    /// Appends encoded bytes to `pieces`, and encodes the next batch meanwhile.
    pub(super) fn pull(
        &self,
        service: &Arc<Service>,
        token: u64,
        pieces: &mut Vec<Bytes>,
    ) -> Result<NextAction, Failure> {
        let mut state = self.0.lock();
        if state.rest.is_empty() {
            match state.next_batch.take() {
                Some(NextBatch::Batch(batch)) => state.rest = batch.into(),
                Some(NextBatch::Failed(failure)) => return Err(failure),
                None => {}
            }
        }
        take_bytes(&mut state.rest, PULL_BYTES, pieces);
        let next = match (
            state.ended && state.next_batch.is_none() && state.rest.is_empty(),
            pieces.len(),
        ) {
            (true, _) => NextAction::End,
            (false, 0) => NextAction::Wait,
            (false, _) => NextAction::More,
        };
        state.waiting = next == NextAction::Wait;
        let stream = if state.next_batch.is_none() { state.stream.take() } else { None };
        drop(state);
        if let Some(stream) = stream {
            self.make_next(service, token, stream);
        }
        Ok(next)
    }

    /// Encodes the next batch on a worker thread.
    fn make_next(&self, service: &Arc<Service>, token: u64, mut stream: IpcStream) {
        let (state, sink) = (self.0.clone(), service.sink.clone());
        service.pool.run(Box::new(move || {
            let next_batch = catch_unwind(AssertUnwindSafe(|| stream.next_batch()));
            let mut state = state.lock();
            match next_batch {
                Ok(Ok(batch)) => {
                    state.ended = stream.is_over();
                    state.next_batch = batch.map(NextBatch::Batch);
                    state.stream = Some(stream).filter(|_| !state.ended);
                }
                Ok(Err(failure)) => state.next_batch = Some(NextBatch::Failed(failure)),
                Err(_) => {
                    let failure = Error::Internal("a scan panicked".into()).into();
                    state.next_batch = Some(NextBatch::Failed(failure));
                }
            }
            if std::mem::take(&mut state.waiting) {
                drop(state);
                sink.wake(token);
            }
        }));
    }
}

impl Service {
    pub(super) fn open_scan(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        self.begin_scan(r.token, r.name, arrow::parse(r.body)?)
    }

    /// The whole answer to a read or a scan as Arrow, if it is a batch that can be read in the call, as a
    /// JSON page is. `None`: the request has another answer, or the answer has more batches;
    /// [`Self::call`] gives it.
    pub fn arrow_page(&self, r: &Request<'_>) -> Option<Vec<Bytes>> {
        if r.body.len() > LARGE_BODY || !self.is_ready() || self.unsent.is_full() {
            return None;
        }
        self.check(r).ok()?;
        let (asked, waits) = match r.verb {
            Verb::Scan => (arrow::parse(r.body).ok()?, false),
            _ => {
                let diff = read::parse(r.body, &self.limits, true).ok()?;
                (arrow::parse_diff(r.body, &diff).ok()?, diff.wait_ms > 0)
            }
        };
        // The event loop does not compress.
        if asked.compression.is_some() {
            return None;
        }
        let scan = Scan::begin_small(&self.engine, r.name, asked).ok()??;
        if waits && scan.begins_empty() {
            return None;
        }
        let mut stream = IpcStream::new(scan, None).ok()?;
        let mut pieces = Vec::new();
        while let Some(batch) = stream.next_batch().ok()? {
            pieces.extend(batch);
        }
        Some(pieces)
    }

    /// Begins a scan on a worker thread, because its first page may be on disk. If that page fails,
    /// the request is refused; otherwise the stream starts.
    pub(super) fn begin_scan(
        self: &Arc<Self>,
        token: u64,
        topic: &str,
        asked: ScanRequest,
    ) -> Answer {
        let source = ScanStream::default();
        // Registered before it begins, so that a client that leaves meanwhile cancels it.
        self.open(token, Source::ScanStream(source.clone()), Vec::new())?;
        self.run_on_worker(token, topic, move |s, topic| {
            let compression = asked.compression;
            let begun = Scan::begin(s.engine.clone(), topic, asked)
                .and_then(|scan| IpcStream::new(scan, compression));
            match begun {
                Ok(stream) => source.0.lock().stream = Some(stream),
                Err(failure) => {
                    s.cancel(token);
                    return Err(failure);
                }
            }
            Ok(Reply::ok(Vec::new()))
        })
    }

    pub(super) fn split(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let asked = split::parse(r.body)?;
        Ok(split::answer(r.name, &asked, &self.engine.segments(r.name)?))
    }

    pub(super) fn segments(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        Ok(topics::segments(r.name, &self.engine.segments(r.name)?))
    }
}
