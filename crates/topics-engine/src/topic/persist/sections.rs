//! The optional sections of a topic in the snapshot, for queues and topics with consumers.

use topics_storage::snapshot::Section;

use crate::topic::cursors;
use crate::topic::events::Base;
use crate::topic::state::State;
use crate::topic::state::queue::codec;
use crate::types::config::TopicType;
use crate::types::error::{Error, Result};

/// A queue's state, see [`crate::topic::state::queue::codec`].
const QUEUE: u16 = 1;
/// Stored cursors, see [`cursors::encode`].
const CONSUMERS: u16 = 2;

impl State {
    /// The sections at monotonic time `mono`, for a snapshot of this layout.
    pub(crate) fn sections(&self, mono: u64, layout: u64) -> Vec<Section> {
        let (durable, lsn) = (self.config.leases_durable, self.checkpoint.applied_in(layout));
        let queue = self.queue.as_ref().and_then(|q| codec::encode(q, durable, mono, lsn));
        let queue = queue.map(|bytes| Section { kind: QUEUE, version: codec::VERSION, bytes });
        let consumers = self.consumers.as_ref().and_then(|c| cursors::encode(c));
        let consumers =
            consumers.map(|bytes| Section { kind: CONSUMERS, version: cursors::VERSION, bytes });
        queue.into_iter().chain(consumers).collect()
    }

    /// Restores sections that reflect a log of this layout.
    pub(crate) fn restore_sections(
        &mut self,
        base: &Base,
        sections: &[Section],
        layout: u64,
    ) -> Result<()> {
        let mono = base.time.mono_ms();
        for s in sections {
            match (s.kind, s.version) {
                (QUEUE, codec::VERSION) => {
                    let queue = codec::decode(&s.bytes, mono, layout)?;
                    self.queue = Some(Box::new(queue));
                }
                (CONSUMERS, cursors::VERSION) => {
                    let mut consumers = Box::new(cursors::decode(&s.bytes)?);
                    consumers.count(base);
                    self.consumers = Some(consumers);
                }
                (kind, version) => {
                    let supported = match kind {
                        QUEUE => codec::VERSION,
                        CONSUMERS => cursors::VERSION,
                        _ => 0,
                    };
                    return Err(Error::Version {
                        what: format!("section {kind} of a topic in the snapshot"),
                        found: u32::from(version),
                        supported: u32::from(supported),
                    });
                }
            }
        }
        Ok(())
    }

    /// Ends the recovery of the sections after replay.
    pub(crate) fn sections_recovered(&mut self, base: &Base) {
        if let Some(consumers) = &mut self.consumers {
            consumers.recovered();
        }
        let durable = self.config.leases_durable;
        if self.config.kind == TopicType::Queue {
            self.queue.get_or_insert_default().recovered(base.time.now(), durable);
        }
    }
}
