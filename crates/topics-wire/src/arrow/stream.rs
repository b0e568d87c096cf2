//! A scan as the bytes of an Arrow IPC stream, a piece at a time.

use arrow_ipc::writer::StreamWriter;
use arrow_schema::ArrowError;
use topics_engine::Error;

use super::Scan;
use crate::error::Failure;

/// The bytes of a scan. The marker of its end comes only after all of it.
pub struct IpcStream {
    scan: Scan,
    writer: StreamWriter<Vec<u8>>,
}

impl IpcStream {
    /// The stream, and what it begins with: the schema.
    pub fn begin(scan: Scan) -> Result<(Self, Vec<u8>), Failure> {
        let writer = StreamWriter::try_new(Vec::new(), &scan.schema_ref());
        let mut writer = writer.map_err(|e| failure(&e))?;
        let opening = std::mem::take(writer.get_mut());
        Ok((Self { scan, writer }, opening))
    }

    /// The bytes of the next batch, and whether they are the last.
    pub fn next_piece(&mut self) -> Result<(Vec<u8>, bool), Failure> {
        let over = match self.scan.next() {
            Some(batch) => {
                let batch = batch.map_err(|e| failure(&e))?;
                self.writer.write(&batch).map_err(|e| failure(&e))?;
                false
            }
            None => {
                self.writer.finish().map_err(|e| failure(&e))?;
                true
            }
        };
        Ok((std::mem::take(self.writer.get_mut()), over))
    }
}

impl std::fmt::Debug for IpcStream {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IpcStream").field("pinned", &self.scan.pinned()).finish_non_exhaustive()
    }
}

fn failure(e: &ArrowError) -> Failure {
    match e {
        ArrowError::ExternalError(inner) => match inner.downcast_ref::<Error>() {
            Some(e) => Failure::new(e.code(), e.to_string()),
            None => Failure::new("internal", format!("Arrow: {e}")),
        },
        e => Failure::invalid(e.to_string()),
    }
}
