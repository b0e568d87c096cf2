//! Encodes a scan as an Arrow IPC stream, one batch at a time.

use std::ops::Deref;

use arrow_buffer::Buffer;
use arrow_ipc::writer::StreamEncoder;
use bytes::Bytes;

use topics_wire::Failure;
use topics_wire::arrow::failure;

use super::Scan;

/// Shorter buffers are copied together.
const SMALL: usize = 16 << 10;

/// An Arrow IPC stream. The end-of-stream marker follows only a complete scan.
pub struct IpcStream {
    scan: Scan,
    /// `None` after the end-of-stream marker.
    encoder: Option<StreamEncoder>,
}

impl IpcStream {
    /// The stream of a scan.
    pub fn new(scan: Scan) -> Result<Self, Failure> {
        let encoder = StreamEncoder::try_new(&scan.schema_ref()).map_err(|e| failure(&e))?;
        Ok(Self { scan, encoder: Some(encoder) })
    }

    /// The bytes of the next batch, with the schema before the first; `None` at the end of the
    /// stream. Columns are not copied.
    pub fn next_batch(&mut self) -> Result<Option<Vec<Bytes>>, Failure> {
        let Some(encoder) = &mut self.encoder else { return Ok(None) };
        let made = match self.scan.next() {
            Some(batch) => batch.and_then(|batch| encoder.encode(&batch)),
            None => self.encoder.take().map_or(Ok(Vec::new()), StreamEncoder::finish),
        };
        made.map(|buffers| Some(joined(buffers))).map_err(|e| failure(&e))
    }

    /// Whether the end-of-stream marker has been returned.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.encoder.is_none()
    }
}

impl std::fmt::Debug for IpcStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IpcStream").field("bounds", &self.scan.bounds()).finish_non_exhaustive()
    }
}

/// Joins small buffers, so that the stream has fewer pieces.
fn joined(buffers: Vec<Buffer>) -> Vec<Bytes> {
    let (mut out, mut small) = (Vec::new(), Vec::new());
    for buffer in buffers {
        if buffer.len() < SMALL {
            small.extend_from_slice(&buffer);
            continue;
        }
        if !small.is_empty() {
            out.push(std::mem::take(&mut small).into());
        }
        out.push(Bytes::from_owner(Column(buffer)));
    }
    if !small.is_empty() {
        out.push(small.into());
    }
    out
}

/// The memory of a column as the owner of a [`Bytes`].
struct Column(Buffer);

impl AsRef<[u8]> for Column {
    fn as_ref(&self) -> &[u8] {
        self.0.deref()
    }
}
