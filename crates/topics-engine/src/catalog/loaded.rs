//! The topics in memory, by name and id.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

use dashmap::DashMap;
use topics_env::sync::{Mutex, RwLock};

use crate::topic::Topic;
use crate::types::error::Result;

/// The loaded topics by name and id.
#[derive(Debug, Default)]
pub(crate) struct LoadedTopics {
    names: DashMap<Arc<str>, Arc<Topic>>,
    ids: DashMap<u64, Arc<Topic>>,
    /// The same names in order, without topics that are being created.
    listed: RwLock<BTreeMap<Arc<str>, Arc<Topic>>>,
    creating: Mutex<()>,
}

impl LoadedTopics {
    /// The topic of a name, created or being created.
    pub(crate) fn named(&self, name: &str) -> Option<Arc<Topic>> {
        self.names.get(name).map(|t| t.clone())
    }

    pub(crate) fn by_id(&self, id: u64) -> Option<Arc<Topic>> {
        self.ids.get(&id).map(|t| t.clone())
    }

    /// Number of names.
    pub(crate) fn len(&self) -> usize {
        self.names.len()
    }

    /// The topic of a name; if there is none, adds the topic that `make` makes.
    pub(crate) fn claim(
        &self,
        name: &str,
        make: impl FnOnce() -> Result<Arc<Topic>>,
    ) -> Result<Arc<Topic>> {
        let _one = self.creating.lock();
        if let Some(topic) = self.named(name) {
            return Ok(topic);
        }
        let topic = make()?;
        self.ids.insert(topic.id(), topic.clone());
        self.names.insert(topic.name.clone(), topic.clone());
        Ok(topic)
    }

    /// Adds a topic whose creation was applied. Of two with one name the higher epoch has it; the other is
    /// known by its id until its delete is replayed, or it is deleted as [`Self::shadowed`].
    pub(crate) fn adopt(&self, topic: Arc<Topic>) {
        self.ids.insert(topic.id(), topic.clone());
        let mut listed = self.listed.write();
        if listed.get(&topic.name).is_none_or(|t| t.key.epoch <= topic.key.epoch) {
            listed.insert(topic.name.clone(), topic.clone());
            self.names.insert(topic.name.clone(), topic);
        }
    }

    /// Removes a topic, and its name unless another topic has it.
    pub(crate) fn remove(&self, topic: &Topic) {
        self.ids.remove(&topic.id());
        let mut listed = self.listed.write();
        if listed.get(&topic.name).is_some_and(|t| t.key == topic.key) {
            listed.remove(&topic.name);
        }
        self.names.remove_if(&topic.name, |_, t| t.key == topic.key);
    }

    /// After a replay, the topics whose name another topic has. Their deletes were lost, or are in a log
    /// that was not read; their records cannot be reached.
    pub(crate) fn shadowed(&self) -> Vec<Arc<Topic>> {
        let other = |t: &Topic| self.names.get(&t.name).is_none_or(|n| n.key != t.key);
        let mut found: Vec<_> =
            self.ids.iter().filter(|t| other(t)).map(|t| t.value().clone()).collect();
        found.sort_unstable_by_key(|t| t.id());
        found
    }

    /// Created topics in name order after `after`, with `prefix`; at most `limit`.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Arc<Topic>> {
        let from = match after {
            Some(after) if after >= prefix => Bound::Excluded(after),
            _ => Bound::Included(prefix),
        };
        let listed = self.listed.read();
        listed
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(name, _)| name.starts_with(prefix))
            .take(limit)
            .map(|(_, t)| t.clone())
            .collect()
    }

    /// Calls `f` for each topic, in pages, so that the lock of the list is held briefly.
    pub(crate) fn each(&self, mut f: impl FnMut(&Arc<Topic>)) {
        let mut after: Option<Arc<str>> = None;
        loop {
            let page = self.list("", after.as_deref(), 256);
            let Some(last) = page.last() else { return };
            after = Some(last.name.clone());
            page.iter().for_each(&mut f);
        }
    }
}
