//! Objects that nothing needs any more.
//!
//! A base lists as *dead* what the base before it named and it does not, what was put and never named, and
//! bases and rounds that left the window. What is dead is never named again. After its `HEAD`, the owner
//! deletes those that neither an earlier base that is kept nor a snapshot of the directory needs.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use topics_env::sync::atomic::Ordering;
use topics_remote::format::base::{Base, DeadObjects, EarlierBase, MAX_KEPT};
use topics_remote::format::keys::{self, Serial};
use topics_remote::format::sealed::ObjectKind;
use topics_remote::inspect::ABSENT_IN_A_ROW;

use super::base::Published;
use super::{Archiver, Owner};
use crate::ship::owner::remote_error;
use crate::tier;
use crate::types::error::{Error, Result};

impl Published {
    /// What the next base keeps of the earlier ones and of this one, and what it does not.
    fn keep(&self, now_ms: u64, window: Option<Duration>) -> (Vec<EarlierBase>, Vec<EarlierBase>) {
        let all: Vec<EarlierBase> = self.kept.iter().copied().chain(self.base).collect();
        let stored_now = self.base.map_or(0, |b| b.stored_ms);
        let window_ms = window.map(|w| u64::try_from(w.as_millis()).unwrap_or(u64::MAX));
        // By this clock and by the store's.
        let is_old = |e: &EarlierBase| {
            window_ms.is_some_and(|window| {
                let of_store = stored_now.saturating_sub(e.stored_ms);
                now_ms.saturating_sub(e.made_ms) >= window
                    && (window == 0 || (e.stored_ms > 0 && of_store >= window))
            })
        };
        let old = all.iter().take_while(|e| is_old(e)).count();
        // The newest one that is older has the states at the beginning of the window.
        let mut dropped = if window_ms == Some(0) { old } else { old.saturating_sub(1) };
        if window_ms.is_some() {
            dropped = dropped.max(all.len().saturating_sub(MAX_KEPT));
        }
        let mut dropped_bases = all;
        let kept = dropped_bases.split_off(dropped);
        (kept, dropped_bases)
    }
}

impl Archiver {
    /// Looks for objects of earlier epochs that no base knows of: their process ended before it could
    /// publish one. Once; a later base repeats it after a failure.
    pub(super) fn look_for_lost(&self, owner: &mut Owner) -> Result<()> {
        if owner.leftover.is_some() {
            return Ok(());
        }
        let mut out = Vec::new();
        let from = owner.published.base.map_or(Serial::default(), |b| b.serial);
        for epoch in from.epoch.max(1)..owner.head.epoch {
            let is_of_base = epoch == from.epoch;
            let settled = if is_of_base { owner.published.packs_settled } else { 0 };
            let last_base = if is_of_base { from.number } else { 0 };
            let mut add = |kind, number| {
                let found = self.find(kind, Serial { epoch, number })?;
                out.extend(found.into_iter().map(|serial| (kind, serial)));
                Ok::<_, Error>(())
            };
            add(ObjectKind::Pack, settled)?;
            add(ObjectKind::Base, last_base)?;
            if !is_of_base {
                add(ObjectKind::Round, 0)?;
            }
        }
        owner.leftover = Some(out);
        Ok(())
    }

    /// The objects behind this one.
    fn find(&self, kind: ObjectKind, after: Serial) -> Result<Vec<Serial>> {
        let (mut out, mut absent) = (Vec::new(), 0);
        for number in after.number + 1.. {
            let serial = Serial { epoch: after.epoch, number };
            let key = keys::object(kind, serial);
            match self.prefix.with(|w| w.stored_ms(&key).map_err(remote_error))? {
                Some(_) => {
                    absent = 0;
                    out.push(serial);
                }
                None => absent += 1,
            }
            if absent == ABSENT_IN_A_ROW {
                break;
            }
        }
        Ok(out)
    }

