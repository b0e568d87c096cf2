//! Idempotency keys of one topic.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use topics_storage::wal::Ticket;
use xxhash_rust::xxh3::{Xxh3, xxh3_128};

use crate::types::api::{Append, NewRecord};
use crate::types::error::Result;
use crate::types::meta;
use crate::types::quota::{Charge, Quota};

/// An idempotency key as 128 bits of hash, and 64 bits of hash of its request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key {
    pub hash: u128,
    pub request: u64,
}

impl Key {
    /// The key of a request; `None` without one.
    pub(crate) fn of(req: &Append<'_>) -> Option<Self> {
        (!req.key.is_empty()).then(|| Self { hash: xxh3_128(req.key), request: request_hash(req) })
    }
}

/// The hash that a repeat must share with the first call: of the records in order, not of how the call
/// waits, and not of the trace context, which is another one in each attempt.
fn request_hash(req: &Append<'_>) -> u64 {
    let mut h = Xxh3::new();
    h.update(&(req.records.len() as u64).to_le_bytes());
    for r in req.records {
        hash_record(&mut h, r, if r.node.is_empty() { req.node } else { r.node });
    }
    h.digest()
}

fn hash_record(h: &mut Xxh3, r: &NewRecord<'_>, node: &[u8]) {
    let untraced = meta::without_trace_context(r.meta);
    for part in [node, r.tag, untraced.as_ref(), r.data] {
        h.update(&(part.len() as u64).to_le_bytes());
        h.update(part);
    }
    h.update(&r.ttl_ms.to_le_bytes());
    h.update(&[u8::from(r.binary)]);
    if r.is_job() {
        h.update(&[r.lane.map_or(u8::MAX, |l| l)]);
        h.update(r.group);
        h.update(&r.delay_ms.to_le_bytes());
        h.update(&r.deliver_at.to_le_bytes());
    }
}

/// The expiry of a pinned key, which is kept until it is released: a record was moved under it, and the
/// deletion of the original may not be durable.
pub(crate) const PINNED: u64 = u64::MAX;

/// The write that a key stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Remembered {
    pub request: u64,
    pub first_seq: u64,
    pub last_seq: u64,
    pub expires_at: u64,
    /// The ticket of the write, if this process staged it: a repeat waits for it.
    pub ticket: Option<Ticket>,
    /// Whether the write has been applied.
    pub is_committed: bool,
    /// Whether the log has the key. The key of an `ephemeral` write ends with the process.
    pub logged: bool,
}

/// The keys of one topic. Writes to the topic and the sweep remove expired ones.
#[derive(Debug)]
pub(crate) struct Dedupe {
    keys: HashMap<u128, Remembered>,
    by_expiry: BTreeSet<(u64, u128)>,
    charge: Charge,
}

impl Dedupe {
    /// No keys yet.
    pub(crate) fn new(quota: &Arc<Quota>) -> Self {
        Self { keys: HashMap::new(), by_expiry: BTreeSet::new(), charge: quota.force(0) }
    }

    /// The write under a key.
    pub(crate) fn get(&self, hash: u128) -> Option<&Remembered> {
        self.keys.get(&hash)
    }

    /// Reserves space for one key, or refuses: no key is removed before its expiry.
    pub(crate) fn reserve(&mut self) -> Result<()> {
        self.charge.grow(1)
    }

    /// Adds a key for which space was reserved.
    pub(crate) fn insert(&mut self, hash: u128, r: Remembered) {
        if let Some(old) = self.keys.insert(hash, r) {
            self.by_expiry.remove(&(old.expires_at, hash));
            self.charge.shrink(1);
        }
        self.by_expiry.insert((r.expires_at, hash));
    }

    /// Adds or updates a logged key, regardless of the limit; its write is applied.
    pub(crate) fn mark_committed(&mut self, hash: u128, mut r: Remembered) {
        (r.is_committed, r.logged) = (true, true);
        match self.keys.get_mut(&hash) {
            Some(kept) if kept.first_seq == r.first_seq => {
                (kept.is_committed, kept.logged) = (true, true);
                if kept.expires_at != r.expires_at {
                    self.by_expiry.remove(&(kept.expires_at, hash));
                    self.by_expiry.insert((r.expires_at, hash));
                    kept.expires_at = r.expires_at;
                }
            }
            _ => {
                self.charge.force(1);
                self.insert(hash, r);
            }
        }
    }

    /// Removes the key of a failed write.
    pub(crate) fn forget(&mut self, hash: u128, first_seq: u64) {
        if self.keys.get(&hash).is_some_and(|r| r.first_seq == first_seq) {
            self.remove(hash);
        }
    }

