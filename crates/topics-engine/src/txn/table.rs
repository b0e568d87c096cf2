//! The applied state of transactions: open decisions, last epochs, spent files.
//!
//! Frames may be applied in log order over a state that already reflects some of them: open decisions
//! are identified by writer *and* epoch, and the frame that ends a decision follows it.

mod section;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use topics_env::sync::{Condvar, Mutex};
use topics_storage::format::record::{TxnCommit, TxnDone, TxnPart};

use super::api::{Committed, CommittedTopic};
use crate::types::quota::{Charge, Quota};

/// The section of a snapshot that holds transactions.
pub(crate) const SECTION: u16 = 2;
const VERSION: u16 = 1;
/// Prefixes of the generated names of writers: with an idempotency key, and without. A caller's name
/// has neither.
pub(crate) const KEYED: &str = "$k.";
pub(crate) const NAMELESS: &str = "$t.";
/// The length of the name of a key; the rest of a writer's name distinguishes its transactions.
const KEYED_LEN: usize = KEYED.len() + 32;
/// Time that an idempotency key is remembered after the end of its transaction, ms. A transaction that an
/// open or a repeat finishes ends then, so a caller that repeats after an outage of any length finds the
/// decision (a window from the decision on could be over by then). An end frame that was answered and
/// not synced may be lost with the power; the open logs another.
const WINDOW_MS: u64 = 120_000;

/// A decision that is not carried out yet.
#[derive(Clone, Debug)]
pub(crate) struct Open {
    pub body: Arc<TxnCommit>,
    /// The logged parts: topic id → seq of the first row.
    pub parts: BTreeMap<u64, u64>,
}

/// The last epoch of a writer.
#[derive(Clone, Debug)]
struct Last {
    body: TxnDone,
    ts: u64,
    /// The charge of an idempotency key on the limit of all keys.
    _charge: Option<Arc<Charge>>,
}

/// Maximum numbers of remembered writers; 0: no limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct WriterLimits {
    pub all: u64,
    pub per_key: u64,
}

/// The limit of remembered writers is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    /// Whether the limit is that of its API key.
    pub per_key: bool,
}

/// Reserves the entry of a writer that commits for the first time, until it is remembered.
#[derive(Debug)]
pub(crate) struct NewWriter<'a> {
    all: &'a TxnTable,
    writer: String,
}

impl Drop for NewWriter<'_> {
    fn drop(&mut self) {
        self.all.inner.lock().reserved.remove(&self.writer);
    }
}

impl Last {
    fn expires_at(&self) -> Option<u64> {
        self.body.writer.starts_with(KEYED).then(|| self.ts.saturating_add(WINDOW_MS))
    }
}

/// The name under which a lock and a last epoch are kept: of the writer, or of the key.
pub(crate) fn base(writer: &str) -> &str {
    match writer.get(..KEYED_LEN) {
        Some(key) if key.starts_with(KEYED) => key,
        _ => writer,
    }
}

#[derive(Debug, Default)]
struct Inner {
    open: BTreeMap<(String, u64), Open>,
    /// Parts that were replayed before their decision, because shards are replayed one by one. `None`:
    /// the replay is over.
    early: Option<BTreeMap<(String, u64), BTreeMap<u64, u64>>>,
    last: BTreeMap<String, Last>,
    /// Writers with a caller's name, by owner: (time of the last commit, writer).
    idle: BTreeMap<String, BTreeSet<(u64, String)>>,
    /// Owners of writers whose first commit is pending, by writer.
    reserved: BTreeMap<String, String>,
    /// Files that may be removed when shard 0 is synced up to this lsn.
    spent: BTreeMap<String, u64>,
}

/// The transactions of an engine.
#[derive(Debug)]
pub(crate) struct TxnTable {
    /// The quota of idempotency keys, shared with topics.
    keys: Arc<Quota>,
    inner: Mutex<Inner>,
    locked: Mutex<BTreeSet<String>>,
    unlocked: Condvar,
}

