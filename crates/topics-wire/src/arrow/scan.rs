//! A range of a topic as a stream of Arrow batches, read as it is consumed.

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use topics_engine::{Engine, NodeFilter, ReadBuffers, ReadFrom, ReadRequest, TopicMatch};

use super::ahead::{Ahead, Make, Range};
use super::shape::Shape;
use super::{Columns, FFI_ArrowArrayStream, Pinned, rows, schema};
use crate::error::Failure;

/// What is scanned.
#[derive(Clone, Debug, Default)]
pub struct ScanRequest {
    /// Records after this seq; `None`: from the earliest kept one.
    pub after: Option<u64>,
    /// Inclusive end; `None`: the head when the scan begins.
    pub upto: Option<u64>,
    /// Nodes to skip.
    pub skip_nodes: NodeFilter,
    /// Only records of these nodes; empty: of any.
    pub only_nodes: NodeFilter,
    /// Only records with these tags.
    pub matching: Option<TopicMatch>,
    /// Only records committed at or after this time, ms.
    pub ts_from: Option<u64>,
    /// Only records committed before this time, ms.
    pub ts_to: Option<u64>,
    /// Only what has been synced.
    pub strong: bool,
    /// The topic id that the cursor was made with.
    pub topic_id: Option<u64>,
    /// Type `data` as binary; `None`: as the first record is.
    pub binary: Option<bool>,
    /// The columns.
    pub columns: Columns,
    /// Payload bytes of one batch.
    pub batch_bytes: usize,
    /// Whether threads of its own read ahead.
    pub ahead: bool,
}

/// Rows of one batch at most.
const BATCH_ROWS: usize = 65_536;
/// Rows of the first batch at most: it says what a row weighs.
const FIRST_ROWS: usize = 8192;
/// Threads beside the caller's, at most.
const HELPERS: usize = 3;

/// A scan: its end is fixed when it begins.
#[derive(Debug)]
pub struct Scan {
    pages: Ahead<ReadBuffers, Maker>,
    pinned: Pinned,
    schema: SchemaRef,
    /// Threads beside the caller's.
    helpers: usize,
    request: ReadRequest,
    /// Where what is not planned yet begins; `None`: the first batch says it.
    planned_to: Option<u64>,
    /// Seqs of the next stretch to be planned.
    span: u64,
    done: bool,
}

impl Scan {
    /// Begins a scan.
    pub fn begin(engine: Engine, topic: &str, r: ScanRequest) -> Result<Self, Failure> {
        let state = engine.state(topic, true)?;
        let head = match r.strong {
            true => engine.synced_seq(topic)?.min(state.head_seq),
            false => state.head_seq,
        };
        let mut to_seq = r.upto.map_or(head, |upto| upto.min(head));
        if let Some(ts) = r.ts_to {
            to_seq = to_seq.min(engine.seek(topic, ts)?.seq);
        }
        let mut after = r.after;
        if let Some(ts) = r.ts_from {
            after = after.max(Some(engine.seek(topic, ts)?.seq));
        }
        let pinned = Pinned { topic_id: state.topic_id, head_seq: state.head_seq, to_seq };
        let request = ReadRequest {
            from: after.map_or(ReadFrom::Earliest, ReadFrom::After),
            upto: Some(to_seq),
            limit: BATCH_ROWS,
            max_bytes: r.batch_bytes,
            skip_nodes: r.skip_nodes,
            matching: r.matching,
            topic_id: r.topic_id,
            ..ReadRequest::default()
        };
        let binary = match r.binary {
            Some(binary) => binary,
            None => {
                let first = ReadRequest { limit: 1, ..request.clone() };
                engine.read(topic, &first)?.iter().any(|record| record.binary)
            }
        };
        // A cursor at the end, or beyond it with the topic's own id, has nothing to read.
        let done = after.is_some_and(|after| after >= to_seq && after <= state.head_seq);
        let most = to_seq.saturating_sub(after.unwrap_or(0)).min(BATCH_ROWS as u64) as usize + 1;
        let mut shape = Shape::new(topic, schema(binary, pinned), r.columns, most)?;
        shape.only = r.only_nodes;
        let schema = shape.shown.clone();
        let later = ReadRequest { topic_id: Some(pinned.topic_id), ..request.clone() };
        let maker = Maker { engine, topic: topic.to_owned(), request: later, pinned, shape };
        Ok(Self {
            pages: Ahead::new(maker),
            pinned,
            schema,
            helpers: if r.ahead { HELPERS } else { 0 },
            request,
            planned_to: None,
            span: 0,
            done,
        })
    }

    /// The numbers in the schema.
    #[must_use]
    pub fn pinned(&self) -> Pinned {
        self.pinned
    }

