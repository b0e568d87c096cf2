//! Encodes a scan as an Arrow IPC stream, one batch at a time.

use std::ops::Deref;

use arrow_buffer::Buffer;
use arrow_ipc::CompressionType;
use arrow_ipc::writer::{IpcWriteOptions, StreamEncoder};
use bytes::Bytes;

use topics_wire::Failure;
use topics_wire::arrow::failure;

use super::Scan;

/// Shorter buffers are copied together.
const SMALL: usize = 16 << 10;

/// The fastest level: the next ones cost more time than they save on a network.
const ZSTD_LEVEL: i32 = 1;

/// An Arrow IPC stream. The end-of-stream marker follows only a complete scan.
pub struct IpcStream {
    scan: Scan,
    /// `None` after the end-of-stream marker.
    encoder: Option<StreamEncoder>,
}

impl IpcStream {
    /// The stream of a scan; its buffers are compressed if there is a codec.
    pub fn new(scan: Scan, compression: Option<CompressionType>) -> Result<Self, Failure> {
        let level = compression.filter(|c| *c == CompressionType::ZSTD).map(|_| ZSTD_LEVEL);
        let encoder = IpcWriteOptions::default()
            .try_with_compression(compression)
            .and_then(|options| options.try_with_compression_level(level))
            .and_then(|options| StreamEncoder::try_new_with_options(&scan.schema_ref(), options))
            .map_err(|e| failure(&e))?;
        Ok(Self { scan, encoder: Some(encoder) })
    }

    /// The bytes of the next batch, with the schema before the first; `None` at the end of the
    /// stream. Columns that are not compressed are not copied.
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
