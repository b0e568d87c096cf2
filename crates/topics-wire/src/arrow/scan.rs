//! A range of a topic as a stream of Arrow batches, read as it is consumed.

use arrow_array::{RecordBatch, RecordBatchReader};
use arrow_schema::ffi::FFI_ArrowSchema;
use arrow_schema::{ArrowError, SchemaRef};
use topics_engine::{Engine, NodeFilter, ReadFrom, ReadRequest, TopicMatch};

use super::{FFI_ArrowArrayStream, Pinned, record_batch, schema};
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
    /// Only records with these tags.
    pub matching: Option<TopicMatch>,
    /// The topic id that the cursor was made with.
    pub topic_id: Option<u64>,
    /// Type `data` as binary; `None`: as the first record is.
    pub binary: Option<bool>,
    /// Payload bytes of one batch.
    pub batch_bytes: usize,
}

/// Rows of one batch at most.
const BATCH_ROWS: usize = 65_536;

/// A scan: its end is fixed when it begins.
#[derive(Debug)]
pub struct Scan {
    engine: Engine,
    topic: String,
    request: ReadRequest,
    pinned: Pinned,
    schema: SchemaRef,
    done: bool,
}

impl Scan {
    /// Begins a scan.
    pub fn begin(engine: Engine, topic: &str, r: ScanRequest) -> Result<Self, Failure> {
        let state = engine.state(topic, true)?;
        let to_seq = r.upto.map_or(state.head_seq, |upto| upto.min(state.head_seq));
        let pinned = Pinned { topic_id: state.topic_id, head_seq: state.head_seq, to_seq };
        let request = ReadRequest {
            from: r.after.map_or(ReadFrom::Earliest, ReadFrom::After),
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
        let done = r.after.is_some_and(|after| after >= to_seq && after <= state.head_seq);
        Ok(Self {
            engine,
            topic: topic.to_owned(),
            request,
            pinned,
            schema: schema(binary, pinned),
            done,
        })
    }

    /// The numbers in the schema.
    #[must_use]
    pub fn pinned(&self) -> Pinned {
        self.pinned
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
            let page = self
                .engine
                .read(&self.topic, &self.request)
                .map_err(|e| ArrowError::ExternalError(Box::new(e)))?;
            if page.topic_id != self.pinned.topic_id {
                let message = format!("topic {:?} was created again during the scan", self.topic);
                return Err(ArrowError::InvalidArgumentError(message));
            }
            let from = ReadFrom::After(page.next_from_seq);
            // A page that neither moves nor explains itself would be read for ever.
            let stuck = from == self.request.from && page.tombstone.is_none();
            self.done = page.next_from_seq >= self.pinned.to_seq || stuck;
            self.request.from = from;
            self.request.topic_id = Some(page.topic_id);
            if !page.is_empty() || page.tombstone.is_some() {
                return record_batch(&self.schema, &self.topic, &page).map(Some);
            }
        }
        Ok(None)
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
