//! Scans: a range of a topic as Arrow batches, read as they are consumed.

mod ipc;
mod prefetch;

use std::sync::{Arc, OnceLock};

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::{ArrowError, SchemaRef};
use topics_engine::{Engine, Error, ReadBatch, ReadBuffers, ReadFrom, ReadRequest, TopicState};
use topics_wire::Failure;
use topics_wire::arrow::{BatchFormat, ScanRequest, StreamBounds, build_batch, failure, schema};
use topics_wire::limits::BATCH_BYTES;

use prefetch::{Prefetcher, Range, RangeReader};

pub use arrow_array::ffi_stream::FFI_ArrowArrayStream;
pub use arrow_schema::ffi::FFI_ArrowSchema;
pub use ipc::IpcStream;

/// Maximum rows of a batch.
const BATCH_ROWS: usize = 65_536;
/// Maximum rows of the first batch, which measures the size of a row, and of a small scan.
const FIRST_ROWS: usize = 8192;
/// Maximum number of helper threads.
const HELPERS: usize = 3;
/// Maximum pages that `begin` reads to find the first row.
const OPENING_PAGES: usize = 64;
/// How often a page that made no progress is read again: its first records were evicted during the
/// read, and the next attempt reports the gap.
const RETRIES: usize = 64;

/// A scan. Its end is fixed when it begins.
#[derive(Debug)]
pub struct Scan {
    pages: Prefetcher<ReadBuffers, PageReader>,
    bounds: StreamBounds,
    schema: SchemaRef,
    /// Number of helper threads that may be used.
    helpers: usize,
    /// Whether a tag filter is set.
    matching: bool,
    /// Maximum rows of a batch.
    batch_rows: usize,
    /// Target payload bytes of a batch.
    batch_bytes: usize,
    /// The first batch, until the consumer takes it.
    first: Option<RecordBatch>,
    /// The cursor up to which ranges are planned.
    planned_to: u64,
    /// Seqs in the next planned range.
    span: u64,
    /// Consecutive pages without progress.
    stuck: usize,
    done: bool,
    failed: Arc<OnceLock<Failure>>,
}

impl Scan {
    /// Begins a scan and reads its first batch, so that an error there is an error here.
    pub fn begin(engine: Engine, topic: &str, r: ScanRequest) -> Result<Self, Failure> {
        let opening = Opening::of(&engine, topic, &r)?;
        let read = |request: &ReadRequest| engine.read(topic, request);
        let found = opening.first_page().map(|request| read(&request)).transpose()?;
        Self::with_first_page(engine, topic, r, opening, found)
    }

    /// Begins a scan that is read whole, as one batch of at most [`FIRST_ROWS`], without waiting for
    /// records that are only in the object store. `None`: the scan is larger, or would wait.
    pub fn begin_small(
        engine: &Engine,
        topic: &str,
        r: ScanRequest,
    ) -> Result<Option<Self>, Failure> {
        // A seek by time may read blocks of records.
        if r.ts_from.is_some() || r.ts_to.is_some() || r.batch_bytes > BATCH_BYTES {
            return Ok(None);
        }
        let opening = Opening::of(engine, topic, &r)?;
        let seqs = match opening.from {
            ReadFrom::After(after) => opening.end.saturating_sub(after),
            _ => u64::MAX,
        };
        let rows = r.limit.map_or(seqs, |limit| seqs.min(limit as u64));
        if rows > FIRST_ROWS as u64 {
            return Ok(None);
        }
        let found = match opening.first_page().map(|req| engine.read_present(topic, &req)) {
            Some(Err(Error::ColdPending(_))) => return Ok(None),
            found => found.transpose()?,
        };
        let to_seq = end_cursor(&r, opening.from, found.as_ref(), opening.end);
        if found.as_ref().is_some_and(|page| page.next_from_seq < to_seq) {
            return Ok(None);
        }
        Self::with_first_page(engine.clone(), topic, r, opening, found).map(Some)
    }

