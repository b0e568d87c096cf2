//! Unloaded topics: no call has used them since a clean close, and they stay in the snapshot.
//!
//! After a clean close the snapshot has the whole state, so an open does not decode a topic without
//! work of its own (routers, expiry, jobs). Such a topic is *unloaded*: an entry of the snapshot's
//! [`Table`]. The first call that names it loads it. A list, and the next snapshot, copy the entry.
//!
//! After a kill an open checks that the files which the snapshot names exist with their lengths. For an
//! unloaded topic this is checked when it is first used.

use std::sync::Arc;

use topics_env::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use topics_env::sync::{Mutex, RwLock};
use topics_storage::segment::SegmentMeta;
use topics_storage::snapshot::{ReplayPos, Table, TopicHeader};

use super::TopicTable;
use super::ids::Ids;
use crate::topic::Topic;
use crate::topic::events::Base;
use crate::topic::view;
use crate::types::api::TopicSummary;
use crate::types::config::{TopicConfig, TopicType};
use crate::types::error::{Error, Result};
use crate::types::priority;

/// All topics that the open did not load.
#[derive(Debug)]
pub(crate) struct SnapshotTopics {
    table: Table,
    /// One bit for each entry: the topic was loaded since.
    loaded: Vec<AtomicU64>,
    left: AtomicUsize,
    /// Held to load one, and to list loaded and unloaded topics at one moment.
    loading: Mutex<()>,
}

/// The topics that are not loaded, while there are any.
#[derive(Debug, Default)]
pub(crate) struct UnloadedTopics {
    topics: RwLock<Option<Arc<SnapshotTopics>>>,
    /// Whether recovery is done: a topic may be written to as soon as it is loaded.
    served: AtomicBool,
}

#[derive(Clone, Debug)]
pub(crate) struct UnloadedTopic {
    all: Arc<SnapshotTopics>,
    i: usize,
}

impl UnloadedTopic {
    /// Its entry in the snapshot.
    pub(crate) fn entry(&self) -> &[u8] {
        self.all.table.entry(self.i)
    }

    /// The decoded entry.
    pub(crate) fn topic_header(&self) -> Result<TopicHeader<'_>> {
        Ok(self.all.table.topic_header(self.i)?)
    }

    pub(crate) fn id(&self) -> u64 {
        self.all.table.id(self.i)
    }

    fn name(&self) -> &[u8] {
        self.all.table.name(self.i)
    }
}

/// A topic in a list.
#[derive(Clone, Debug)]
pub(crate) enum CatalogEntry {
    Loaded(Arc<Topic>),
    Unloaded(UnloadedTopic),
}

impl CatalogEntry {
    fn name(&self) -> &[u8] {
        match self {
            Self::Loaded(topic) => topic.name.as_bytes(),
            Self::Unloaded(unloaded) => unloaded.name(),
        }
    }

    /// The name as text. A name that is not UTF-8 becomes a text above all names, which ends an
    /// iteration over names.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.name()).unwrap_or("\u{10ffff}")
    }
}

impl SnapshotTopics {
    fn new(table: Table) -> Self {
        let words = table.len().div_ceil(64);
        Self {
            loaded: (0..words).map(|_| AtomicU64::new(0)).collect(),
            left: AtomicUsize::new(table.len()),
            loading: Mutex::new(()),
            table,
        }
    }

    fn is_loaded(&self, i: usize) -> bool {
        self.loaded.get(i / 64).is_none_or(|w| w.load(Ordering::Acquire) & (1 << (i % 64)) != 0)
    }

    /// Number of unloaded topics.
    fn mark_loaded(&self, i: usize) -> usize {
        if let Some(word) = self.loaded.get(i / 64) {
            word.fetch_or(1 << (i % 64), Ordering::AcqRel);
        }
        self.left.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// The unloaded topics with entry numbers `from..end` whose names begin with `prefix`.
    fn range(&self, from: usize, end: usize, prefix: &str) -> impl Iterator<Item = usize> {
        (from..end)
            .take_while(|i| self.table.name(*i).starts_with(prefix.as_bytes()))
            .filter(|i| !self.is_loaded(*i))
    }
}

impl TopicTable {
    /// Adds the topics of a directory that was closed cleanly. Topics without work of their own stay
    /// unloaded.
    pub(crate) fn adopt_unloaded(
        &self,
        base: &Base,
        ids: &Ids,
        table: Table,
        layout: u64,
    ) -> Result<()> {
        let all = Arc::new(SnapshotTopics::new(table));
        *self.unloaded.topics.write() = Some(all.clone());
        let (mut known, mut plain): (&[u8], bool) = (&[], false);
        let (mut bytes, mut last) = (0, 0);
        let mut busy = Vec::new();
        for i in 0..all.table.len() {
            let topic_header = all.table.topic_header(i)?;
            if known != topic_header.config {
                (known, plain) =
                    (topic_header.config, is_plain(&TopicConfig::decode(topic_header.config)?));
            }
            bytes += topic_header.live_bytes;
            last = last.max(topic_header.topic_id);
            if !(plain && topic_header.replay.layout == layout && is_quiet(&topic_header)) {
                busy.push(i);
            }
        }
        base.add_totals(0, bytes);
        ids.seen(last);
        busy.into_iter().try_for_each(|i| self.load(base, &all, i))
    }