impl Inner {
    fn remember(&mut self, writer: &str, last: Last) {
        self.forget(writer);
        if is_named(writer) {
            let owner = self.idle.entry(last.body.owner.clone()).or_default();
            owner.insert((last.ts, writer.to_owned()));
        }
        self.last.insert(writer.to_owned(), last);
    }

    fn forget(&mut self, writer: &str) {
        let Some(old) = self.last.remove(writer) else { return };
        if let Some(owner) = self.idle.get_mut(&old.body.owner) {
            owner.remove(&(old.ts, writer.to_owned()));
            if owner.is_empty() {
                self.idle.remove(&old.body.owner);
            }
        }
    }
}

/// Whether a writer has a caller's name, not a generated one.
fn is_named(writer: &str) -> bool {
    !writer.starts_with('$')
}

/// The lock of a writer; released when dropped.
#[derive(Debug)]
pub(crate) struct WriterLock<'a> {
    all: &'a TxnTable,
    of: String,
}

impl Drop for WriterLock<'_> {
    fn drop(&mut self) {
        self.all.locked.lock().remove(&self.of);
        self.all.unlocked.notify_all();
    }
}

impl TxnTable {
    /// An empty table; `keys` limits the remembered idempotency keys.
    pub(crate) fn new(keys: Arc<Quota>) -> Self {
        let inner = Inner { early: Some(BTreeMap::new()), ..Inner::default() };
        Self {
            keys,
            inner: Mutex::new(inner),
            locked: Mutex::default(),
            unlocked: Condvar::default(),
        }
    }

