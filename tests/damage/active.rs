//! Damage to the active segment, whose index has no checksum and whose files are still written: an
//! index entry that reads as a hole, and a file that can no longer be synced.

use topics_engine::Durability;
use topics_sim::{CallFilter, CallKind, FaultKind, PageFate, Survival};

use super::corpus::files;
use super::forged::{driver, plan, serves};
use crate::run::{Driver, HookSpec, batch};
use crate::workloads::class;

/// The offset of the entries of an `.idx`, and the length of each.
const ENTRIES: usize = 32;
const ENTRY: usize = 20;

fn open(seed: u64, hook: &HookSpec) -> Driver {
    let mut d = driver(seed, hook);
    (d.tuning.segment_records, d.tuning.segment_bytes) = (1_000, 1 << 20);
    d.open();
    d.create("a", &class(Durability::Fsync));
    d
}

/// One flipped bit turns an entry into a hole.
pub(super) fn hole(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = open(seed, hook);
    // The frames have every length up to the next power of two.
    (0..80).for_each(|n| _ = d.append("a", &batch(1).size(60 + n)));
    d.checkpoint();
    let mut image = d.fs().kill_image();
    let Some((path, mut idx)) = files(&image).into_iter().find(|f| f.0.ends_with(".idx")) else {
        return vec!["no index".into()];
    };
    let len = |idx: &[u8], at: usize| {
        idx.get(at..at + 4).map_or(0, |b| b.iter().rev().fold(0, |n, b| n << 8 | u32::from(*b)))
    };
    let mut lens = (ENTRIES + 4..idx.len()).step_by(ENTRY);
    let Some(at) = lens.find(|at| len(&idx, *at).is_power_of_two()) else {
        return vec!["no record of such a length: nothing was tried".into()];
    };
    idx[at..at + 4].fill(0);
    image.put(&path, &idx);
    serves(&d, &image, &plan(&d, seed, hook), "an entry that reads as a hole")
}

/// Every sync of the active segment's files fails: the next round creates other files, and the log
/// can be trimmed.
pub(super) fn bad_place(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut out = Vec::new();
    for part in [".data", ".idx"] {
        let mut d = open(seed, hook);
        d.append("a", &batch(3));
        d.checkpoint();
        let made = files(&d.fs().kill_image()).into_iter().find(|f| f.0.ends_with(part));
        let Some((path, _)) = made else { return vec![format!("no {part}")] };
        let syncs = CallFilter::on_path(CallKind::SyncData, &path);
        d.fs().fail_from(syncs, 1, FaultKind::SyncFails { then: PageFate::Lost });
        d.append("a", &batch(3));
        if d.checkpoint() {
            out.push(format!("a checkpoint returns though {path} cannot be synced"));
        }
        d.append("a", &batch(3));
        if !d.checkpoint() {
            out.push(format!("the second checkpoint needs {path} too"));
        }
        let mut cursor = d.fs().crash_cursor();
        while cursor.advance() {}
        let image = cursor.image(Survival::DropAll);
        out.extend(serves(&d, &image, &plan(&d, seed, hook), "what was made elsewhere"));
    }
    out
}
