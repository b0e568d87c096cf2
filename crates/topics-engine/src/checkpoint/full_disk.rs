//! Checkpoints and reclaim on a full disk: deleted records become free space.
//!
//! A live record keeps every log file from its own on, and a segment keeps its dead records until it is
//! rewritten. Removing either needs space for the live records first. The reserve has that space. The
//! log waits for space too: it may allocate none until the reserve is whole again
//! ([`AllocationPause`]).
//!
//! | state | meaning | next state |
//! |---|---|---|
//! | *normal* | every shard has its next log file; rounds copy all synced records | a refresh finds a shard without a next file → *short*; a copy finds the disk full → *deletes* |
//! | *short* | writes that need a new file fail, deletes and other batches that free space go on; a round is due every second while something was logged, or until nothing changes any more | a refresh finds that every shard has its next file → *normal*; a round begins → *deletes* |
//! | *deletes* | the round pauses the log's allocation and writes `.del` files only; if they do not fit, once more with space of the reserve | always → *moving* |
//! | *moving* | the round copies, with space of the reserve, the oldest log files whose removal frees more than their live records take; if none fits, with the unused space of the log; if the estimate was too low, with a half, a quarter, an eighth of the free space | copied, or no file is worth it → *snapshot* |
//! | *snapshot* | the round writes the snapshot and removes the log files and segments that no kept snapshot names | always → *refill* |
//! | *refill* | the freed space fills the reserve again; then the pause ends | the next refresh → *short* or *normal* |
//!
//! A reclaim on a full disk takes the same way with one segment at a time: *short* → pause → reserve →
//! rewrite → *refill*. An error in any of these states leads to *refill* too.

use std::collections::HashMap;
use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::segment::SegmentMeta;
use topics_storage::wal::{AllocationPause, EndedFile, FileKey};

use super::Store;
use super::reclaim::{Candidate, rewrite};
use super::round::{Copied, copy};
use super::snapshot::PoisonedShards;
use crate::catalog::Catalog;
use crate::topic::{Seg, State, Topic};
use crate::types::error::{Error, Result};

impl Store {
    /// Checks whether every shard has its next log file.
    pub(crate) fn refresh_space(&self) {
        let short = (0..self.ctx().wal.shards()).filter(|s| self.ctx().wal.full(*s)).count() > 0;
        self.short_of_space.store(short, Ordering::Relaxed);
    }

    /// Whether the last refresh found a shard without space for its next log file.
    pub(crate) fn short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::Relaxed)
    }
}

/// Maximum bytes of a record in a segment beside its payload: frame and index entry.
const RECORD: u64 = 43 + INDEX;
/// Bytes of a hole: its index entry.
const INDEX: u64 = 20;
/// Bytes of an empty segment: its files and their names.
const FILES: u64 = 5 * 4096;

/// The part of the log that a round copies.
#[derive(Debug, Default)]
struct CopyRange {
    /// The last lsn of each shard.
    upto: Vec<u64>,
    /// Estimated bytes of the copy.
    takes: u64,
}

/// Copies the log; on a full disk only files whose removal frees more than their copy takes. Returns
/// whether it copied any on a full disk: then another round removes them.
pub(crate) fn copy_what_fits(
    store: &Arc<Store>,
    poisoned: &PoisonedShards,
    pause: &mut Option<AllocationPause>,
) -> Result<bool> {
    if !store.short_of_space() {
        match copy(store, poisoned, Copied::Synced) {
            Err((e, _)) if e.is_full() => log::warn!("no space to copy records from the log: {e}"),
            outcome => return outcome.map(|()| false).map_err(|(e, _)| e),
        }
    }
    *pause = Some(store.ctx().wal.pause_allocation());
    let mut written = copy(store, poisoned, Copied::Deletes);
    if let Err((e, bytes)) = &written
        && e.is_full()
    {
        store.disk.checkpoints.release_reserve(*bytes)?;
        written = copy(store, poisoned, Copied::Deletes);
    }
    match written {
        // A snapshot may still free something.
        Err((e, _)) if e.is_full() => log::warn!("no space to write down what was deleted: {e}"),
        outcome => outcome.map_err(|(e, _)| e)?,
    }
    move_what_fits(store, poisoned)
}

