//! The registry of routers.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::sync::Arc;

use topics_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use topics_env::sync::{Mutex, RwLock};
use topics_storage::snapshot::Section;

use super::define::{Definition, End, decode_all, encode_all};
use super::run::Router;
use crate::catalog::Catalog;
use crate::catalog::ids::Ids;
use crate::types::error::Result;
use crate::types::section::is_of;

/// The section of a snapshot that holds the routers.
pub(crate) const SECTION: u16 = 1;
const VERSION: u16 = 1;

/// The routers of an engine.
#[derive(Default)]
pub(crate) struct Routers {
    named: RwLock<BTreeMap<Arc<str>, Arc<Router>>>,
    /// Logged cursors by router id: a Forward may be replayed before its router.
    cursors: Mutex<HashMap<u64, u64>>,
    len: AtomicUsize,
    /// Set after recovery: routers run.
    running: AtomicBool,
    /// Locked while a verb decides about routers.
    pub(crate) deciding: Mutex<()>,
}

impl fmt::Debug for Routers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Routers").field("len", &self.len).finish_non_exhaustive()
    }
}

impl Routers {
    pub(crate) fn get(&self, name: &str) -> Option<Arc<Router>> {
        self.named.read().get(name).cloned()
    }

    pub(crate) fn all(&self) -> Vec<Arc<Router>> {
        self.named.read().values().cloned().collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.len.load(Ordering::SeqCst)
    }

    /// Adds or updates a router. Of two with one name the newer one is kept. Returns the source to wire.
    pub(crate) fn put(&self, ids: &Ids, definition: Definition) -> Option<u64> {
        let (name, source) = (definition.name.clone(), definition.source.topic_id);
        let id = definition.id;
        {
            let mut named = self.named.write();
            match named.get(&name).map(|r| (r.clone(), r.definition().id)) {
                Some((_, old)) if old > id => return None,
                Some((router, old)) if old == id => router.redefine(definition),
                old => {
                    if let Some((old, _)) = old {
                        old.end();
                    }
                    named.insert(name, Router::new(definition));
                }
            }
            self.len.store(named.len(), Ordering::SeqCst);
        }
        ids.seen(id);
        Some(source)
    }

    /// Removes a deleted router. Returns the sources to wire.
    pub(crate) fn take(&self, id: u64) -> Vec<u64> {
        let sources = self.remove(|d| d.id == id);
        self.cursors.lock().remove(&id);
        sources
    }

    /// Removes the routers of a deleted topic; one atomic load if there are no routers. Returns the
    /// sources to wire.
    pub(crate) fn remove_routers_of(&self, topic_id: u64) -> Vec<u64> {
        if self.len() > 0 && self.running.load(Ordering::SeqCst) {
            self.remove(|d| d.names(topic_id))
        } else {
            Vec::new()
        }
    }

    fn remove(&self, which: impl Fn(&Definition) -> bool) -> Vec<u64> {
        let mut gone = Vec::new();
        {
            let mut named = self.named.write();
            named.retain(|_, r| {
                let go = which(&r.definition());
                if go {
                    r.end();
                    gone.push(r.definition());
                }
                !go
            });
            self.len.store(named.len(), Ordering::SeqCst);
        }
        let mut cursors = self.cursors.lock();
        for d in &gone {
            cursors.remove(&d.id);
        }
        gone.iter().map(|d| d.source.topic_id).collect()
    }

    /// The names of the routers that name a topic.
    pub(crate) fn of(&self, topic_id: u64) -> Vec<String> {
        if self.len() == 0 {
            return Vec::new();
        }
        let named = self.named.read();
        let mine = named.values().filter(|r| r.definition().names(topic_id));
        mine.map(|r| r.definition().name.to_string()).collect()
    }

    /// The routers that copy from a topic; `None` before they run.
    pub(crate) fn copying_from(&self, source: u64) -> Option<Vec<Arc<Router>>> {
        self.running.load(Ordering::SeqCst).then(|| {
            let all = self.all().into_iter();
            all.filter(|r| r.definition().source.topic_id == source).collect()
        })
    }

    /// Moves the cursor of a router whose Forward frame was logged, in one batch with the copies (I7).
    pub(crate) fn forwarded(&self, id: u64, to: u64) {
        let mut cursors = self.cursors.lock();
        let at = cursors.entry(id).or_insert(0);
        *at = to.max(*at);
    }

    /// The logged cursor of a router.
    pub(crate) fn cursor(&self, d: &Definition) -> u64 {
        self.cursors.lock().get(&d.id).copied().unwrap_or(0).max(d.start)
    }

    /// Captures the routers for a snapshot. Runs after the topics are captured, so a cursor may be ahead of
    /// its destination, whose copies are then replayed, never behind it.
    pub(crate) fn capture(&self) -> Vec<Section> {
        let all: Vec<_> = self.all().iter().map(|r| r.definition()).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let all: Vec<_> = all.into_iter().map(|d| (d.clone(), self.cursor(&d))).collect();
        vec![Section { kind: SECTION, version: VERSION, bytes: encode_all(&all) }]
    }

    /// Restores a section of a snapshot. Returns false for a section of another kind.
    pub(crate) fn restore(&self, ids: &Ids, section: &Section) -> Result<bool> {
        if !is_of(section, SECTION, VERSION, "the routers")? {
            return Ok(false);
        }
        for (definition, cursor) in decode_all(&section.bytes)? {
            self.forwarded(definition.id, cursor);
            // Nothing is wired before routers run.
            self.put(ids, definition);
        }
        Ok(true)
    }

    /// Ends recovery: drops the routers whose topics are gone and starts the others. Returns the sources
    /// to wire.
    pub(crate) fn recovered(&self, catalog: &Catalog) -> Result<Vec<u64>> {
        let mut known = HashSet::new();
        for d in self.all().iter().map(|r| r.definition()) {
            // Its topics are loaded from here on.
            for end in [d.source, d.dest] {
                let topic = catalog.by_id(end.topic_id)?;
                if topic.is_some_and(|t| t.key.epoch == end.epoch) {
                    known.insert(end.topic_id);
                }
            }
        }
        let there = |end: End| known.contains(&end.topic_id);
        self.running.store(true, Ordering::SeqCst);
        let mut sources = self.remove(|d| !there(d.source) || !there(d.dest));
        let all = self.all();
        {
            let known: Vec<u64> = all.iter().map(|r| r.definition().id).collect();
            self.cursors.lock().retain(|id, _| known.contains(id));
        }
        for router in all {
            let d = router.definition();
            router.resume(self.cursor(&d));
            sources.push(d.source.topic_id);
        }
        Ok(sources)
    }
}

impl Definition {
    /// Whether it names a topic.
    pub(crate) fn names(&self, topic_id: u64) -> bool {
        self.source.topic_id == topic_id || self.dest.topic_id == topic_id
    }
}
