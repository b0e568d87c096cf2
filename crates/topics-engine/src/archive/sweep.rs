//! Deletes objects that nothing needs any more.
//!
//! What an earlier catalog named and the published one does not is *condemned*: the catalog lists it with
//! the time. It is deleted when no state within the restore window needs it and the grace has passed. An
//! *orphan* is an object that no catalog has named: an upload whose pass failed. A sweep, once a day, finds
//! it by a listing and decides by its epoch and number.

use std::collections::{BTreeMap, BTreeSet};

use topics_env::sync::atomic::Ordering;
use topics_remote::format::catalog::Catalog;
use topics_remote::format::keys::{self, KeyKind, KeyNumbers};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::read;
use topics_remote::read::LIST_PAGE;

use super::{Archiver, Owner, PassState, remote_error};
use crate::tier;
use crate::types::error::Result;

/// Time from the first pass of a process to its first sweep, and from a failed sweep to the next.
const RETRY_MS: u64 = 3_600_000;
/// Time between two sweeps.
const INTERVAL_MS: u64 = 86_400_000;

/// When the first sweep of an owner is due that took the prefix at this time (monotonic ms).
pub(super) fn first_sweep(now: u64) -> u64 {
    now + RETRY_MS
}

/// The outcome of a sweep.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Swept {
    /// Condemned objects that were deleted.
    pub condemned: u64,
    /// Orphans, and rounds that no restore needs, that were deleted.
    pub orphans: u64,
    /// Orphans that are too young, or not certainly of this directory.
    pub left: u64,
}

/// What a sweep must not delete.
struct Needed {
    /// Keys that the published catalog, a pinned one or a kept snapshot names.
    keys: BTreeSet<String>,
    /// Epoch and number of the first round that a restore may replay.
    first_round: (u64, u64),
}

impl Archiver {
    pub(crate) fn sweep(&self) -> Result<Swept> {
        let state = &mut self.pass.lock();
        self.check_usable()?;
        self.claim(state)?;
        self.measured(state, |state| self.sweep_objects(state))
    }

    /// The same once a day. An engine that has archived nothing since its open makes no request.
    pub(super) fn sweep_if_due(&self) -> Result<Swept> {
        let state = &mut self.pass.lock();
        let now = self.store.base().time.mono_ms();
        match &mut state.owner {
            Some(owner) if now >= owner.next_sweep => owner.next_sweep = now + RETRY_MS,
            _ => return Ok(Swept::default()),
        }
        self.check_usable()?;
        let swept = self.measured(state, |state| self.sweep_objects(state))?;
        if let Some(owner) = &mut state.owner {
            owner.next_sweep = now + INTERVAL_MS;
        }
        Ok(swept)
    }

    /// When an object may be deleted that was condemned at this time.
    fn due_ms(&self, since_ms: u64) -> u64 {
        let limits = &self.remote.limits;
        let keep = limits.restore_window.saturating_add(limits.delete_grace).as_millis();
        since_ms.saturating_add(u64::try_from(keep).unwrap_or(u64::MAX))
    }

    fn sweep_objects(&self, state: &mut PassState) -> Result<Swept> {
        // What the snapshot names and the catalog does not yet would look like an orphan.
        if self.is_unpublished(state) {
            return Ok(Swept::default());
        }
        let Some(owner) = &mut state.owner else { return Ok(Swept::default()) };
        let mut out = Swept::default();
        owner.published.date_condemned(&*self.remote.store, &self.retry);
        // Below every number that a later object of this epoch has.
        let bound = self.store.base().segments.next_file_no();
        let now = self.prefix.with(|w| w.store_time().map_err(remote_error))?;
        let needed = self.needed(owner, now)?;
        let due = |since: u64| since > 0 && now >= self.due_ms(since);
        let condemned = owner.published.condemned.clone();
        for c in condemned {
            let is_due = self.store.base().env.check("sweep.age", due(c.since_ms));
            if is_due && !needed.keys.contains(&c.key) {
                self.delete(&c.key)?;
                out.condemned += 1;
                owner.published.condemned.retain(|other| other.key != c.key);
            }
        }
        self.sweep_orphans(owner, &needed, bound, now, &mut out)?;
        self.gauges.orphans.store(out.left, Ordering::Relaxed);
        Ok(out)
    }

    fn delete(&self, key: &str) -> Result<()> {
        self.check_usable()?;
        self.prefix.with(|w| w.delete(key).map_err(remote_error))
    }

