//! Hooks of the durability mutants: what sites a run passes, and a run with one of them removed
//! or reordered.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DeferUntil, SimFs};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use crate::{Hook, Site, Verdict};

/// Lets everything run and counts the visits of every site.
#[derive(Debug, Default)]
pub struct SiteLog {
    visits: Mutex<BTreeMap<Site, usize>>,
}

impl SiteLog {
    /// Every site visited so far, with its number of visits.
    pub fn sites(&self) -> BTreeMap<Site, usize> {
        self.visits.lock().clone()
    }
}

impl Hook for SiteLog {
    fn visit(&self, site: Site) -> Verdict {
        *self.visits.lock().entry(site).or_insert(0) += 1;
        Verdict::Run
    }
}

/// Removes or reorders one site.
#[derive(Debug)]
pub struct Mutant {
    target: Site,
    nth: Option<usize>,
    reorder: Option<Arc<SimFs>>,
    visits: AtomicUsize,
    hits: Arc<AtomicUsize>,
}

impl Mutant {
    /// Leaves out the `nth` visit of `target` (the first is 1), or every one.
    pub fn remove(target: Site, nth: Option<usize>) -> Self {
        Self { target, nth, reorder: None, visits: AtomicUsize::new(0), hits: Arc::default() }
    }

    /// Counts in `hits`, which several mutants may share, how often it takes effect.
    #[must_use]
    pub fn counting(self, hits: Arc<AtomicUsize>) -> Self {
        Self { hits, ..self }
    }

    /// Lets the `nth` visit of a sync or rename (the first is 1), or every one, take effect only
    /// after the mutating call that follows it, on this file system; where nothing relies on it so
    /// soon, after the rename or the removal that does. A check is removed.
    pub fn reorder(target: Site, nth: Option<usize>, fs: Arc<SimFs>) -> Self {
        Self { reorder: Some(fs), ..Self::remove(target, nth) }
    }

    /// How often the mutant took effect: 0 means that the run never reached it.
    pub fn hits(&self) -> usize {
        self.hits.load(Ordering::SeqCst)
    }
}

impl Hook for Mutant {
    fn visit(&self, site: Site) -> Verdict {
        if site != self.target {
            return Verdict::Run;
        }
        let visit = self.visits.fetch_add(1, Ordering::SeqCst) + 1;
        if self.nth.is_some_and(|n| n != visit) {
            return Verdict::Run;
        }
        self.hits.fetch_add(1, Ordering::SeqCst);
        match (&self.reorder, site) {
            (None, _) | (_, Site::Check(_)) => Verdict::Skip,
            (Some(fs), _) => {
                fs.defer_next(must_follow(site));
                Verdict::Run
            }
        }
    }
}

/// The call that must not precede this sync or rename.
fn must_follow(site: Site) -> DeferUntil {
    let (Site::Sync(name) | Site::SyncDir(name)) = site else { return DeferUntil::Call };
    match name {
        // Names on the way to the logs: acks rest on them, and so does what a snapshot says.
        _ if name.starts_with("dir.") && name != "dir.damaged" => DeferUntil::Rename("snapshot."),
        "store.file" if matches!(site, Site::SyncDir(_)) => DeferUntil::Rename("snapshot."),
        // An ack of the group behind it: before that the file after is made ready.
        "wal.start" => DeferUntil::Calls(14),
        // The ack of a stage, after the rename and the sync of the folder.
        "txn.stage" if matches!(site, Site::Sync(_)) => DeferUntil::Calls(3),
        // A round's syncs precede the rename of its snapshot, not one another.
        _ if name.starts_with("segment.") => DeferUntil::Rename("snapshot."),
        // `CURRENT` names it.
        "recovery.wal.dir" | "wal.file.dir" => DeferUntil::Rename("CURRENT"),
        // The log is trimmed.
        "snapshot.dir" | "dir.damaged" => DeferUntil::Remove(".log"),
        // So is the first log, where the damage is.
        _ if name.starts_with("damaged.") => DeferUntil::Remove("-0000000001.log"),
        _ => DeferUntil::Call,
    }
}