/// Moves records from the log to segments, with a part of the reserve. Returns whether it moved any.
fn move_what_fits(store: &Arc<Store>, poisoned: &PoisonedShards) -> Result<bool> {
    let moves = LogMoves::find(store.catalog(), poisoned);
    let mut room = store.disk.checkpoints.free_with_reserve()?;
    // Deletes are logged in the unused space: it is taken only if that makes a step possible.
    if moves.best(room).takes == 0 && moves.best(room + store.ctx().wal.unused()).takes > 0 {
        store.ctx().wal.truncate_unused();
        room = store.disk.checkpoints.free_with_reserve()?;
    }
    // What files take is an estimate: where it is too low a smaller step is made.
    for part in [1, 2, 4, 8] {
        let range = moves.best(room / part);
        if range.takes == 0 {
            return Ok(false);
        }
        if store.disk.checkpoints.free() < range.takes {
            store.disk.checkpoints.release_spare_reserve(range.takes)?;
        }
        match copy(store, poisoned, Copied::Upto(&range.upto)) {
            Err((e, _)) if e.is_full() => log::warn!("no space to move what the log holds: {e}"),
            outcome => return outcome.map(|()| true).map_err(|(e, _)| e),
        }
    }
    Ok(false)
}

/// The log files with the bytes that copying their live records takes.
struct LogMoves {
    /// Per shard its complete files; none of a poisoned shard.
    files: Vec<Vec<EndedFile>>,
    /// Bytes that the records of each file take in segments.
    live: HashMap<FileKey, u64>,
    /// Bytes that ending the active segments takes that are worth being rewritten.
    ends: u64,
}

impl LogMoves {
    fn find(catalog: &Catalog, poisoned: &PoisonedShards) -> Self {
        let (mut live, mut ends) = (HashMap::new(), 0);
        catalog.table.loaded.each(|topic| {
            let shard = catalog.ctx().shard(topic.id());
            if !poisoned.has(shard) {
                let suspect = |m: &SegmentMeta| catalog.base().segments.is_suspect(m.file_no);
                let state = topic.state.read();
                let events = catalog.base().options.segment_max_events.max(1);
                ends += state.moving(shard as u32, events, suspect, &mut live);
            }
        });
        let of = |s| if poisoned.has(s) { Vec::new() } else { catalog.ctx().wal.ended_files(s) };
        Self { files: (0..catalog.ctx().wal.shards()).map(of).collect(), live, ends }
    }

    /// Per shard, the oldest files whose removal frees most, if their copies fit into `room` bytes.
    fn best(&self, room: u64) -> CopyRange {
        let mut room = room.saturating_sub(self.ends);
        let mut range = CopyRange { upto: vec![0; self.files.len()], takes: self.ends };
        let mut shards: Vec<usize> = (0..self.files.len()).collect();
        while let Some((at, best)) = shards
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((i, best(&self.files[*s], &self.live, room)?)))
            .max_by_key(|(_, b)| b.gain)
        {
            range.upto[shards.swap_remove(at)] = best.upto;
            range.takes += best.takes;
            room -= best.takes;
        }
        range
    }
}

/// The oldest files of a shard, up to one of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct OldestFiles {
    /// The last lsn in them.
    upto: u64,
    /// Bytes of the copy of their live records.
    takes: u64,
    /// Bytes that are free after their removal, and were not before the copy.
    gain: u64,
}

/// The oldest files with the largest gain, if their copy fits into `room` and the gain is not negative.
fn best(files: &[EndedFile], live: &HashMap<FileKey, u64>, room: u64) -> Option<OldestFiles> {
    let (mut takes, mut frees, mut best) = (0_u64, 0_u64, None::<OldestFiles>);
    for f in files {
        takes += live.get(&f.key).copied().unwrap_or(0);
        frees += f.bytes;
        if takes > room {
            break;
        }
        if let Some(gain) = frees.checked_sub(takes)
            && best.is_none_or(|b| gain >= b.gain)
        {
            best = Some(OldestFiles { upto: f.last_lsn, takes, gain });
        }
    }
    best
}

