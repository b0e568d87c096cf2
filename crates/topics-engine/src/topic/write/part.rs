//! The control frames of a transaction in one topic, in the batch of its rows.

use topics_storage::format::record::{self, Body, TxnPart};

use crate::topic::Topic;
use crate::topic::load::Hints;

/// The control frames of a part.
#[derive(Debug)]
pub(crate) struct PartFrames {
    pub part: TxnPart,
    pub delete: Option<record::Delete>,
    pub consumers: Vec<record::Consumer>,
    pub hints: Hints,
}

impl PartFrames {
    /// Encodes the frames for rows from `first` on (0: no rows) of a topic with this head.
    pub(crate) fn encode(&self, out: &mut Vec<u8>, topic: &Topic, first: u64, head: u64) {
        let id = topic.id();
        self.part.encode_frame(out, id, first, 0);
        if let Some(delete) = &self.delete {
            // Evicted records must not turn into deleted ones, which readers are not told of.
            topic.state.read().range.encode_floor(out, id);
            record::Delete { bound: head, ..delete.clone() }.encode_frame(out, id, 0, 0);
        }
        for c in &self.consumers {
            c.encode_frame(out, id, 0, 0);
        }
    }
}
