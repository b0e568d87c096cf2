//! Which routers there are.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;

use topics_env::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use topics_env::sync::{Mutex, RwLock};
use topics_storage::snapshot::Section;

use super::define::{Definition, decode_all, encode_all};
use super::run::Router;
use crate::core::Base;
use crate::types::error::{Error, Result};

/// The section of a snapshot that holds the routers.
pub(crate) const SECTION: u16 = 1;
/// Its version.
const VERSION: u16 = 1;

/// The routers of an engine.
#[derive(Default)]
pub(crate) struct Routers {
    named: RwLock<BTreeMap<Arc<str>, Arc<Router>>>,
    /// Logged cursors by router id: a Forward may be replayed before its router.
    cursors: Mutex<HashMap<u64, u64>>,
    len: AtomicUsize,
    /// Recovery is done: routers run.
    running: AtomicBool,
    /// Held to decide about routers.
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

    /// A router was created or updated. The newer of two with one name has it.
    pub(crate) fn put(&self, base: &Base, definition: Definition) {
        let (name, source) = (definition.name.clone(), definition.source.topic_id);
        let id = definition.id;
        {
            let mut named = self.named.write();
            match named.get(&name).map(|r| (r.clone(), r.definition().id)) {
                Some((_, old)) if old > id => return,
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
        base.ids.seen(id);
        self.wire(base, source);
    }

    /// A router was deleted.
    pub(crate) fn take(&self, base: &Base, id: u64) {
        self.remove(base, |d| d.id == id);
        self.cursors.lock().remove(&id);
    }

    /// A topic was deleted: its routers go with it. Costs one load while there are none.
    pub(crate) fn bereave(&self, base: &Base, topic_id: u64) {
        if self.len() > 0 && self.running.load(Ordering::SeqCst) {
            self.remove(base, |d| d.names(topic_id));
        }
    }

    fn remove(&self, base: &Base, which: impl Fn(&Definition) -> bool) {
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
        for d in gone {
            self.cursors.lock().remove(&d.id);
            self.wire(base, d.source.topic_id);
        }
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

    /// Tells a topic which routers copy from it.
    fn wire(&self, base: &Base, source: u64) {
        if !self.running.load(Ordering::SeqCst) {
            return;
        }
        let Some(topic) = base.registry.by_id(source) else { return };
        let all = self.all();
        let mine = all.into_iter().filter(|r| r.definition().source.topic_id == source);
        base.delivery.interest(&topic).route(mine.collect());
    }

    /// A run of copies was logged (I7: with them).
    pub(crate) fn forwarded(&self, id: u64, to: u64) {
        let mut cursors = self.cursors.lock();
        let at = cursors.entry(id).or_insert(0);
        *at = to.max(*at);
    }

    /// Up to where a router's work is logged.
    pub(crate) fn cursor(&self, d: &Definition) -> u64 {
        self.cursors.lock().get(&d.id).copied().unwrap_or(0).max(d.start)
    }

    /// What a snapshot holds of the routers. Taken after the topics: a cursor may be ahead of its
    /// destination, whose copies are replayed then, never behind it.
    pub(crate) fn capture(&self) -> Vec<Section> {
        let all: Vec<_> = self.all().iter().map(|r| r.definition()).collect();
        if all.is_empty() {
            return Vec::new();
        }
        let all: Vec<_> = all.into_iter().map(|d| (d.clone(), self.cursor(&d))).collect();
        vec![Section { kind: SECTION, version: VERSION, bytes: encode_all(&all) }]
    }

    /// Takes a snapshot's section in. False: it is of another kind.
    pub(crate) fn restore(&self, base: &Base, section: &Section) -> Result<bool> {
        if section.kind != SECTION {
            return Ok(false);
        }
        if section.version != VERSION {
            return Err(Error::Version {
                what: "the routers of a snapshot".into(),
                found: u32::from(section.version),
                supported: u32::from(VERSION),
            });
        }
        for (definition, cursor) in decode_all(&section.bytes)? {
            self.forwarded(definition.id, cursor);
            self.put(base, definition);
        }
        Ok(true)
    }

    /// Recovery is done: routers whose topics are gone went with them; the others run.
    pub(crate) fn recovered(&self, base: &Base) -> Result<()> {
        let mut known = std::collections::HashSet::new();
        for d in self.all().iter().map(|r| r.definition()) {
            // Its topics are awake from here on.
            for end in [d.source, d.dest] {
                let topic = base.by_id(end.topic_id)?;
                if topic.is_some_and(|t| t.key.epoch == end.epoch) {
                    known.insert(end.topic_id);
                }
            }
        }
        let there = |end: super::define::End| known.contains(&end.topic_id);
        self.running.store(true, Ordering::SeqCst);
        self.remove(base, |d| !there(d.source) || !there(d.dest));
        let all = self.all();
        {
            let known: Vec<u64> = all.iter().map(|r| r.definition().id).collect();
            self.cursors.lock().retain(|id, _| known.contains(id));
        }
        for router in all {
            let d = router.definition();
            router.resume(self.cursor(&d));
            self.wire(base, d.source.topic_id);
        }
        Ok(())
    }
}

impl Definition {
    /// Whether it names a topic.
    pub(crate) fn names(&self, topic_id: u64) -> bool {
        self.source.topic_id == topic_id || self.dest.topic_id == topic_id
    }
}