    /// Fills the tables of a base of earlier and of dead objects. `unneeded` are packs that later
    /// snapshots do not name.
    pub(super) fn settle(
        &self,
        owner: &Owner,
        base: &mut Base,
        unneeded: &BTreeSet<Serial>,
        last_pack: u64,
    ) -> Result<()> {
        let (published, since) = (&owner.published, base.header.serial());
        let epoch = since.epoch;
        let now_ms = self.store.base().time.steady();
        let (kept, dropped) = published.keep(now_ms, self.remote.limits.window);
        let named: BTreeSet<Serial> = base.packs.iter().map(|p| p.serial).collect();
        // A segment that was packed after the snapshot: a later base names it.
        let mut awaited = self.store.base().packs.serials();
        awaited.retain(|serial| !named.contains(serial) && !unneeded.contains(serial));
        let is_of_epoch = published.base.is_some_and(|b| b.serial.epoch == epoch);
        let settled = if is_of_epoch { published.packs_settled } else { 0 };
        let mut packs = published.named.clone();
        packs.extend(unneeded);
        packs.extend((settled + 1..=last_pack).map(|number| Serial { epoch, number }));
        let mut dead: BTreeSet<(ObjectKind, Serial)> =
            packs.into_iter().map(|serial| (ObjectKind::Pack, serial)).collect();
        let last_base = if is_of_epoch { published.base.map_or(0, |b| b.serial.number) } else { 0 };
        let tried = (last_base + 1..since.number).map(|number| Serial { epoch, number });
        dead.extend(tried.map(|serial| (ObjectKind::Base, serial)));
        dead.extend(dropped.iter().map(|e| (ObjectKind::Base, e.serial)));
        dead.extend(owner.leftover.iter().flatten().copied());
        dead.retain(|(kind, serial)| {
            *kind != ObjectKind::Pack || !(named.contains(serial) || awaited.contains(serial))
        });
        let first_awaited = awaited.iter().find(|s| s.epoch == epoch);
        base.packs_settled = first_awaited.map_or(last_pack, |s| s.number - 1);
        let known: BTreeSet<(ObjectKind, u64, u64)> =
            published.dead.iter().map(|d| (d.kind, d.epoch, d.first)).collect();
        let new = dead.iter().filter(|(k, s)| !known.contains(&(*k, s.epoch, s.number)));
        base.dead.clone_from(&published.dead);
        // An older snapshot, which a recovery fell back to, may need what a newer one did not. It is there: a
        // kept snapshot names it.
        base.dead.retain(|d| {
            let serial = Serial { epoch: d.epoch, number: d.first };
            d.kind != ObjectKind::Pack || !named.contains(&serial)
        });
        base.dead.extend(new.map(|(kind, serial)| DeadObjects::one(*kind, *serial, since)));
        let oldest = kept.first().map_or((since, base.first_round), |e| (e.serial, e.first_round));
        base.dead.extend(self.rounds_before(&dropped, oldest, since)?);
        if !is_of_epoch && base.first_round > 1 {
            // Those of bases of this epoch that were not published.
            let (kind, first, last) = (ObjectKind::Round, 1, base.first_round - 1);
            base.dead.push(DeadObjects { kind, epoch, first, last, since });
        }
        base.kept = kept;
        Ok(())
    }

    /// The rounds that only these bases needed, which are no longer kept. `oldest` is the oldest one that
    /// is, and its first round.
    fn rounds_before(
        &self,
        dropped: &[EarlierBase],
        (oldest, first_round): (Serial, u64),
        since: Serial,
    ) -> Result<Vec<DeadObjects>> {
        let mut firsts: BTreeMap<u64, u64> = BTreeMap::new();
        for e in dropped {
            let first = firsts.entry(e.serial.epoch).or_insert(e.first_round);
            *first = (*first).min(e.first_round);
        }
        let mut out = Vec::new();
        for (epoch, first) in firsts {
            let last = if epoch == oldest.epoch {
                first_round.saturating_sub(1)
            } else {
                // No writer ships to an epoch that has ended.
                let after = Serial { epoch, number: first.saturating_sub(1) };
                let found = self.find(ObjectKind::Round, after)?;
                found.last().map_or(0, |s| s.number)
            };
            if first <= last {
                let kind = ObjectKind::Round;
                out.push(DeadObjects { kind, epoch, first, last, since });
            }
        }
        Ok(out)
    }

    /// Deletes the dead objects that nothing needs. The prefix was this directory's after it had named
    /// them dead: no later base names them.
    pub(super) fn collect(&self, owner: &mut Owner) -> Result<()> {
        if self.remote.limits.window.is_none() {
            // Nothing is deleted, so nothing needs to be known of it.
            owner.published.dead.clear();
            return Ok(());
        }
        let in_snapshots = {
            // A round removes snapshots.
            let _round = self.store.disk.round.lock();
            let mut named = BTreeSet::new();
            for snapshot in self.store.disk.checkpoints.read_kept()? {
                named.extend(tier::named(&snapshot.body.sections)?.iter().map(|p| p.serial));
            }
            named
        };
        let env = &self.store.base().env;
        let oldest = owner.published.kept.first().map(|e| e.serial);
        let is_due = |d: &DeadObjects| {
            if d.kind != ObjectKind::Pack {
                // Only `HEAD`'s base says which bases and rounds are restored from.
                return true;
            }
            let serial = Serial { epoch: d.epoch, number: d.first };
            env.check("garbage.kept", oldest.is_none_or(|kept| kept >= d.since))
                && env.check("garbage.snapshot", !in_snapshots.contains(&serial))
        };
        let due: Vec<DeadObjects> =
            owner.published.dead.iter().filter(|d| is_due(d)).copied().collect();
        for dead in due {
            for key in dead.keys() {
                self.check_usable()?;
                self.remote.store.delete(&key).map_err(|e| remote_error(e.into()))?;
                self.gauges.deleted.fetch_add(1, Ordering::Relaxed);
            }
            owner.published.dead.retain(|d| *d != dead);
        }
        self.gauges.dead.store(owner.published.dead.len() as u64, Ordering::Relaxed);
        Ok(())
    }
}
