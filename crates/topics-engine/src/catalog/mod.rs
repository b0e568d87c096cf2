//! Names and ids of topics, loaded or not.
//!
//! A [`TopicTable`] knows every topic; it needs no log, so recovery has one too. [`Catalog`] is the
//! table of an open engine, with the log that its topics are written to.
//!
//! | module | does |
//! |---|---|
//! | `loaded` | topics in memory by name and id |
//! | `unloaded` | topics that no call has used since a clean close: entries of the snapshot |
//! | `ids` | the counter of ids and epochs |

pub(crate) mod ids;
pub(crate) mod loaded;
pub(crate) mod unloaded;

use std::sync::Arc;

use topics_storage::format::record::{Body, TopicCreate};
use topics_storage::segment::TopicKey;

use self::ids::Ids;
use self::loaded::LoadedTopics;
use self::unloaded::{CatalogEntry, UnloadedTopics};
use crate::topic::events::{Base, Ctx, LoggedFrame};
use crate::topic::{Life, Topic};
use crate::types::config::TopicConfig;
use crate::types::error::Result;

/// All topics.
#[derive(Debug, Default)]
pub(crate) struct TopicTable {
    /// The loaded topics; [`TopicTable::named`] finds unloaded ones too.
    pub loaded: LoadedTopics,
    unloaded: UnloadedTopics,
}

/// The topics of an open engine.
#[derive(Debug)]
pub(crate) struct Catalog {
    ctx: Arc<Ctx>,
    pub table: Arc<TopicTable>,
    pub ids: Arc<Ids>,
}

impl Catalog {
    /// The log, and what is around it.
    pub(crate) fn ctx(&self) -> &Arc<Ctx> {
        &self.ctx
    }

    /// What is there without the log.
    pub(crate) fn base(&self) -> &Base {
        self.ctx.base()
    }

    pub(crate) fn new(ctx: Arc<Ctx>, table: Arc<TopicTable>, ids: Arc<Ids>) -> Arc<Self> {
        Arc::new(Self { ctx, table, ids })
    }

    /// Number of topics.
    pub(crate) fn topics(&self) -> usize {
        self.table.len()
    }

    /// See [`TopicTable::named`].
    pub(crate) fn named(&self, name: &str) -> Result<Option<Arc<Topic>>> {
        self.table.named(self.base(), name)
    }

    /// The topic of a name, if readers may see it.
    pub(crate) fn live(&self, name: &str) -> Result<Option<Arc<Topic>>> {
        Ok(self.named(name)?.filter(|t| t.life() == Life::Live))
    }

    /// See [`TopicTable::by_id`].
    pub(crate) fn by_id(&self, id: u64) -> Result<Option<Arc<Topic>>> {
        self.table.by_id(self.base(), id)
    }

    /// See [`TopicTable::verify_files_once`].
    pub(crate) fn verify_files_once(&self, topic: &Topic) -> Result<()> {
        self.table.verify_files_once(self.base(), topic)
    }

    /// See [`TopicTable::list`].
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<CatalogEntry> {
        self.table.list(prefix, after, limit)
    }

    /// See [`TopicTable::every`].
    pub(crate) fn every(&self, f: impl FnMut(&CatalogEntry) -> Result<()>) -> Result<()> {
        self.table.every(f)
    }
}

impl TopicTable {
    /// Applies the creation of a topic, live or in recovery. `known` is the topic of the batch.
    pub(crate) fn apply_creation(
        &self,
        base: &Base,
        at: &LoggedFrame<'_>,
        known: Option<&Arc<Topic>>,
        ids: &Ids,
    ) -> Result<()> {
        let body = TopicCreate::decode(&at.frame)?;
        let id = at.frame.topic_id;
        let key = TopicKey { topic_id: id, epoch: body.epoch };
        let config = base.config(TopicConfig::decode(&body.config)?);
        let topic = match known.filter(|t| t.key == key) {
            Some(topic) => topic.clone(),
            None if self.knows(id) => return Ok(()),
            None => Arc::new(Topic::new(key, body.name.as_str().into(), config.clone())),
        };
        let head = topic.apply_creation(config, body.reserved_to, at);
        ids.seen(id);
        topic.set_life(Life::Live);
        // Records of an `ephemeral` write have no frames; the creation frame shows them.
        topic.gate.publish(head);
        self.loaded.adopt(topic.clone());
        base.host.created(&topic);
        base.metrics.topics_created.add(1);
        Ok(())
    }
}