    /// Reserves an entry for a writer. `None`: it has one, or its name is generated.
    pub(crate) fn reserve(
        &self,
        writer: &str,
        owner: &str,
        limits: WriterLimits,
    ) -> std::result::Result<Option<NewWriter<'_>>, Full> {
        let mut inner = self.inner.lock();
        if !is_named(writer) || inner.last.contains_key(writer) {
            return Ok(None);
        }
        let on_its_way = |of: Option<&str>| {
            let all = inner.reserved.iter().filter(|(w, _)| !inner.last.contains_key(*w));
            all.filter(|(_, o)| of.is_none_or(|of| of == **o)).count() as u64
        };
        let of_owner =
            inner.idle.get(owner).map_or(0, |w| w.len() as u64) + on_its_way(Some(owner));
        if !owner.is_empty() && limits.per_key > 0 && of_owner >= limits.per_key {
            return Err(Full { per_key: true });
        }
        let named = inner.idle.values().map(|w| w.len() as u64).sum::<u64>() + on_its_way(None);
        if limits.all > 0 && named >= limits.all {
            return Err(Full { per_key: false });
        }
        inner.reserved.insert(writer.to_owned(), owner.to_owned());
        Ok(Some(NewWriter { all: self, writer: writer.to_owned() }))
    }

    /// The writer, of one owner or of all, with the oldest last commit, which is not later than
    /// `before`. Skips writers with an open decision, and those for which `kept` is true.
    pub(crate) fn oldest_idle(
        &self,
        owner: Option<&str>,
        before: u64,
        kept: impl Fn(&str) -> bool,
    ) -> Option<String> {
        let inner = self.inner.lock();
        let is_open = |w: &str| {
            let mut from = inner.open.range((w.to_owned(), 0)..);
            from.next().is_some_and(|((writer, _), _)| writer == w)
        };
        let owners = inner.idle.iter().filter(|(o, _)| owner.is_none_or(|owner| owner == *o));
        let oldest = owners.filter_map(|(_, writers)| {
            let due = writers.iter().take_while(|(at, _)| *at <= before);
            due.into_iter().find(|(_, w)| !kept(w) && !is_open(w))
        });
        oldest.min().map(|(_, writer)| writer.clone())
    }

    /// The time of a writer's last commit.
    pub(crate) fn idle_since(&self, writer: &str) -> Option<u64> {
        self.inner.lock().last.get(writer).map(|last| last.ts)
    }

    /// The owner of a writer, if it has committed with one.
    pub(crate) fn owner(&self, writer: &str) -> Option<String> {
        let inner = self.inner.lock();
        let owner = &inner.last.get(writer)?.body.owner;
        (!owner.is_empty()).then(|| owner.clone())
    }

    /// The end of a writer's last transaction, with another owner.
    pub(crate) fn last_end(&self, writer: &str, owner: &str) -> Option<TxnDone> {
        let body = self.inner.lock().last.get(writer)?.body.clone();
        Some(TxnDone { owner: owner.to_owned(), ..body })
    }

    /// The query that committed the last epoch of a writer; empty: none.
    pub(crate) fn query_of(&self, writer: &str) -> String {
        self.inner.lock().last.get(writer).map(|last| last.body.query.clone()).unwrap_or_default()
    }

    /// Waits for the lock of a writer, or of another name.
    pub(crate) fn lock_writer(&self, of: &str) -> WriterLock<'_> {
        let mut locked = self.locked.lock();
        while !locked.insert(of.to_owned()) {
            self.unlocked.wait(&mut locked);
        }
        WriterLock { all: self, of: of.to_owned() }
    }

    /// Takes the lock of a writer without waiting; `None` if it is taken.
    pub(crate) fn try_lock_writer(&self, of: &str) -> Option<WriterLock<'_>> {
        self.locked
            .lock()
            .insert(of.to_owned())
            .then(|| WriterLock { all: self, of: of.to_owned() })
    }

    /// Applies a decision, which is durable.
    pub(crate) fn committed(&self, body: TxnCommit) {
        let mut inner = self.inner.lock();
        if body.writer.is_empty() {
            inner.spent.extend(body.files.into_iter().map(|f| (f.name, 0)));
            return;
        }
        let key = (body.writer.clone(), body.epoch);
        let parts = inner.early.as_mut().and_then(|early| early.remove(&key)).unwrap_or_default();
        inner.open.entry(key).or_insert_with(|| Open { body: Arc::new(body), parts });
    }

    /// Applies a durable part. Called under the state lock of its topic, so that no snapshot has the
    /// topic with the part and the transaction without it.
    pub(crate) fn part(&self, body: TxnPart, topic_id: u64, first: u64) {
        let mut inner = self.inner.lock();
        let key = (body.writer, body.epoch);
        if let Some(open) = inner.open.get_mut(&key) {
            open.parts.insert(topic_id, first);
        } else if let Some(early) = &mut inner.early {
            early.entry(key).or_default().insert(topic_id, first);
        }
    }

    /// Ends the replay: parts without a decision are of transactions that have ended.
    pub(crate) fn replayed(&self) {
        self.inner.lock().early = None;
    }

    /// Applies the end of a transaction, with the time and lsn of its frame: its files are spent.
    pub(crate) fn done(&self, body: TxnDone, ts: u64, lsn: u64) {
        let mut inner = self.inner.lock();
        if body.forgets {
            inner.forget(&body.writer);
            return;
        }
        if let Some(open) = inner.open.remove(&(body.writer.clone(), body.epoch)) {
            inner.spent.extend(open.body.files.iter().map(|f| (f.name.clone(), lsn)));
        }
        if !body.writer.starts_with(NAMELESS) {
            let writer = base(&body.writer).to_owned();
            let charge = writer.starts_with(KEYED).then(|| Arc::new(self.keys.force(1)));
            inner.remember(&writer, Last { body, ts, _charge: charge });
        }
    }

    pub(crate) fn open(&self, writer: &str, epoch: u64) -> Option<Open> {
        self.inner.lock().open.get(&(writer.to_owned(), epoch)).cloned()
    }

    /// Number of decisions that are not carried out.
    pub(crate) fn pending(&self) -> u64 {
        self.inner.lock().open.len() as u64
    }

    /// Open decisions, of one writer or key, or of all.
    pub(crate) fn all_open(&self, writer: Option<&str>) -> Vec<(String, u64)> {
        let inner = self.inner.lock();
        let keys = inner.open.keys().filter(|(w, _)| writer.is_none_or(|want| want == base(w)));
        keys.cloned().collect()
    }

    /// The last epoch of a writer, with its answer; a key's only while it is remembered.
    pub(crate) fn last(&self, writer: &str, now: u64) -> Option<Committed> {
        let inner = self.inner.lock();
        let last = inner.last.get(writer)?;
        if last.expires_at().is_some_and(|at| at <= now) {
            return None;
        }
        let topics = last.body.topics.iter();
        let topics = topics.map(|(topic_id, topic, first_seq, last_seq)| CommittedTopic {
            topic: topic.clone(),
            topic_id: *topic_id,
            first_seq: *first_seq,
            last_seq: *last_seq,
        });
        Some(Committed { epoch: last.body.epoch, deduped: false, topics: topics.collect() })
    }

    /// The last epochs of writers with a caller's name.
    pub(crate) fn epochs(&self) -> Vec<(String, u64)> {
        let inner = self.inner.lock();
        let named = inner.last.iter().filter(|(writer, _)| !writer.starts_with('$'));
        named.map(|(writer, last)| (writer.clone(), last.body.epoch)).collect()
    }

    /// Number of remembered writers and keys.
    #[cfg(test)]
    pub(crate) fn writers(&self) -> usize {
        self.inner.lock().last.len()
    }

    /// Removes expired keys.
    pub(crate) fn expire(&self, now: u64) {
        self.inner.lock().last.retain(|_, l| l.expires_at().is_none_or(|at| at > now));
    }

    /// Marks a file as spent once shard 0 is synced up to `lsn`.
    pub(crate) fn spend(&self, name: String, lsn: u64) {
        self.inner.lock().spent.insert(name, lsn);
    }

    /// The files that open decisions name.
    pub(crate) fn named(&self) -> BTreeSet<String> {
        let inner = self.inner.lock();
        let files = inner.open.values().flat_map(|o| &o.body.files);
        files.map(|f| f.name.clone()).collect()
    }

    /// Spent files that may be removed when shard 0 is synced up to `lsn`.
    pub(crate) fn spent(&self, lsn: u64) -> Vec<String> {
        let inner = self.inner.lock();
        let due = inner.spent.iter().filter(|(_, at)| **at <= lsn);
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Whether a transaction with files ended in shard 0 after `lsn`.
    pub(crate) fn ended_behind(&self, lsn: u64) -> bool {
        self.inner.lock().spent.values().any(|at| *at > lsn)
    }

    /// Forgets files that were removed durably.
    pub(crate) fn forget(&self, files: &[String]) {
        let mut inner = self.inner.lock();
        inner.spent.retain(|f, _| !files.contains(f));
    }
}

