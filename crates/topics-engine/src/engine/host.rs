//! The state in the log beside the topics, and the observer of all topics.

use std::sync::Arc;
use std::sync::{OnceLock, Weak};

use topics_env::Env;
use topics_storage::format::frame::FrameType;
use topics_storage::format::record::{self, Body};
use topics_storage::snapshot::{ReplayPos, Section};

use crate::catalog::TopicTable;
use crate::catalog::ids::Ids;
use crate::ctx::Pressure;
use crate::delivery::DeliveryWorkers;
use crate::queue::{self, ClaimWaiters, Queues};
use crate::router::{self, COPIES_LOGGED, Definition, Routers};
use crate::topic::Topic;
use crate::topic::events::{ApplySink, Base, FrameTopic, LoggedFrame, TopicObserver};
use crate::topic::state::queue::RemovalReason;
use crate::txn::{self, TxnTable};
use crate::types::error::{Error, Result};
use crate::types::options::Options;
use crate::types::quota::Quota;

/// The state that frames change, except that of topics. Recovery applies frames to it before there is a
/// log.
pub(crate) struct Host {
    pub table: Arc<TopicTable>,
    pub ids: Arc<Ids>,
    pub routers: Routers,
    pub txn_table: Arc<TxnTable>,
    pub delivery_workers: Arc<DeliveryWorkers>,
    pub claim_waiters: Arc<ClaimWaiters>,
    queues: OnceLock<Weak<Queues>>,
}

impl Host {
    /// An empty one.
    pub(crate) fn new(
        env: &Env,
        options: &Options,
        keys: Arc<Quota>,
        pressure: Arc<Pressure>,
    ) -> Arc<Self> {
        let (clock, guards) = (env.clock.clone(), env.guards.clone());
        Arc::new(Self {
            table: Arc::default(),
            ids: Arc::default(),
            routers: Routers::default(),
            txn_table: Arc::new(TxnTable::new(keys)),
            delivery_workers: Arc::new(DeliveryWorkers::new(
                clock,
                guards,
                pressure,
                options.workers(),
            )),
            claim_waiters: Arc::default(),
            queues: OnceLock::new(),
        })
    }

    /// Enables the move of expired jobs to their dead-letter topics.
    pub(crate) fn serve_queues(&self, queues: &Arc<Queues>) {
        // Called once.
        let _ = self.queues.set(Arc::downgrade(queues));
    }

    /// Tells topics which routers copy from them.
    pub(crate) fn wire(&self, sources: impl IntoIterator<Item = u64>) {
        for source in sources {
            let Some(routers) = self.routers.copying_from(source) else { return };
            if let Some(topic) = self.table.loaded.by_id(source) {
                self.delivery_workers.subscribers(&topic).set_routers(routers);
            }
        }
    }
}

impl TopicObserver for Host {
    fn created(&self, topic: &Arc<Topic>) {
        self.delivery_workers.topic_created(topic);
    }

    fn deleted(&self, topic: &Topic) {
        self.table.loaded.remove(topic);
        self.wire(self.routers.remove_routers_of(topic.id()));
    }

    fn queue_changed(&self, topic_id: u64) {
        self.claim_waiters.notify(topic_id);
    }

    fn jobs_expire(&self, topic: &Arc<Topic>, seqs: &[u64]) -> Result<RemovalReason> {
        let queues = self.queues.get().and_then(Weak::upgrade).ok_or(Error::Closed)?;
        queue::expire_jobs(&queues, topic, seqs)
    }
}

impl ApplySink for Host {
    fn topic(&self, base: &Base, id: u64, here: ReplayPos) -> Result<FrameTopic> {
        if self.table.reflects(id, here)? {
            return Ok(FrameTopic::Reflected);
        }
        Ok(self.table.by_id(base, id)?.map_or(FrameTopic::Gone, FrameTopic::Loaded))
    }

    fn apply(&self, base: &Base, at: &LoggedFrame<'_>, known: Option<&Arc<Topic>>) -> Result<()> {
        let f = &at.frame;
        match f.kind {
            FrameType::TopicCreate => self.table.apply_creation(base, at, known, &self.ids)?,
            FrameType::TopicDelete => {
                let body = record::TopicDelete::decode(f)?;
                let topic = self.table.by_id(base, f.topic_id)?;
                if let Some(topic) = topic.filter(|t| t.key.epoch == body.epoch) {
                    topic.retire(base);
                    base.metrics.topics_deleted.add(1);
                }
            }
            FrameType::HeadWatermark => {
                self.ids.logged(record::HeadWatermark::decode(f)?.reserved_to);
            }
            FrameType::RouterCreate => {
                let body = record::RouterCreate::decode(f)?;
                let d = Definition::decode(&body.name, body.router_id, &body.options)?;
                self.wire(self.routers.put(&self.ids, d));
            }
            FrameType::RouterDelete => {
                self.wire(self.routers.take(record::RouterDelete::decode(f)?.router_id));
            }
            FrameType::Forward => self.forwarded(record::Forward::decode(f)?, at.lsn)?,
            FrameType::TxnCommit => self.txn_table.committed(record::TxnCommit::decode(f)?),
            FrameType::TxnDone => self.txn_table.done(record::TxnDone::decode(f)?, f.ts, at.lsn),
            FrameType::TxnPart => {
                self.txn_table.part(record::TxnPart::decode(f)?, f.topic_id, f.seq);
            }
            FrameType::CheckpointMark
            | FrameType::Group
            | FrameType::CleanClose
            | FrameType::Start => {}
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

    fn capture(&self) -> Vec<Section> {
        let mut sections = self.routers.capture();
        sections.extend(self.txn_table.capture());
        sections
    }

    fn restore(&self, _base: &Base, section: &Section) -> Result<bool> {
        Ok(self.routers.restore(&self.ids, section)? || self.txn_table.restore(section)?)
    }

    /// A router's cursor spans shards, and cannot be kept apart. Of transactions only decisions and
    /// ends, on shard 0, can be lost: a part is marked when it is durable, wherever it lies.
    fn holds_without(&self, shards: &[usize], before: &[Section]) -> bool {
        let has = |kind| before.iter().any(|s| s.kind == kind);
        let decided = self.txn_table.capture().is_some() || has(txn::SECTION);
        !has(router::SECTION)
            && self.routers.capture().is_empty()
            && !(decided && shards.contains(&0))
    }
}

impl Host {
    fn forwarded(&self, body: record::Forward, lsn: u64) -> Result<()> {
        if body.options != COPIES_LOGGED {
            return Err(Error::Version {
                what: format!("a Forward frame (lsn {lsn})"),
                found: body.options,
                supported: COPIES_LOGGED,
            });
        }
        self.routers.forwarded(body.router_id, body.source_to);
        Ok(())
    }
}
