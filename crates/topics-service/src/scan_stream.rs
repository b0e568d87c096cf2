//! Columns: a range as an Arrow stream, made on the pool, one batch ahead of its client.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use parking_lot::Mutex;
use topics_engine::Error;
use topics_wire::arrow::{self, ScanRequest};
use topics_wire::{Failure, render, split};

use super::dispatch::Answer;
use super::scan::{IpcStream, Scan};
use super::streams::{Kind, Next};
use super::{Reply, Request, Service};

/// What one pull gives at most: other connections have their turn between two. It is in few
/// pieces: memory for many small ones goes back to the system again and again.
const PULL: usize = 1 << 20;

/// A batch, or why there is none.
enum Made {
    Batch(Vec<Bytes>),
    Failed(Failure),
}

/// Where a scan is: with the thread that makes the next batch, or here with what was made.
#[derive(Default)]
struct Line {
    stream: Option<IpcStream>,
    made: Option<Made>,
    /// What is left of the batch that is being taken.
    left: VecDeque<Bytes>,
    /// Nothing follows that.
    over: bool,
    /// The client has all there was: it is told when there is more.
    waiting: bool,
}

/// A scan whose client takes it; empty until it has begun.
#[derive(Clone, Default)]
pub(super) struct Scanning(Arc<Mutex<Line>>);

impl Scanning {
    /// What was made, in pieces; has the next batch made meanwhile.
    pub(super) fn pull(
        &self,
        service: &Arc<Service>,
        token: u64,
        pieces: &mut Vec<Bytes>,
    ) -> Result<Next, Failure> {
        let mut line = self.0.lock();
        if line.left.is_empty() {
            match line.made.take() {
                Some(Made::Batch(batch)) => line.left = batch.into(),
                Some(Made::Failed(failure)) => return Err(failure),
                None => {}
            }
        }
        line.cut(pieces);
        let next = match (line.over && line.made.is_none() && line.left.is_empty(), pieces.len()) {
            (true, _) => Next::End,
            (false, 0) => Next::Wait,
            (false, _) => Next::More,
        };
        line.waiting = next == Next::Wait;
        let stream = if line.made.is_none() { line.stream.take() } else { None };
        drop(line);
        if let Some(stream) = stream {
            self.make(service, token, stream);
        }
        Ok(next)
    }

    /// Has a thread make the next batch.
    fn make(&self, service: &Arc<Service>, token: u64, mut stream: IpcStream) {
        let (line, sink) = (self.0.clone(), service.sink.clone());
        service.pool.run(Box::new(move || {
            let made = catch_unwind(AssertUnwindSafe(|| stream.next_batch()));
            let mut line = line.lock();
            match made {
                Ok(Ok(batch)) => {
                    line.over = stream.is_over();
                    line.made = batch.map(Made::Batch);
                    line.stream = Some(stream).filter(|_| !line.over);
                }
                Ok(Err(failure)) => line.made = Some(Made::Failed(failure)),
                Err(_) => {
                    let failure = Error::Internal("a scan panicked".into()).into();
                    line.made = Some(Made::Failed(failure));
                }
            }
            if std::mem::take(&mut line.waiting) {
                drop(line);
                sink.due(token);
            }
        }));
    }
}

impl Line {
    /// Takes as much as one pull gives.
    fn cut(&mut self, pieces: &mut Vec<Bytes>) {
        let mut room = PULL;
        while let Some(first) = self.left.front_mut().filter(|_| room > 0) {
            let size = first.len().min(room);
            let piece = first.split_to(size);
            if first.is_empty() {
                self.left.pop_front();
            }
            room -= size;
            pieces.push(piece);
        }
    }
}

impl Service {
    pub(super) fn open_scan(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        self.begin_scan(r.token, r.name, arrow::parse(r.body)?)
    }

    /// Begins a stream of columns on a thread: what comes first may be on the disk, and whether it
    /// can be had decides between a stream and a refusal.
    pub(super) fn begin_scan(
        self: &Arc<Self>,
        token: u64,
        topic: &str,
        asked: ScanRequest,
    ) -> Answer {
        let scanning = Scanning::default();
        // It is there before it has begun, so that its client can leave meanwhile.
        self.open(token, Kind::Scanning(scanning.clone()), Vec::new())?;
        self.on_pool(token, topic, move |s, topic| {
            let begun = Scan::begin(s.engine.clone(), topic, asked).and_then(IpcStream::new);
            match begun {
                Ok(stream) => scanning.0.lock().stream = Some(stream),
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
        Ok(render::segments(r.name, &self.engine.segments(r.name)?))
    }
}