/// A decision without a writer, topics or files.
pub(crate) fn empty_commit() -> TxnCommit {
    TxnCommit {
        writer: String::new(),
        epoch: 0,
        files: Vec::new(),
        topics: Vec::new(),
        commits: Vec::new(),
        acks: Vec::new(),
        owner: String::new(),
        query: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use topics_storage::format::record::TxnFile;
    use topics_storage::snapshot::Section;

    use super::*;

    fn txns() -> TxnTable {
        TxnTable::new(Quota::new("max_idempotency_keys", 0))
    }

    fn commit(writer: &str, epoch: u64) -> TxnCommit {
        let files = vec![TxnFile { name: format!("{writer}{epoch}"), len: 1, checksum: 2 }];
        TxnCommit { writer: writer.into(), epoch, files, ..empty_commit() }
    }

    fn part(writer: &str, epoch: u64) -> TxnPart {
        TxnPart { writer: writer.into(), epoch }
    }

    fn done(writer: &str, epoch: u64) -> TxnDone {
        TxnDone {
            writer: writer.into(),
            epoch,
            topics: vec![(7, "t".into(), epoch, epoch)],
            owner: String::new(),
            query: String::new(),
            forgets: false,
        }
    }

    #[test]
    fn frames_over_a_state_that_reflects_them_end_in_the_same_state() {
        let frames: [&dyn Fn(&TxnTable); 8] = [
            &|t| t.committed(commit("w", 1)),
            &|t| t.part(part("w", 1), 7, 1),
            &|t| t.done(done("w", 1), 10, 3),
            &|t| t.committed(commit("$t.1", 1)),
            &|t| t.done(TxnDone { topics: vec![], ..done("$t.1", 1) }, 10, 5),
            &|t| t.committed(commit("w", 2)),
            &|t| t.part(part("w", 2), 7, 2),
            &|t| t.part(part("w", 2), 8, 0),
        ];
        let all = txns();
        frames.iter().for_each(|f| f(&all));
        let want = all.capture().unwrap();
        assert_eq!(all.all_open(None), [("w".to_owned(), 2)]);
        // The snapshot reflects everything, and any suffix that begins with a decision's frame, but
        // without the parts of other shards, is replayed over it.
        for from in [0, 3, 5] {
            let again = txns();
            assert!(again.restore(&want).unwrap());
            for (i, f) in frames.iter().enumerate().skip(from) {
                if ![1, 6, 7].contains(&i) {
                    f(&again);
                }
            }
            assert_eq!(again.capture().unwrap(), want, "from frame {from}");
            let open = again.open("w", 2).unwrap();
            assert_eq!(open.parts, BTreeMap::from([(7, 2), (8, 0)]));
        }
    }

    #[test]
    fn a_part_may_be_replayed_before_its_decision() {
        let t = txns();
        t.part(part("w", 1), 7, 3);
        t.part(part("w", 2), 7, 5);
        t.committed(commit("w", 1));
        assert_eq!(t.open("w", 1).unwrap().parts, BTreeMap::from([(7, 3)]));
        t.done(done("w", 1), 10, 3);
        t.replayed();
        t.committed(commit("w", 2));
        assert_eq!(t.open("w", 2).unwrap().parts, BTreeMap::new());
    }

    #[test]
    fn transactions_of_a_key_are_told_apart() {
        let t = txns();
        let key = format!("{KEYED}{:032x}", 7);
        let (first, second) = (format!("{key}.1"), format!("{key}.2"));
        t.part(part(&first, 9), 7, 3);
        t.committed(commit(&second, 9));
        assert_eq!(t.all_open(Some(&key)), [(second.clone(), 9)]);
        assert_eq!(t.open(&second, 9).unwrap().parts, BTreeMap::new());
        t.done(done(&second, 9), 10, 3);
        assert_eq!(t.last(&key, 11).unwrap().epoch, 9);
        assert_eq!((base(&key), base("w"), base("$k.")), (&*key, "w", "$k."));
    }

    #[test]
    fn keys_are_forgotten_and_writers_are_not() {
        let t = txns();
        t.done(done("$k.1", 9), 1000, 1);
        t.done(done("w", 9), 1000, 2);
        assert!(t.last("$k.1", 1000 + WINDOW_MS - 1).is_some());
        assert!(t.last("$k.1", 1000 + WINDOW_MS).is_none());
        t.expire(u64::MAX);
        assert_eq!(t.writers(), 1);
        assert_eq!(t.last("w", u64::MAX).unwrap().topics[0].last_seq, 9);
    }

    #[test]
    fn files_are_spent_when_the_end_is_durable() {
        let t = txns();
        t.committed(commit("w", 1));
        assert_eq!(t.named().len(), 1);
        t.done(done("w", 1), 0, 12);
        assert!(t.named().is_empty() && t.spent(11).is_empty());
        assert_eq!(t.spent(12), ["w1"]);
        t.forget(&t.spent(12));
        assert!(t.spent(u64::MAX).is_empty());
    }

    #[test]
    fn anything_else_is_refused() {
        let t = txns();
        let section = |kind, version, bytes: &[u8]| Section { kind, version, bytes: bytes.into() };
        assert!(!t.restore(&section(1, 1, b"")).unwrap());
        assert_eq!(t.restore(&section(SECTION, 2, b"")).unwrap_err().code(), "version");
        assert_eq!(t.restore(&section(SECTION, 1, b"x")).unwrap_err().code(), "corrupt");
        assert!(t.capture().is_none());
    }
}
