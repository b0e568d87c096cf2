//! Scans: a whole range as an Arrow stream, made on the pool, one batch ahead of its client.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use parking_lot::Mutex;
use topics_engine::Error;

use super::streams::{Kind, Next};
use super::verbs::Answer;
use super::{Request, Service};
use crate::arrow::{self, IpcStream, Scan};
use crate::error::Failure;
use crate::{render, split};

/// The longest piece that is sent at once.
const PIECE: usize = 256 << 10;

/// A batch, or why there is none.
enum Made {
    Batch(Vec<u8>),
    Last(Vec<u8>),
    Failed(Failure),
}

/// Where a scan is: with the thread that makes the next batch, or here with what was made.
#[derive(Default)]
struct Line {
    stream: Option<IpcStream>,
    made: Option<Made>,
}

/// A scan whose client takes it.
#[derive(Default)]
pub(super) struct Scanning(Arc<Mutex<Line>>);

impl Scanning {
    /// What was made, in pieces; has the next batch made meanwhile.
    pub(super) fn pull(
        &self,
        service: &Arc<Service>,
        token: u64,
        pieces: &mut Vec<Vec<u8>>,
    ) -> Result<Next, Failure> {
        let made = self.0.lock().made.take();
        let next = match made {
            None => Next::Wait,
            Some(Made::Batch(bytes)) => {
                cut(bytes, pieces);
                Next::More
            }
            Some(Made::Last(bytes)) => {
                cut(bytes, pieces);
                return Ok(Next::End);
            }
            Some(Made::Failed(failure)) => return Err(failure),
        };
        self.make(service, token);
        Ok(next)
    }

    /// Has a thread make the next batch, unless one is at it.
    fn make(&self, service: &Arc<Service>, token: u64) {
        let Some(mut stream) = self.0.lock().stream.take() else { return };
        let (line, sink) = (self.0.clone(), service.sink.clone());
        service.pool.run(Box::new(move || {
            let made = catch_unwind(AssertUnwindSafe(|| stream.next_piece()));
            let mut line = line.lock();
            line.made = Some(match made {
                Ok(Ok((bytes, false))) => Made::Batch(bytes),
                Ok(Ok((bytes, true))) => Made::Last(bytes),
                Ok(Err(failure)) => Made::Failed(failure),
                Err(_) => Made::Failed(Error::Internal("a scan panicked".into()).into()),
            });
            if matches!(line.made, Some(Made::Batch(_))) {
                line.stream = Some(stream);
            }
            drop(line);
            sink.due(token);
        }));
    }
}

/// A client that takes little at a time is not given a whole batch to take.
fn cut(bytes: Vec<u8>, pieces: &mut Vec<Vec<u8>>) {
    if bytes.len() <= PIECE {
        return pieces.push(bytes);
    }
    pieces.extend(bytes.chunks(PIECE).map(<[u8]>::to_vec));
}

impl Service {
    pub(super) fn scans(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Option<Answer> {
        Some(match r.route {
            "scan" => self.open_scan(r),
            "split" => self.split(r).and_then(|body| self.now(body, start_ns)),
            "segments" => self.segments(r).and_then(|body| self.now(body, start_ns)),
            _ => return None,
        })
    }

    fn open_scan(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let asked = arrow::parse(r.body)?;
        let scan = Scan::begin(self.engine.clone(), r.name, asked)?;
        let (stream, opening) = IpcStream::begin(scan)?;
        let line = Line { stream: Some(stream), made: None };
        let scanning = Scanning(Arc::new(Mutex::new(line)));
        self.open(r.token, Kind::Scanning(scanning), opening)
    }

    fn split(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        let asked = split::parse(r.body)?;
        Ok(split::answer(r.name, &asked, &self.engine.segments(r.name)?))
    }

    fn segments(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        Ok(render::segments(r.name, &self.engine.segments(r.name)?))
    }
}