    /// A scan whose first page was read.
    fn with_first_page(
        engine: Engine,
        topic: &str,
        r: ScanRequest,
        opening: Opening,
        found: Option<ReadBatch>,
    ) -> Result<Self, Failure> {
        let Opening { state, from, end, request, .. } = opening;
        let (batch_rows, batch_bytes) = (request.limit, request.max_bytes);
        let to_seq = end_cursor(&r, from, found.as_ref(), end);
        let head_seq = state.head_seq.max(to_seq);
        let bounds = StreamBounds { topic_id: state.topic_id, head_seq, to_seq };
        let schema = schema(r.is_binary(found.as_ref()), bounds);
        let start = start_of(from, found.as_ref(), to_seq);
        let most = (to_seq - start).min(batch_rows as u64) as usize + 1;
        let format = BatchFormat::new(topic, schema, r.columns, r.fields, r.only_nodes, most)?;
        let schema = format.shown.clone();
        let later = ReadRequest { topic_id: Some(bounds.topic_id), ..request };
        let reader = PageReader { engine, topic: topic.to_owned(), request: later, bounds, format };
        let mut scan = Self {
            matching: reader.request.matching.is_some(),
            pages: Prefetcher::new(reader),
            bounds,
            schema,
            helpers: if r.prefetch { HELPERS } else { 0 },
            batch_rows,
            batch_bytes,
            first: None,
            planned_to: to_seq,
            span: 0,
            stuck: 0,
            done: found.is_none(),
            failed: Arc::default(),
        };
        if let Some(found) = found {
            scan.open(start, found).map_err(|e| failure(&e))?;
        }
        Ok(scan)
    }

    /// Whether the scan has no rows, or its rows are not in the first batch.
    pub(super) fn begins_empty(&self) -> bool {
        self.first.is_none()
    }

    /// Handles the first page, and reads on until it has a row.
    fn open(&mut self, start: u64, found: ReadBatch) -> Result<(), ArrowError> {
        let page = self.pages.with_reader(|reader, buffers| reader.page(found, buffers))?;
        self.planned_to = page.next;
        self.go_on(Range { after: start.min(page.next), upto: page.next }, &page)?;
        self.first = page.rows;
        for _ in 0..OPENING_PAGES {
            if self.first.is_some() || self.done {
                break;
            }
            self.first = self.next_page()?;
        }
        Ok(())
    }

    /// The bounds in the metadata of the schema.
    #[must_use]
    pub fn bounds(&self) -> StreamBounds {
        self.bounds
    }

    /// The schema of the batches.
    pub(super) fn schema_ref(&self) -> SchemaRef {
        self.schema.clone()
    }

    /// The schema as an Arrow C structure.
    pub fn c_schema(&self) -> Result<FFI_ArrowSchema, Failure> {
        FFI_ArrowSchema::try_from(self.schema.as_ref())
            .map_err(|e| Failure::new("internal", format!("Arrow: {e}")))
    }

    /// Has the error that ends the scan, once one has: the consumer of a C stream gets its message alone.
    #[must_use]
    pub fn failed(&self) -> Arc<OnceLock<Failure>> {
        self.failed.clone()
    }

    /// The scan as an Arrow C stream.
    #[must_use]
    pub fn into_c_stream(self) -> FFI_ArrowArrayStream {
        FFI_ArrowArrayStream::new(Box::new(self))
    }

    /// The next batch that has rows.
    fn advance(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let mut rows = self.first.take();
        while rows.is_none() && !self.done {
            rows = self.next_page()?;
        }
        Ok(rows)
    }

    /// The rows of the next page.
    fn next_page(&mut self) -> Result<Option<RecordBatch>, ArrowError> {
        let Some((range, page)) = self.pages.next() else {
            let e = Error::Internal("a scan has nothing planned before its end".into());
            return Err(ArrowError::ExternalError(Box::new(e)));
        };
        let page = page?;
        self.go_on(range, &page)?;
        Ok(page.rows)
    }