/// Rewrites a candidate; on a full disk with the part of the reserve that no snapshot needs.
pub(crate) fn rewrite_with_reserve(
    store: &Arc<Store>,
    topic: &Arc<Topic>,
    candidate: &Candidate,
) -> Result<()> {
    let outcome = rewrite(store, topic, candidate);
    if !outcome.as_ref().is_err_and(Error::is_full) || !store.short_of_space() {
        return outcome;
    }
    let _pause = store.ctx().wal.pause_allocation();
    if candidate.takes > store.disk.checkpoints.free_with_reserve()? {
        store.ctx().wal.truncate_unused();
        if candidate.takes > store.disk.checkpoints.free_with_reserve()? {
            return outcome;
        }
    }
    store.disk.checkpoints.release_spare_reserve(candidate.takes)?;
    let outcome = rewrite(store, topic, candidate);
    store.disk.checkpoints.refill(&store.ctx().wal);
    outcome
}

/// Estimated bytes of a segment without its dead records: per record its payload, at most 43 bytes of
/// frame, and 20 in the index.
pub(crate) fn takes(seg: &Seg) -> u64 {
    seg.live_bytes + 43 * seg.live_count + 20 * seg.meta.span() + 4096
}

impl State {
    /// Adds to `live` the bytes that the records of each log file take in segments. Returns the bytes
    /// that sealing the active segment takes, if it is worth a rewrite.
    fn moving(
        &self,
        shard: u32,
        events: u64,
        suspect: impl Fn(&SegmentMeta) -> bool,
        live: &mut HashMap<FileKey, u64>,
    ) -> u64 {
        let active = self.index.segs.last().filter(|s| !s.meta.sealed);
        // A suspect segment is copied into new files first.
        let again = active.filter(|s| suspect(&s.meta));
        let again = again.map_or(0, |s| s.meta.data_len + INDEX * s.meta.span());
        let (mut once, mut next) = (again + FILES, None);
        for run in self.index.runs() {
            let Some((of, file)) = run.log_file() else {
                if run.place.ephemeral() { continue } else { break }
            };
            if of != shard {
                break;
            }
            let n = run.entries.len() as u64;
            let payload =
                run.entries.iter().filter(|e| !e.dead()).map(|e| e.payload() + RECORD - INDEX);
            let mut takes = payload.sum::<u64>() + INDEX * n + FILES * n / events;
            if next.is_some_and(|next| next != run.first) {
                takes += FILES;
            }
            takes += std::mem::take(&mut once);
            next = Some(run.first + n);
            *live.entry(file).or_default() += takes;
        }
        match active.filter(|_| self.active_is_worth()) {
            Some(s) => again + FILES + 2 * INDEX * s.meta.span(),
            None => 0,
        }
    }

    /// On a full disk: the segment whose rewrite frees most, of those that are a quarter dead and whose
    /// live records fit into `room`. `Err`: the dead records of this segment must be loaded first.
    pub(crate) fn worth_most(&self, room: u64) -> std::result::Result<Option<Candidate>, u64> {
        let segs = self.index.segs.iter().enumerate();
        let best = segs
            .filter(|(_, s)| s.meta.sealed && s.dead_part(4) && takes(s) <= room)
            .max_by_key(|(_, s)| s.meta.data_len.saturating_sub(s.live_bytes));
        best.map(|(at, _)| self.candidate(at, 1)).transpose()
    }

    /// Whether the active segment is worth a rewrite on a full disk.
    pub(crate) fn active_is_worth(&self) -> bool {
        self.index.segs.last().is_some_and(|s| !s.meta.sealed && s.dead_part(4))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(key: u32, last_lsn: u64) -> EndedFile {
        EndedFile { key: FileKey(key), last_lsn, bytes: 100 }
    }

    #[test]
    fn the_files_with_the_largest_gain_are_chosen() {
        let files = [file(1, 10), file(2, 20), file(3, 30)];
        let step = |live: &[(u32, u64)], room| {
            let live = live.iter().map(|(k, n)| (FileKey(*k), *n)).collect();
            best(&files, &live, room).map(|s| (s.upto, s.takes, s.gain))
        };
        assert_eq!(step(&[], 0), Some((30, 0, 300)));
        // A file without a gain is copied for the ones behind it.
        assert_eq!(step(&[(1, 100)], 100), Some((30, 100, 200)));
        assert_eq!(step(&[(1, 100)], 99), None);
        assert_eq!(step(&[(1, 100), (2, 1)], 100), Some((10, 100, 0)));
        assert_eq!(step(&[(1, 10), (2, 200)], 300), Some((30, 210, 90)));
        assert_eq!(step(&[(1, 10), (2, 200)], 200), Some((10, 10, 90)));
        assert_eq!(step(&[(1, 101), (2, 100), (3, 100)], 1000), None, "it would take more");
    }
}
