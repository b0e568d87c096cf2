//! Topics that nobody has touched since a clean close: they stay as the snapshot has them.
//!
//! After a clean close the snapshot is all there is to know, so an open decodes nothing of a topic
//! that does nothing by itself. It is *asleep*: an entry of the snapshot's [`Table`]. Whoever asks
//! for it by name or id wakes it. A list, and the next snapshot, take the entry as it is.
//!
//! What an open checks of a topic after a kill (that the files which the snapshot names are there,
//! and as long as it says) is checked here when the topic is first asked for.

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

/// Every topic that was asleep after the open.
#[derive(Debug)]
pub(crate) struct Asleep {
    table: Table,
    /// One bit each: it is awake, or it was and is gone.
    up: Vec<AtomicU64>,
    left: AtomicUsize,
    /// Held to wake one, and to look at who sleeps and who is awake at one moment.
    waking: Mutex<()>,
}

/// The topics that sleep, while there are any.
#[derive(Debug, Default)]
pub(crate) struct UnloadedTopics {
    asleep: RwLock<Option<Arc<Asleep>>>,
    /// Recovery is done: what wakes may be written to at once.
    served: AtomicBool,
}

/// A topic that sleeps.
#[derive(Clone, Debug)]
pub(crate) struct Sleeper {
    all: Arc<Asleep>,
    i: usize,
}

impl Sleeper {
    /// Its entry in the snapshot.
    pub(crate) fn entry(&self) -> &[u8] {
        self.all.table.entry(self.i)
    }

    /// What the entry says.
    pub(crate) fn topic_header(&self) -> Result<TopicHeader<'_>> {
        Ok(self.all.table.topic_header(self.i)?)
    }

    /// Its id.
    pub(crate) fn id(&self) -> u64 {
        self.all.table.id(self.i)
    }

    fn name(&self) -> &[u8] {
        self.all.table.name(self.i)
    }
}

/// A topic in a list.
#[derive(Clone, Debug)]
pub(crate) enum Found {
    Awake(Arc<Topic>),
    Asleep(Sleeper),
}

impl Found {
    fn name(&self) -> &[u8] {
        match self {
            Self::Awake(topic) => topic.name.as_bytes(),
            Self::Asleep(sleeper) => sleeper.name(),
        }
    }

    /// The name as text; a name that is none ends a walk through all names.
    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.name()).unwrap_or("\u{10ffff}")
    }
}

impl Asleep {
    fn new(table: Table) -> Self {
        let words = table.len().div_ceil(64);
        Self {
            up: (0..words).map(|_| AtomicU64::new(0)).collect(),
            left: AtomicUsize::new(table.len()),
            waking: Mutex::new(()),
            table,
        }
    }

    fn is_up(&self, i: usize) -> bool {
        self.up.get(i / 64).is_none_or(|w| w.load(Ordering::Acquire) & (1 << (i % 64)) != 0)
    }

    /// How many are left.
    fn got_up(&self, i: usize) -> usize {
        if let Some(word) = self.up.get(i / 64) {
            word.fetch_or(1 << (i % 64), Ordering::AcqRel);
        }
        self.left.fetch_sub(1, Ordering::AcqRel) - 1
    }

    /// Those asleep from number `from` on, below number `end`, whose names begin so.
    fn range(&self, from: usize, end: usize, prefix: &str) -> impl Iterator<Item = usize> {
        (from..end)
            .take_while(|i| self.table.name(*i).starts_with(prefix.as_bytes()))
            .filter(|i| !self.is_up(*i))
    }
}

impl TopicTable {
    /// Takes the topics of a directory that was closed cleanly. Those that do nothing by
    /// themselves sleep.
    pub(crate) fn put_to_sleep(
        &self,
        base: &Base,
        ids: &Ids,
        table: Table,
        layout: u64,
    ) -> Result<()> {
        let all = Arc::new(Asleep::new(table));
        *self.unloaded.asleep.write() = Some(all.clone());
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
        busy.into_iter().try_for_each(|i| self.wake(base, &all, i))
    }

    /// Recovery is done.
    pub(crate) fn serve(&self) {
        self.unloaded.served.store(true, Ordering::Release);
    }

    fn asleep(&self) -> Option<Arc<Asleep>> {
        self.unloaded.asleep.read().clone()
    }

    /// How many topics there are.
    pub(crate) fn len(&self) -> usize {
        let asleep = self.unloaded.asleep.read();
        let left = asleep.as_ref().map_or(0, |a| a.left.load(Ordering::Acquire));
        self.loaded.len() + left
    }

    /// The topic that a name means now, born or not; an error where its files are not what the
    /// snapshot named.
    pub(crate) fn named(&self, base: &Base, name: &str) -> Result<Option<Arc<Topic>>> {
        let mut found = self.loaded.named(name);
        if found.is_none()
            && let Some(all) = self.asleep()
            && let Some(i) = all.table.named(name)
        {
            self.wake(base, &all, i)?;
            found = self.loaded.named(name);
        }
        found.map(|t| self.look_into(base, &t).map(|()| t)).transpose()
    }

    /// The topic of an id, as [`Self::named`].
    pub(crate) fn by_id(&self, base: &Base, id: u64) -> Result<Option<Arc<Topic>>> {
        let mut found = self.loaded.by_id(id);
        if found.is_none()
            && let Some(all) = self.asleep()
            && let Some(i) = all.table.by_id(id)
        {
            self.wake(base, &all, i)?;
            found = self.loaded.by_id(id);
        }
        found.map(|t| self.look_into(base, &t).map(|()| t)).transpose()
    }

