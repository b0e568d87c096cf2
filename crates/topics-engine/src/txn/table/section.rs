//! The section of a snapshot with the state of transactions.

use topics_storage::format::frame::{self, FrameType};
use topics_storage::format::record::{Body, TxnCommit, TxnDone, TxnFile, TxnPart};
use topics_storage::snapshot::Section;

use super::{SECTION, TxnTable, VERSION, empty_commit};
use crate::types::error::{Error, Result};
use crate::types::section::is_of;

impl TxnTable {
    /// The section of a snapshot, as frames. Captured after the topics, so it may have a part that the
    /// topic's state lacks (the part is replayed then), but never the reverse.
    pub(crate) fn capture(&self) -> Option<Section> {
        let inner = self.inner.lock();
        let mut bytes = Vec::new();
        for last in inner.last.values() {
            last.body.encode_frame(&mut bytes, 0, 0, last.ts);
        }
        for open in inner.open.values() {
            open.body.encode_frame(&mut bytes, 0, 0, 0);
            let part = TxnPart { writer: open.body.writer.clone(), epoch: open.body.epoch };
            for (topic_id, first) in &open.parts {
                part.encode_frame(&mut bytes, *topic_id, *first, 0);
            }
        }
        if !inner.spent.is_empty() {
            let names = inner.spent.keys().cloned();
            let files = names.map(|name| TxnFile { name, len: 0, checksum: 0 }).collect();
            TxnCommit { files, ..empty_commit() }.encode_frame(&mut bytes, 0, 0, 0);
        }
        (!bytes.is_empty()).then_some(Section { kind: SECTION, version: VERSION, bytes })
    }

    /// Restores a section of a snapshot. Returns false if it is of another kind.
    pub(crate) fn restore(&self, section: &Section) -> Result<bool> {
        if !is_of(section, SECTION, VERSION, "the transactions")? {
            return Ok(false);
        }
        let mut rest = &section.bytes[..];
        let damaged = |why: String| Error::Corrupt {
            file: "the transactions in the snapshot".into(),
            offset: 0,
            detail: why,
        };
        while !rest.is_empty() {
            let (f, len) = frame::parse(rest).map_err(|e| damaged(e.to_string()))?;
            match f.kind {
                FrameType::TxnDone => self.done(TxnDone::decode(&f)?, f.ts, 0),
                FrameType::TxnCommit => self.committed(TxnCommit::decode(&f)?),
                FrameType::TxnPart => self.part(TxnPart::decode(&f)?, f.topic_id, f.seq),
                kind => return Err(damaged(format!("a {kind:?} frame"))),
            }
            rest = &rest[len..];
        }
        Ok(true)
    }
}