    /// Ends recovery.
    pub(crate) fn serve(&self) {
        self.unloaded.served.store(true, Ordering::Release);
    }

    fn unloaded_topics(&self) -> Option<Arc<SnapshotTopics>> {
        self.unloaded.topics.read().clone()
    }

    /// Number of topics.
    pub(crate) fn len(&self) -> usize {
        let unloaded = self.unloaded.topics.read();
        let left = unloaded.as_ref().map_or(0, |a| a.left.load(Ordering::Acquire));
        self.loaded.len() + left
    }

    /// The topic of a name, created or being created. An error if its files are not as the snapshot
    /// names them.
    pub(crate) fn named(&self, base: &Base, name: &str) -> Result<Option<Arc<Topic>>> {
        let mut found = self.loaded.named(name);
        if found.is_none()
            && let Some(all) = self.unloaded_topics()
            && let Some(i) = all.table.named(name)
        {
            self.load(base, &all, i)?;
            found = self.loaded.named(name);
        }
        found.map(|t| self.verify_files_once(base, &t).map(|()| t)).transpose()
    }

    /// The topic of an id, as [`Self::named`].
    pub(crate) fn by_id(&self, base: &Base, id: u64) -> Result<Option<Arc<Topic>>> {
        let mut found = self.loaded.by_id(id);
        if found.is_none()
            && let Some(all) = self.unloaded_topics()
            && let Some(i) = all.table.by_id(id)
        {
            self.load(base, &all, i)?;
            found = self.loaded.by_id(id);
        }
        found.map(|t| self.verify_files_once(base, &t).map(|()| t)).transpose()
    }

    /// The unloaded topic of an id.
    fn unloaded(&self, id: u64) -> Option<UnloadedTopic> {
        if self.loaded.by_id(id).is_some() {
            return None;
        }
        let all = self.unloaded_topics()?;
        let i = all.table.by_id(id).filter(|i| !all.is_loaded(*i))?;
        Some(UnloadedTopic { all, i })
    }

    /// Whether a topic of this id exists, loaded or not.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.loaded.by_id(id).is_some() || self.unloaded(id).is_some()
    }

    /// Whether a topic is unloaded and its entry reflects a frame. The end of the log is replayed
    /// although the snapshot has it; such frames load no topic.
    pub(crate) fn reflects(&self, id: u64, here: ReplayPos) -> Result<bool> {
        match self.unloaded(id) {
            Some(unloaded) => Ok(here <= unloaded.topic_header()?.replay),
            None => Ok(false),
        }
    }

    /// Loads a topic from its entry. It is in the loaded table before it leaves the unloaded one.
    fn load(&self, base: &Base, all: &Arc<SnapshotTopics>, i: usize) -> Result<()> {
        let _one = all.loading.lock();
        if all.is_loaded(i) {
            return Ok(());
        }
        let snap = all.table.topic(i)?;
        let topic = Topic::from_snapshot(base, &snap, &[])?;
        base.add_totals(0, 0u64.wrapping_sub(snap.live_bytes));
        topic.files_unverified.store(!snap.segments.is_empty(), Ordering::Release);
        if self.unloaded.served.load(Ordering::Acquire) {
            topic.recovered(base);
        }
        self.loaded.adopt(topic);
        if all.mark_loaded(i) == 0 {
            *self.unloaded.topics.write() = None;
        }
        Ok(())
    }