    /// The schema of the batches.
    pub(super) fn schema_ref(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The schema in Arrow's C form.
    pub fn c_schema(&self) -> Result<FFI_ArrowSchema, Failure> {
        FFI_ArrowSchema::try_from(self.schema.as_ref())
            .map_err(|e| Failure::new("internal", format!("Arrow: {e}")))
    }

    /// The scan in Arrow's C form.
    #[must_use]
    pub fn into_c_stream(self) -> FFI_ArrowArrayStream {
        FFI_ArrowArrayStream::new(Box::new(self))
    }

    /// The next batch that has rows.
    fn advance(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        while !self.done {
            let (range, page) = match self.planned_to {
                None => self.first(),
                Some(_) => match self.pages.next() {
                    Some(found) => found,
                    None => break,
                },
            };
            let page = page?;
            self.go_on(range, &page);
            if page.rows.is_some() {
                return Ok(page.rows);
            }
        }
        Ok(None)
    }

    /// The first batch: where it begins is known only now.
    fn first(&mut self) -> (Range, Result<Page, ArrowError>) {
        let limit = FIRST_ROWS;
        let request = ReadRequest { limit, ..self.request.clone() };
        let after = match request.from {
            ReadFrom::After(after) => after,
            _ => 0,
        };
        let page = self.pages.make(|maker, buffers| maker.read(&request, buffers));
        (Range { after, upto: self.pinned.to_seq }, page)
    }

    /// Decides what is read next, now that it is known how far a batch reached.
    fn go_on(&mut self, range: Range, page: &Page) {
        let (next, end) = (page.next, self.pinned.to_seq);
        // A page that neither moves nor explains itself would be read for ever.
        let stuck = next == range.after && !page.gap;
        self.done = next >= end || stuck;
        if self.done {
            return self.pages.clear();
        }
        let matching = self.request.matching.is_some();
        self.span = match page.fill(self.request.max_bytes) {
            // Tags are looked up for each stretch anew.
            _ if matching => end,
            fill => {
                let covered = (next - range.after.min(next)).max(1);
                let wanted = covered as f64 / fill.max(1.0 / 64.0);
                (wanted as u64).clamp(1, BATCH_ROWS as u64 * 64)
            }
        };
        match self.planned_to {
            Some(_) if next == range.upto => {}
            Some(_) if next < range.upto => {
                self.pages.plan_first(Range { after: next, upto: range.upto });
            }
            _ => {
                self.pages.clear();
                self.planned_to = Some(next);
            }
        }
        if self.helpers > 0 && !matching && end - next > self.span {
            self.pages.help(self.helpers.min(topics_env::cores() - 1));
        }
        self.plan();
    }

    /// Keeps every thread busy.
    fn plan(&mut self) {
        // Without helpers nothing is read ahead.
        let most = if self.helpers == 0 { 1 } else { self.pages.threads() * 2 };
        while let Some(after) = self.planned_to.filter(|after| *after < self.pinned.to_seq)
            && self.pages.planned() < most
        {
            let upto = after.saturating_add(self.span).min(self.pinned.to_seq);
            self.pages.plan(Range { after, upto });
            self.planned_to = Some(upto);
        }
    }
}

/// Reads stretches of a topic and makes rows of them.
#[derive(Debug)]
struct Maker {
    engine: Engine,
    topic: String,
    request: ReadRequest,
    pinned: Pinned,
    shape: Shape,
}

/// What one read found.
#[derive(Debug)]
struct Page {
    /// The cursor behind it.
    next: u64,
    gap: bool,
    /// Bytes of the payloads.
    bytes: usize,
    rows: Option<RecordBatch>,
}

impl Page {
    /// Which part of a batch it is.
    fn fill(&self, batch_bytes: usize) -> f64 {
        let rows = self.rows.as_ref().map_or(0, RecordBatch::num_rows);
        // A little less, so that records that weigh more than those before fit all the same.
        let bytes = self.bytes as f64 / (batch_bytes.max(1) as f64 * 0.9);
        bytes.max(rows as f64 / BATCH_ROWS as f64)
    }
}

impl Maker {
    fn read(&self, request: &ReadRequest, buffers: &mut ReadBuffers) -> Result<Page, ArrowError> {
        let found = self
            .engine
            .read_with(&self.topic, request, buffers)
            .map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        if found.topic_id != self.pinned.topic_id {
            let message = format!("topic {:?} was created again during the scan", self.topic);
            return Err(ArrowError::InvalidArgumentError(message));
        }
        let gap = found.tombstone.is_some();
        let rows = rows::build(&self.shape, &found)?;
        let (next, bytes) = (found.next_from_seq, found.payload_bytes());
        buffers.recycle(found);
        Ok(Page { next, gap, bytes, rows })
    }
}

impl Make<ReadBuffers> for Maker {
    type Output = Result<Page, ArrowError>;

    fn make(&self, range: Range, buffers: &mut ReadBuffers) -> Self::Output {
        let from = ReadFrom::After(range.after);
        let request = ReadRequest { from, upto: Some(range.upto), ..self.request.clone() };
        self.read(&request, buffers)
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance().transpose();
        self.done |= matches!(item, Some(Err(_)));
        item
    }
}

impl RecordBatchReader for Scan {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}