    /// The topic of an id if it sleeps.
    fn sleeper(&self, id: u64) -> Option<Sleeper> {
        if self.loaded.by_id(id).is_some() {
            return None;
        }
        let all = self.asleep()?;
        let i = all.table.by_id(id).filter(|i| !all.is_up(*i))?;
        Some(Sleeper { all, i })
    }

    /// Whether there is a topic of this id, awake or not.
    pub(crate) fn knows(&self, id: u64) -> bool {
        self.loaded.by_id(id).is_some() || self.sleeper(id).is_some()
    }

    /// Whether a topic sleeps and its entry reflects a frame: what was written last is replayed
    /// though the snapshot has it, and wakes nobody.
    pub(crate) fn reflects(&self, id: u64, here: ReplayPos) -> Result<bool> {
        match self.sleeper(id) {
            Some(sleeper) => Ok(here <= sleeper.topic_header()?.replay),
            None => Ok(false),
        }
    }

    /// Makes a topic of an entry. It is found among those awake before it is not asleep any more.
    fn wake(&self, base: &Base, all: &Arc<Asleep>, i: usize) -> Result<()> {
        let _one = all.waking.lock();
        if all.is_up(i) {
            return Ok(());
        }
        let snap = all.table.topic(i)?;
        let topic = Topic::from_snapshot(base, &snap, &[])?;
        base.add_totals(0, 0u64.wrapping_sub(snap.live_bytes));
        topic.unseen.store(!snap.segments.is_empty(), Ordering::Release);
        if self.unloaded.served.load(Ordering::Acquire) {
            topic.recovered(base);
        }
        self.loaded.adopt(topic);
        if all.got_up(i) == 0 {
            *self.unloaded.asleep.write() = None;
        }
        Ok(())
    }

    /// Looks at the files of a topic when it is first asked for.
    pub(crate) fn look_into(&self, base: &Base, topic: &Topic) -> Result<()> {
        if topic.unseen.load(Ordering::Acquire) {
            let metas: Vec<SegmentMeta> =
                topic.state.read().index.segs.iter().map(|s| s.meta).collect();
            let named = base.segments.check_named(topic.key, &metas, true);
            named.map_err(|e| Error::from(e).with_repair_advice(&base.dir))?;
            topic.unseen.store(false, Ordering::Release);
        }
        Ok(())
    }

    /// Born topics in name order after `after`, with `prefix`, awake or not; at most `limit`.
    pub(crate) fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<Found> {
        let awake = |from: Vec<Arc<Topic>>| from.into_iter().map(Found::Awake);
        let Some(all) = self.asleep() else {
            return awake(self.loaded.list(prefix, after, limit)).collect();
        };
        let _none_wakes = all.waking.lock();
        let awake: Vec<_> = awake(self.loaded.list(prefix, after, limit)).collect();
        let from = match after {
            Some(after) if after >= prefix => {
                let at = all.table.seek(after.as_bytes());
                at + usize::from(at < all.table.len() && all.table.name(at) == after.as_bytes())
            }
            _ => all.table.seek(prefix.as_bytes()),
        };
        let end = match awake.last().filter(|_| awake.len() == limit) {
            Some(last) => all.table.seek(last.name()),
            None => all.table.len(),
        };
        let found = all.range(from, end, prefix).take(limit);
        let asleep = found.map(|i| Found::Asleep(Sleeper { all: all.clone(), i }));
        merged(awake, asleep, limit)
    }

    /// Every born topic in name order, in pages.
    pub(crate) fn every(&self, mut f: impl FnMut(&Found) -> Result<()>) -> Result<()> {
        let mut after: Option<String> = None;
        loop {
            let page = self.list("", after.as_deref(), 256);
            let Some(last) = page.last() else { return Ok(()) };
            after = Some(last.text().to_owned());
            page.iter().try_for_each(&mut f)?;
        }
    }
}

/// Two rising lists as one.
fn merged(awake: Vec<Found>, asleep: impl Iterator<Item = Found>, limit: usize) -> Vec<Found> {
    let mut asleep = asleep.peekable();
    let mut out = Vec::with_capacity(awake.len());
    for topic in awake {
        while let Some(next) = asleep.next_if(|a| a.name() < topic.name()) {
            out.push(next);
        }
        out.push(topic);
    }
    out.extend(asleep);
    out.truncate(limit);
    out
}

/// Whether a topic of this config has nothing that time or maintenance must look after.
fn is_plain(c: &TopicConfig) -> bool {
    c.kind == TopicType::Log && c.ttl_ms == 0 && c.cap_records == 0 && c.cap_bytes == 0
}

/// Whether the entry says all there is: live records in segments, from the floor to the head.
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

/// A line of a list, as `topic::view::summary`.
pub(crate) fn summary(base: &Base, found: &Found) -> Result<TopicSummary> {
    let now = base.time.steady();
    match found {
        Found::Awake(topic) => Ok(view::summary(topic, now)),
        Found::Asleep(sleeper) => of_asleep(sleeper, now),
    }
}

fn of_asleep(sleeper: &Sleeper, now: u64) -> Result<TopicSummary> {
    let g = sleeper.topic_header()?;
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