    /// Plans the next ranges from how far a page reached.
    fn go_on(&mut self, range: Range, page: &Page) -> Result<(), ArrowError> {
        let (next, end) = (page.next, self.bounds.to_seq);
        self.done = next >= end;
        if self.done {
            self.pages.clear();
            return Ok(());
        }
        self.stuck = if next == range.after && !page.gap { self.stuck + 1 } else { 0 };
        if self.stuck > RETRIES {
            let e = Error::Internal(format!("a scan does not get past seq {next}"));
            return Err(ArrowError::ExternalError(Box::new(e)));
        }
        self.span = match page.fill(self.batch_rows, self.batch_bytes) {
            // One range: the index looks the tags up again for each range.
            _ if self.matching => end,
            fill => {
                let covered = (next - range.after.min(next)).max(1);
                let wanted = covered as f64 / fill.max(1.0 / 64.0);
                (wanted as u64).clamp(1, self.batch_rows as u64 * 64)
            }
        };
        if next < range.upto {
            self.pages.plan_first(Range { after: next, upto: range.upto });
        } else if next > range.upto {
            self.pages.clear();
            self.planned_to = next;
        }
        // A range of cold segments is read in order, by one thread: then the tier reads ahead.
        let helpers = if page.is_cold { 0 } else { self.helpers };
        if helpers > 0 && !self.matching && end - next > self.span {
            self.pages.help(helpers.min(topics_env::cores() - 1));
        }
        // Without helper threads nothing is prefetched.
        self.plan(if helpers == 0 { 1 } else { self.pages.threads() * 2 });
        Ok(())
    }

    /// Plans the next ranges, until there are `most`.
    fn plan(&mut self, most: usize) {
        while self.planned_to < self.bounds.to_seq && self.pages.planned() < most {
            let after = self.planned_to;
            let upto = after.saturating_add(self.span).min(self.bounds.to_seq);
            self.pages.plan(Range { after, upto });
            self.planned_to = upto;
        }
    }
}

/// The range of a scan, before its first page is read.
struct Opening {
    state: TopicState,
    from: ReadFrom,
    /// Inclusive.
    end: u64,
    /// Reads a batch.
    request: ReadRequest,
    /// Maximum rows of the first page; `None` for an empty range.
    first_rows: Option<usize>,
}

impl Opening {
    fn of(engine: &Engine, topic: &str, r: &ScanRequest) -> Result<Self, Failure> {
        let state = engine.state(topic, true)?;
        let (from, end) = resolve_range(r, engine, topic, &state)?;
        let (limit, max_bytes) = r.batch_limits(BATCH_ROWS);
        let request = ReadRequest {
            from,
            upto: Some(end),
            limit,
            max_bytes,
            skip_nodes: r.skip_nodes.clone(),
            matching: r.matching.clone(),
            topic_id: r.topic_id,
            only_seqs: r.is_in_index(),
            ..ReadRequest::default()
        };
        let first = limit.min(FIRST_ROWS);
        let first = r.limit.map_or(first, |most| most.min(first));
        let first_rows = (!is_empty_range(r, from, end, &state)).then_some(first);
        Ok(Self { state, from, end, request, first_rows })
    }

    /// The request of the first page.
    fn first_page(&self) -> Option<ReadRequest> {
        self.first_rows.map(|limit| ReadRequest { limit, ..self.request.clone() })
    }
}

/// The start and the inclusive end of a scan of this topic.
fn resolve_range(
    r: &ScanRequest,
    engine: &Engine,
    topic: &str,
    state: &TopicState,
) -> Result<(ReadFrom, u64), Failure> {
    let mut end = match r.strong {
        true => engine.synced_seq(topic)?.min(state.head_seq),
        false => state.head_seq,
    };
    end = end.min(r.upto.unwrap_or(u64::MAX));
    if let Some(ts) = r.ts_to {
        end = end.min(engine.seek(topic, ts)?.seq);
    }
    if let ReadFrom::Before { seq, .. } = r.from {
        end = end.min(seq.saturating_sub(1));
    }
    let from = match (r.from, r.ts_from) {
        (ReadFrom::After(after), Some(ts)) => {
            ReadFrom::After(engine.seek(topic, ts)?.seq.max(after))
        }
        (ReadFrom::Earliest, Some(ts)) => ReadFrom::After(engine.seek(topic, ts)?.seq),
        (from, _) => from,
    };
    Ok((from, end))
}