    /// Verifies the files of a topic when it is first used.
    pub(crate) fn verify_files_once(&self, base: &Base, topic: &Topic) -> Result<()> {
        if topic.files_unverified.load(Ordering::Acquire) {
            let metas: Vec<SegmentMeta> =
                topic.state.read().index.segs.iter().map(|s| s.meta).collect();
            let named = base.segments.check_named(topic.key, &metas, true);
            named.map_err(|e| Error::from(e).with_repair_advice(&base.dir))?;
            topic.files_unverified.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Created topics in name order after `after`, with `prefix`, loaded or not; at most `limit`.
    pub(crate) fn list(
        &self,
        prefix: &str,
        after: Option<&str>,
        limit: usize,
    ) -> Vec<CatalogEntry> {
        let loaded = |from: Vec<Arc<Topic>>| from.into_iter().map(CatalogEntry::Loaded);
        let Some(all) = self.unloaded_topics() else {
            return loaded(self.loaded.list(prefix, after, limit)).collect();
        };
        let _none_loads = all.loading.lock();
        let loaded: Vec<_> = loaded(self.loaded.list(prefix, after, limit)).collect();
        let from = match after {
            Some(after) if after >= prefix => {
                let at = all.table.seek(after.as_bytes());
                at + usize::from(at < all.table.len() && all.table.name(at) == after.as_bytes())
            }
            _ => all.table.seek(prefix.as_bytes()),
        };
        let end = match loaded.last().filter(|_| loaded.len() == limit) {
            Some(last) => all.table.seek(last.name()),
            None => all.table.len(),
        };
        let found = all.range(from, end, prefix).take(limit);
        let unloaded = found.map(|i| CatalogEntry::Unloaded(UnloadedTopic { all: all.clone(), i }));
        merged(loaded, unloaded, limit)
    }

    /// All created topics in name order, in pages.
    pub(crate) fn every(&self, mut f: impl FnMut(&CatalogEntry) -> Result<()>) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.list("", after.as_deref(), 256);
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.text().to_owned());
            page.iter().try_for_each(&mut f)?;
        }
    }
}

/// Merges two ascending lists.
fn merged(
    loaded: Vec<CatalogEntry>,
    unloaded: impl Iterator<Item = CatalogEntry>,
    limit: usize,
) -> Vec<CatalogEntry> {
    let mut unloaded = unloaded.peekable();
    let mut out = Vec::with_capacity(loaded.len());
    for topic in loaded {
        while let Some(next) = unloaded.next_if(|a| a.name() < topic.name()) {
            out.push(next);
        }
        out.push(topic);
    }
    out.extend(unloaded);
    out.truncate(limit);
    out
}

/// Whether a topic of this config needs no work by time or maintenance.
fn is_plain(c: &TopicConfig) -> bool {
    c.kind == TopicType::Log && c.ttl_ms == 0 && c.cap_records == 0 && c.cap_bytes == 0
}

/// Whether the entry has the whole state: live records in segments, from the floor to the head.
fn is_quiet(g: &TopicHeader<'_>) -> bool {
    let floor = g.delete_below.max(g.evict_floor).max(1);
    let mut next = floor;
    for m in &g.segments {
        let whole = m.live_count == m.span() && m.del_no == 0;
        if m.first_seq != next || !whole || m.earliest_expires != 0 || m.cold {
            return false;
        }
        next = m.last_seq + 1;
    }
    next == g.head + 1
        && g.earliest_seq <= floor
        && g.reserved_to <= g.head
        && g.gaps.is_empty()
        && g.idempotency.is_empty()
        && g.sections.is_empty()
}

/// An entry of a list, as `topic::view::summary` makes it.
pub(crate) fn summary(base: &Base, found: &CatalogEntry) -> Result<TopicSummary> {
    let now = base.time.steady();
    match found {
        CatalogEntry::Loaded(topic) => Ok(view::summary(topic, now)),
        CatalogEntry::Unloaded(unloaded) => of_unloaded(unloaded, now),
    }
}

fn of_unloaded(unloaded: &UnloadedTopic, now: u64) -> Result<TopicSummary> {
    let g = unloaded.topic_header()?;
    let config = TopicConfig::decode(g.config)?;
    let floor = g.delete_below.max(g.evict_floor).max(1);
    Ok(TopicSummary {
        topic: g.name.to_owned(),
        kind: config.kind,
        head_seq: g.head,
        earliest_seq: g.earliest_seq.max(floor).min(g.head + 1),
        count: g.live_count,
        bytes: g.live_bytes,
        durability: config.durability,
        effective_priority: priority::effective(&config, 0, now),
    })
}
