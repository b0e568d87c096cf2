//! The size of the compressed buffers of an IPC stream, from its metadata.

use arrow_ipc::{MessageHeader, RecordBatch, root_as_message};
use arrow_schema::ArrowError;

/// Precedes the length of a message.
const CONTINUATION: [u8; 4] = [0xff; 4];
/// Bytes of the length that precedes a compressed buffer.
const LENGTH_BYTES: i64 = 8;
/// The length of a buffer that is not compressed, because that would not make it smaller.
const IS_PLAIN: i64 = -1;

/// The bytes before and after a position.
type Halves<'a> = (&'a [u8], &'a [u8]);

fn malformed(what: impl std::fmt::Display) -> ArrowError {
    ArrowError::IpcError(what.to_string())
}

/// The bytes that the buffers of all messages of a stream decompress to. A buffer that lies in a body
/// twice counts twice, because the decoder allocates both.
pub(super) fn decompressed_bytes(mut stream: &[u8]) -> Result<u64, ArrowError> {
    let mut total = 0u64;
    while let Some((metadata, rest)) = next_metadata(stream)? {
        let message = root_as_message(metadata).map_err(malformed)?;
        let body_length = usize::try_from(message.bodyLength()).map_err(malformed)?;
        let (body, rest) = split(rest, body_length)?;
        let batch = match message.header_type() {
            MessageHeader::RecordBatch => message.header_as_record_batch(),
            MessageHeader::DictionaryBatch => {
                message.header_as_dictionary_batch().and_then(|dictionary| dictionary.data())
            }
            _ => None,
        };
        if let Some(batch) = batch {
            total = total.saturating_add(bytes_of_batch(batch, body)?);
        }
        stream = rest;
    }
    Ok(total)
}

/// The metadata of the next message and what follows it; `None` at the end of the stream.
fn next_metadata(stream: &[u8]) -> Result<Option<Halves<'_>>, ArrowError> {
    let stream = stream.strip_prefix(&CONTINUATION).unwrap_or(stream);
    if stream.is_empty() {
        return Ok(None);
    }
    let (length, rest) = stream.split_first_chunk().ok_or_else(truncated)?;
    match u32::from_le_bytes(*length) {
        0 => Ok(None),
        length => split(rest, length as usize).map(Some),
    }
}

fn bytes_of_batch(batch: RecordBatch<'_>, body: &[u8]) -> Result<u64, ArrowError> {
    if batch.compression().is_none() {
        return Ok(0);
    }
    let mut total = 0u64;
    for buffer in batch.buffers().into_iter().flatten().filter(|buffer| buffer.length() != 0) {
        let length = usize::try_from(buffer.offset())
            .ok()
            .filter(|_| buffer.length() >= LENGTH_BYTES)
            .and_then(|at| body.get(at..)?.first_chunk())
            .ok_or_else(|| malformed("a compressed buffer is outside of its message"))?;
        total = match i64::from_le_bytes(*length) {
            IS_PLAIN => total,
            length => total.saturating_add(u64::try_from(length).map_err(malformed)?),
        };
    }
    Ok(total)
}

fn split(bytes: &[u8], at: usize) -> Result<Halves<'_>, ArrowError> {
    bytes.split_at_checked(at).ok_or_else(truncated)
}

fn truncated() -> ArrowError {
    malformed("Unexpected End of Stream")
}