/// Whether the range is empty: the cursor belongs to this topic and is at or after the end.
fn is_empty_range(r: &ScanRequest, from: ReadFrom, end: u64, state: &TopicState) -> bool {
    let own = r.topic_id.is_none_or(|id| id == state.topic_id);
    own && matches!(from, ReadFrom::After(after) if after >= end && after <= state.head_seq)
}

/// The cursor after the scan, from its first page. With a limit the scan covers as many further
/// seqs as records are wanted, because a seq has at most one record.
fn end_cursor(r: &ScanRequest, from: ReadFrom, first: Option<&ReadBatch>, end: u64) -> u64 {
    let Some(limit) = r.limit else { return end };
    match (first, from) {
        (Some(page), _) => {
            let left = limit.saturating_sub(page.len()) as u64;
            let next = page.next_from_seq;
            next.saturating_add(left).min(end).max(next)
        }
        (None, ReadFrom::After(after)) => after,
        (None, _) => end,
    }
}

/// The cursor at which a scan begins, at most `to_seq`.
fn start_of(from: ReadFrom, found: Option<&ReadBatch>, to_seq: u64) -> u64 {
    let first = || found.and_then(|page| Some(page.iter().next()?.seq - 1));
    match from {
        ReadFrom::After(after) => after.min(to_seq),
        _ => first().unwrap_or(to_seq).min(to_seq),
    }
}

/// Reads ranges of a topic and builds batches of them.
#[derive(Debug)]
struct PageReader {
    engine: Engine,
    topic: String,
    request: ReadRequest,
    bounds: StreamBounds,
    format: BatchFormat,
}

/// The result of one read.
#[derive(Debug)]
struct Page {
    /// The cursor after the page.
    next: u64,
    gap: bool,
    /// Whether records came from cold segments.
    is_cold: bool,
    /// Payload bytes.
    bytes: usize,
    rows: Option<RecordBatch>,
}

impl Page {
    /// The share of a full batch that this page fills.
    fn fill(&self, batch_rows: usize, batch_bytes: usize) -> f64 {
        let rows = self.rows.as_ref().map_or(0, RecordBatch::num_rows);
        // 90 %, so that a range with somewhat larger records still fits into a batch.
        let bytes = self.bytes as f64 / (batch_bytes.max(1) as f64 * 0.9);
        bytes.max(rows as f64 / batch_rows as f64)
    }
}

impl PageReader {
    fn read(&self, request: &ReadRequest, buffers: &mut ReadBuffers) -> Result<Page, ArrowError> {
        let found = self
            .engine
            .read_with(&self.topic, request, buffers)
            .map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
        self.page(found, buffers)
    }

    fn page(&self, found: ReadBatch, buffers: &mut ReadBuffers) -> Result<Page, ArrowError> {
        if found.topic_id != self.bounds.topic_id {
            let message = format!("topic {:?} was created again during the scan", self.topic);
            return Err(ArrowError::InvalidArgumentError(message));
        }
        let gap = found.tombstone.is_some();
        let is_cold = found.cold_segments > 0;
        let rows = build_batch(&self.format, &found)?;
        let (next, bytes) = (found.next_from_seq, found.payload_bytes());
        buffers.recycle(found);
        Ok(Page { next, gap, is_cold, bytes, rows })
    }
}

impl RangeReader<ReadBuffers> for PageReader {
    type Output = Result<Page, ArrowError>;

    fn read_range(&self, range: Range, buffers: &mut ReadBuffers) -> Self::Output {
        let from = ReadFrom::After(range.after);
        let request = ReadRequest { from, upto: Some(range.upto), ..self.request.clone() };
        self.read(&request, buffers)
    }
}

impl Iterator for Scan {
    type Item = Result<RecordBatch, ArrowError>;

    fn next(&mut self) -> Option<Self::Item> {
        let item = self.advance().transpose();
        if let Some(Err(e)) = &item {
            self.done = true;
            // Set once: an error is the end.
            let _ = self.failed.set(failure(e));
        }
        item
    }
}

impl RecordBatchReader for Scan {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }
}

#[cfg(test)]
mod tests;