    /// What the published catalog, pins and kept snapshots name.
    fn needed(&self, owner: &Owner, now: u64) -> Result<Needed> {
        let (store, retry) = (&*self.remote.store, &self.retry);
        let mut keys = owner.published.named().clone();
        let mut oldest = None;
        // Of the catalogs that are kept, the oldest needs the most rounds.
        let listed = owner.published.condemned.iter().map(|c| &c.key);
        let catalog = |key: &&String| {
            keys::parse(key).filter(|k| k.kind == KeyKind::Catalog).map(|k| (k.epoch, k.number))
        };
        let kept = listed.chain(keys.iter()).filter(|k| catalog(k).is_some());
        if let Some(key) = kept.min_by_key(catalog) {
            let found = read::catalog_at(store, retry, key);
            oldest = found.map_err(remote_error)?.map(|c| (c.header.epoch, c.first_round));
        }
        // Without the oldest one nothing is known of the rounds.
        let mut first_round = oldest.unwrap_or((0, 0));
        for (key, pin) in read::pins(store, retry).map_err(remote_error)? {
            if pin.until_ms < now {
                continue;
            }
            let catalog = read::catalog(store, retry, &pin.catalog).map_err(remote_error)?;
            log::debug!("{key} keeps the objects of {}", pin.catalog.key);
            first_round = first_round.min((catalog.header.epoch, catalog.first_round));
            keys.extend(named_by(&catalog));
            keys.insert(pin.catalog.key);
        }
        // A round removes snapshots.
        let _round = self.store.disk.round.lock();
        for snapshot in self.store.disk.checkpoints.read_kept()? {
            keys.extend(tier::named(&snapshot.body.sections)?.iter().map(|p| p.object().key));
        }
        Ok(Needed { keys, first_round })
    }

    /// Deletes objects that no catalog has named. `bound` is above the number of every object that may be.
    fn sweep_orphans(
        &self,
        owner: &mut Owner,
        needed: &Needed,
        bound: u64,
        now: u64,
        out: &mut Swept,
    ) -> Result<()> {
        let condemned: BTreeSet<String> =
            owner.published.condemned.iter().map(|c| c.key.clone()).collect();
        let mut owners = self.own_epochs(owner);
        let current = owner.published.catalog_number();
        // Bitmaps do not say whose they are: the packs and catalogs of their epoch do.
        for folder in [keys::CATALOGS, keys::PACKS, keys::ROUNDS, keys::DELETES] {
            let mut after = String::new();
            loop {
                let store = &*self.remote.store;
                let listed = read::retrying(&self.retry, || store.list(folder, &after, LIST_PAGE));
                let listed = listed.map_err(|e| remote_error(e.into()))?;
                for info in &listed {
                    let Some(found) = keys::parse(&info.key) else { continue };
                    let is_named = needed.keys.contains(&info.key) || condemned.contains(&info.key);
                    let is_below = is_below(&found, owner, needed, current, bound);
                    if !self.store.base().env.check("sweep.number", !is_named && is_below) {
                        continue;
                    }
                    let is_old = now >= self.due_ms(info.modified_ms);
                    let is_old = self.store.base().env.check("sweep.orphan-age", is_old);
                    if !is_old || !self.is_own(owner, &mut owners, &info.key, &found)? {
                        out.left += u64::from(found.kind != KeyKind::Round);
                        continue;
                    }
                    self.delete(&info.key)?;
                    out.orphans += 1;
                }
                match listed.last() {
                    Some(last) if listed.len() == LIST_PAGE => after.clone_from(&last.key),
                    _ => break,
                }
            }
        }
        Ok(())
    }

    /// Epochs that are certainly of this directory: an epoch has one owner.
    fn own_epochs(&self, owner: &Owner) -> BTreeMap<u64, bool> {
        let named = owner.published.named().iter();
        let condemned = owner.published.condemned.iter().map(|c| &c.key);
        let parsed = named.chain(condemned).filter_map(|key| keys::parse(key));
        let mut out: BTreeMap<u64, bool> = parsed.map(|k| (k.epoch, true)).collect();
        out.insert(owner.head.epoch, true);
        out
    }

    /// Whether the object's epoch belongs to this directory: a prefix that was taken over has objects of
    /// another one.
    fn is_own(
        &self,
        owner: &Owner,
        owners: &mut BTreeMap<u64, bool>,
        key: &str,
        found: &KeyNumbers,
    ) -> Result<bool> {
        if let Some(is_own) = owners.get(&found.epoch) {
            return Ok(self.store.base().env.check("sweep.own", *is_own));
        }
        let kind = match found.kind {
            KeyKind::Catalog => ObjectKind::Catalog,
            KeyKind::Round => ObjectKind::Round,
            KeyKind::Pack => ObjectKind::Pack,
            KeyKind::Deletes => return Ok(false),
        };
        let header = match read::header(&*self.remote.store, &self.retry, key, kind) {
            Ok(header) => header,
            Err(topics_remote::RemoteError::Damaged { .. }) => return Ok(false),
            Err(e) => return Err(remote_error(e)),
        };
        let head = &owner.head;
        let is_own = (header.store_id, header.prefix_id) == (head.store_id, head.prefix_id);
        owners.insert(found.epoch, is_own);
        Ok(self.store.base().env.check("sweep.own", is_own))
    }
}

/// The keys of the objects that a catalog names.
pub(super) fn named_by(catalog: &Catalog) -> impl Iterator<Item = String> + '_ {
    let packs = catalog.packs.iter().map(|p| p.object().key);
    packs.chain(catalog.deletes.iter().map(|d| d.object().key))
}

/// Whether the numbers of an object say that no later catalog can name it.
fn is_below(
    found: &KeyNumbers,
    owner: &Owner,
    needed: &Needed,
    current: Option<(u64, u64)>,
    bound: u64,
) -> bool {
    let at = (found.epoch, found.number);
    match found.kind {
        KeyKind::Catalog => current.is_some_and(|current| at < current),
        KeyKind::Round => at < needed.first_round,
        KeyKind::Pack | KeyKind::Deletes => at < (owner.head.epoch, bound),
    }
}
