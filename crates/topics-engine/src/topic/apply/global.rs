//! Frames of no topic, and of a topic's birth and death.

use std::sync::Arc;

use topics_storage::format::frame::FrameType;
use topics_storage::format::record::{self, Body};
use topics_storage::segment::TopicKey;
use topics_storage::snapshot::ReplayPos;

use super::{At, Live};
use crate::core::Base;
use crate::router::{COPIES_LOGGED, Definition};
use crate::topic::{Life, Topic};
use crate::types::config::TopicConfig;
use crate::types::error::{Error, Result};

/// A frame of no topic, or of a topic's birth or death.
pub(crate) fn apply_global(
    base: &Base,
    at: &At<'_>,
    layout: u64,
    live: Option<&Live<'_>>,
) -> Result<()> {
    let f = &at.frame;
    match f.kind {
        FrameType::TopicCreate => {
            let body = record::TopicCreate::decode(f)?;
            let key = TopicKey { topic_id: f.topic_id, epoch: body.epoch };
            let config = base.config(TopicConfig::decode(&body.config)?);
            let topic = match live.map(|l| l.topic).filter(|t| t.key == key) {
                Some(topic) => topic.clone(),
                None if base.knows(f.topic_id) => return Ok(()),
                None => Arc::new(Topic::new(key, body.name.as_str().into(), config.clone())),
            };
            let head = {
                let mut state = topic.state.write();
                state.config = config;
                state.reserved_to = body.reserved_to;
                // Not synced by itself: if it is lost, so is the topic.
                state.reserved_synced = body.reserved_to;
                state.applied = ReplayPos { layout, lsn: at.lsn };
                state.visible()
            };
            base.ids.seen(f.topic_id);
            topic.set_life(Life::Live);
            // Records of an `ephemeral` write have no frames: they wait for this one.
            topic.gate.publish(head);
            base.registry.adopt(topic.clone());
            base.delivery.born(&topic);
            base.metrics.topics_created.add(1);
        }
        FrameType::TopicDelete => {
            let body = record::TopicDelete::decode(f)?;
            if let Some(topic) = base.by_id(f.topic_id)?.filter(|t| t.key.epoch == body.epoch) {
                topic.die(base);
                base.metrics.topics_deleted.add(1);
            }
        }
        FrameType::HeadWatermark => {
            let body = record::HeadWatermark::decode(f)?;
            base.ids.logged(body.reserved_to);
        }
        FrameType::RouterCreate => {
            let body = record::RouterCreate::decode(f)?;
            let d = Definition::decode(&body.name, body.router_id, &body.options)?;
            base.routers.put(base, d);
        }
        FrameType::RouterDelete => {
            base.routers.take(base, record::RouterDelete::decode(f)?.router_id);
        }
        FrameType::Forward => {
            let body = record::Forward::decode(f)?;
            if body.options != COPIES_LOGGED {
                return Err(Error::Version {
                    what: format!("a Forward frame (lsn {})", at.lsn),
                    found: body.options,
                    supported: COPIES_LOGGED,
                });
            }
            base.routers.forwarded(body.router_id, body.source_to);
        }
        FrameType::TxnCommit => base.txns.committed(record::TxnCommit::decode(f)?),
        FrameType::TxnDone => base.txns.done(record::TxnDone::decode(f)?, f.ts, at.lsn),
        FrameType::CheckpointMark | FrameType::Group | FrameType::CleanClose | FrameType::Start => {
        }
        // Of a later version, which says that it may be passed over.
        FrameType::Skippable => {}
        // A gap of a shard as a whole says which lsns are gone: nothing to change here.
        FrameType::Gap => {}
        // Of a topic.
        kind => {
            let text = format!("a {kind:?} frame of no topic (lsn {})", at.lsn);
            return Err(Error::Internal(text));
        }
    }
    Ok(())
}
