//! Hooks of the durability mutants: a log of the sites that a run passes, and a mutant that removes
//! or reorders one of them.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::{DeferUntil, SimFs};
use topics_env::sync::Mutex;
use topics_env::sync::atomic::{AtomicUsize, Ordering};
use topics_env::{Hook, Site, Verdict};

/// Runs every step and counts the visits of each site.
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
    /// Skips the `nth` visit of `target` (the first is 1), or every visit.
    pub fn remove(target: Site, nth: Option<usize>) -> Self {
        Self { target, nth, reorder: None, visits: AtomicUsize::new(0), hits: Arc::default() }
    }

    /// Counts in `hits`, which several mutants may share, how often the mutant takes effect.
    #[must_use]
    pub fn counting(self, hits: Arc<AtomicUsize>) -> Self {
        Self { hits, ..self }
    }

    /// Delays the `nth` visit of a sync or rename (the first is 1), or every visit, until after the
    /// next mutating call on this file system; if no code depends on it that early, until after the
    /// rename or removal that depends on it. A check is removed.
    pub fn reorder(target: Site, nth: Option<usize>, fs: Arc<SimFs>) -> Self {
        Self { reorder: Some(fs), ..Self::remove(target, nth) }
    }

    /// How often the mutant took effect; 0: the run never reached the site.
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

/// The call that the delayed sync or rename must follow.
fn must_follow(site: Site) -> DeferUntil {
    let (Site::Sync(name) | Site::SyncDir(name)) = site else { return DeferUntil::Call };
    match name {
        // Names on the path to the logs: acks and the content of a snapshot depend on them.
        _ if name.starts_with("dir.") && name != "dir.damaged" => DeferUntil::Rename("snapshot."),
        "store.file" if matches!(site, Site::SyncDir(_)) => DeferUntil::Rename("snapshot."),
        // The next commit group is acked only after the following log file is prepared.
        "wal.start" => DeferUntil::Calls(14),
        // A staged write is acked after its rename and the sync of its directory.
        "txn.stage" if matches!(site, Site::Sync(_)) => DeferUntil::Calls(3),
        // The syncs of a checkpoint round must precede the rename of its snapshot, not one another.
        _ if name.starts_with("segment.") => DeferUntil::Rename("snapshot."),
        // `CURRENT` names this file.
        "recovery.wal.dir" | "wal.file.dir" => DeferUntil::Rename("CURRENT"),
        // The log is trimmed after it.
        "snapshot.dir" | "dir.damaged" => DeferUntil::Remove(".log"),
        // The removal of the marker says that the copy is whole.
        "backup.file" | "backup.dir" | "backup.fs" => DeferUntil::Remove(".topics.incomplete"),
        // The trim of the first log, which contains the damage, depends on it.
        _ if name.starts_with("damaged.") => DeferUntil::Remove("-0000000001.log"),
        _ => DeferUntil::Call,
    }
}