    /// Sets the ticket of a staged write; a write that is only shown has none.
    pub(crate) fn staged(
        &mut self,
        hash: u128,
        first_seq: u64,
        ticket: Option<Ticket>,
        is_committed: bool,
    ) {
        if let Some(r) = self.keys.get_mut(&hash).filter(|r| r.first_seq == first_seq) {
            r.ticket = ticket;
            r.is_committed |= is_committed;
        }
    }

    /// Removes expired keys.
    pub(crate) fn expire(&mut self, now: u64) {
        while let Some(&(at, hash)) = self.by_expiry.first() {
            if at > now || !self.keys.get(&hash).is_some_and(|r| r.is_committed) {
                return;
            }
            self.remove(hash);
        }
    }

    fn remove(&mut self, hash: u128) {
        if let Some(old) = self.keys.remove(&hash) {
            self.by_expiry.remove(&(old.expires_at, hash));
            self.charge.shrink(1);
        }
    }

    /// The logged keys of applied writes.
    pub(crate) fn committed(&self) -> impl Iterator<Item = (u128, &Remembered)> {
        self.keys.iter().filter(|(_, r)| r.is_committed && r.logged).map(|(k, r)| (*k, r))
    }

    /// The pinned keys of applied writes.
    pub(crate) fn pinned(&self) -> Vec<(u128, Remembered)> {
        let pinned = self.by_expiry.range((PINNED, 0)..);
        pinned
            .filter_map(|(_, k)| Some((*k, *self.keys.get(k)?)))
            .filter(|(_, r)| r.is_committed)
            .collect()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(first: u64, expires_at: u64) -> Remembered {
        Remembered {
            request: 1,
            first_seq: first,
            last_seq: first,
            expires_at,
            ticket: None,
            is_committed: false,
            logged: false,
        }
    }

    #[test]
    fn keys_are_bounded_and_never_forgotten_early() {
        let quota = Quota::new("max_idempotency_keys", 2);
        let mut d = Dedupe::new(&quota);
        for k in [1, 2] {
            d.reserve().unwrap();
            d.insert(k, entry(k as u64, 10 * k as u64));
        }
        assert_eq!(d.reserve().unwrap_err().code(), "throttled");
        d.expire(100);
        assert_eq!(quota.used(), 2, "writes in flight keep their keys");
        d.mark_committed(1, entry(1, 10));
        d.mark_committed(2, entry(2, 20));
        d.expire(9);
        assert_eq!(quota.used(), 2);
        d.expire(10);
        assert!(d.get(1).is_none() && d.get(2).is_some());
        d.reserve().unwrap();
        drop(d);
        assert_eq!(quota.used(), 0);
    }

    #[test]
    fn only_the_failed_write_forgets() {
        let mut d = Dedupe::new(&Quota::new("max_idempotency_keys", 0));
        d.reserve().unwrap();
        d.insert(7, entry(3, 10));
        d.forget(7, 2);
        assert!(d.get(7).is_some());
        d.forget(7, 3);
        assert!(d.get(7).is_none());
        d.mark_committed(7, entry(4, 10));
        assert_eq!(d.committed().count(), 1);
    }

    #[test]
    fn the_request_hash_covers_what_matters() {
        let rec = NewRecord { data: b"1", ..NewRecord::default() };
        let key = |records: &[NewRecord<'_>], node: &[u8]| {
            Key::of(&Append { records, node, key: b"k", ..Append::default() }).unwrap()
        };
        let base = key(&[rec], b"");
        assert_eq!(base, key(&[rec], b""));
        let others = [
            key(&[rec, rec], b""),
            key(&[rec], b"n"),
            key(&[NewRecord { data: b"2", ..rec }], b""),
            key(&[NewRecord { tag: b"t", ..rec }], b""),
            key(&[NewRecord { meta: b"{}", ..rec }], b""),
            key(&[NewRecord { binary: true, ..rec }], b""),
            key(&[NewRecord { ttl_ms: 5, ..rec }], b""),
            key(&[NewRecord { data: b"", tag: b"1", ..rec }], b""),
        ];
        for (i, o) in others.iter().enumerate() {
            assert_ne!(base.request, o.request, "{i}");
        }
        // Each attempt may have another trace context.
        let traced = NewRecord { meta: b"{\"traceparent\":\"00-a-b-01\"}", ..rec };
        assert_eq!(base, key(&[traced], b""));
        let waits = Append { records: &[rec], key: b"k", sync: true, ..Append::default() };
        assert_eq!(Key::of(&waits).unwrap(), base);
        assert!(Key::of(&Append { records: &[rec], ..Append::default() }).is_none());
    }
}
