//! A full disk: what is deleted becomes room.
//!
//! One live record keeps the log from its file on, dead ones a segment until it is written anew.
//! Both need room for what is live, before they give any. The reserve has it, and the log, which
//! waits for room too, may take none until the reserve is whole again ([`AllocationPause`]).
//!
//! | state | what it means | left when |
//! |---|---|---|
//! | *normal* | every shard has its next log file; rounds copy all that is synced | a look finds a shard without a next file → *short*; a copy finds the disk full → *deletes* |
//! | *short* | writes that need a new file fail, deletes and what frees space go on; a round is due every second while something was logged, or until nothing changes any more | a look finds that every shard has its next file → *normal*; a round begins → *deletes* |
//! | *deletes* | the round holds the free space against the log and writes `.del` files only; when they do not fit, out of the reserve, once | always → *moving* |
//! | *moving* | the round copies, out of the reserve, the oldest log files whose removal gives more than their live records take; when the estimate was too low, of half, a quarter, an eighth of the room | copied, or nothing is worth it → *snapshot* |
//! | *snapshot* | the snapshot is written, the log files and segments that nothing names go | always → *refill* |
//! | *refill* | what was freed fills the reserve again; then the hold on the free space ends | the next look → *short* or *normal* |
//!
//! A reclaim on a full disk goes the same way with one segment at a time: *short* → hold → the reserve
//! → the segment written anew → *refill*. An error in any of these states ends in *refill* too.

use std::collections::HashMap;
use std::sync::Arc;

use topics_env::sync::atomic::Ordering;
use topics_storage::segment::SegmentMeta;
use topics_storage::wal::{AllocationPause, EndedFile, FileKey};

use super::Store;
use super::reclaim::{Candidate, rewrite};
use super::round::{Copied, copy};
use super::snapshot::PoisonedShards;
use crate::topic::{Seg, State, Topic};
use crate::types::error::{Error, Result};

impl Store {
    /// Looks at whether every shard has its next log file.
    pub(crate) fn refresh_space(&self) {
        let short = (0..self.wal.shards()).filter(|s| self.wal.full(*s)).count() > 0;
        self.short_of_space.store(short, Ordering::Relaxed);
    }

    /// Whether a shard had no space for its next log file at the last look.
    pub(crate) fn short_of_space(&self) -> bool {
        self.short_of_space.load(Ordering::Relaxed)
    }
}

/// What a record takes in a segment beside its payload, at most: its frame, and in the index.
const RECORD: u64 = 43 + INDEX;
/// What a hole takes.
const INDEX: u64 = 20;
/// What the files of a segment take beside what is in them, with their names.
const FILES: u64 = 5 * 4096;

/// What a round copies of the log.
#[derive(Debug, Default)]
struct Reach {
    /// Up to which lsn of each shard.
    upto: Vec<u64>,
    /// About the bytes that it takes.
    takes: u64,
}

/// Copies the log; on a full disk as much as gives more than it takes. Whether it moved any of it
/// on a full disk: another round gives back what held it.
pub(crate) fn copy_what_fits(
    core: &Arc<Store>,
    poisoned: &PoisonedShards,
    held: &mut Option<AllocationPause>,
) -> Result<bool> {
    if !core.short_of_space() {
        match copy(core, poisoned, Copied::Synced) {
            Err((e, _)) if e.is_full() => log::warn!("no space to copy records from the log: {e}"),
            outcome => return outcome.map(|()| false).map_err(|(e, _)| e),
        }
    }
    *held = Some(core.wal.pause_allocation());
    let mut written = copy(core, poisoned, Copied::Deletes);
    if let Err((e, bytes)) = &written
        && e.is_full()
    {
        core.disk.checkpoints.release_reserve(*bytes)?;
        written = copy(core, poisoned, Copied::Deletes);
    }
    match written {
        // A snapshot may still free something.
        Err((e, _)) if e.is_full() => log::warn!("no space to write down what was deleted: {e}"),
        outcome => outcome.map_err(|(e, _)| e)?,
    }
    move_what_fits(core, poisoned)
}

/// Moves records from the log to segments, with a part of the reserve. Whether it moved any.
fn move_what_fits(core: &Arc<Store>, poisoned: &PoisonedShards) -> Result<bool> {
    let moves = LogMoves::find(core, poisoned);
    let mut room = core.disk.checkpoints.free_with_reserve()?;
    // Deletes are logged in the unused space: it is taken only if that makes a step possible.
    if moves.best(room).takes == 0 && moves.best(room + core.wal.unused()).takes > 0 {
        core.wal.truncate_unused();
        room = core.disk.checkpoints.free_with_reserve()?;
    }
    // What files take is an estimate: where it is too low a smaller step is made.
    for part in [1, 2, 4, 8] {
        let reach = moves.best(room / part);
        if reach.takes == 0 {
            return Ok(false);
        }
        if core.disk.checkpoints.free() < reach.takes {
            core.disk.checkpoints.release_spare_reserve(reach.takes)?;
        }
        match copy(core, poisoned, Copied::Upto(&reach.upto)) {
            Err((e, _)) if e.is_full() => log::warn!("no space to move what the log holds: {e}"),
            outcome => return outcome.map(|()| true).map_err(|(e, _)| e),
        }
    }
    Ok(false)
}

/// What moving the records of the log files would take, and give.
struct LogMoves {
    /// Per shard its complete files; none of a poisoned shard.
    files: Vec<Vec<EndedFile>>,
    /// Bytes that the records of each file take in segments.
    live: HashMap<FileKey, u64>,
    /// Bytes that ending the active segments takes that are worth being rewritten.
    ends: u64,
}

impl LogMoves {
    fn find(core: &Store, poisoned: &PoisonedShards) -> Self {
        let (mut live, mut ends) = (HashMap::new(), 0);
        core.table.loaded.each(|topic| {
            let shard = core.shard(topic.id());
            if !poisoned.has(shard) {
                let suspect = |m: &SegmentMeta| core.segments.is_suspect(m.file_no);
                let state = topic.state.read();
                let events = core.options.segment_max_events.max(1);
                ends += state.moving(shard as u32, events, suspect, &mut live);
            }
        });
        let of = |s| if poisoned.has(s) { Vec::new() } else { core.wal.ended_files(s) };
        Self { files: (0..core.wal.shards()).map(of).collect(), live, ends }
    }

    /// Of each shard the files whose removal gives most, for what fits into `room` bytes.
    fn best(&self, room: u64) -> Reach {
        let mut room = room.saturating_sub(self.ends);
        let mut reach = Reach { upto: vec![0; self.files.len()], takes: self.ends };
        let mut shards: Vec<usize> = (0..self.files.len()).collect();
        while let Some((at, best)) = shards
            .iter()
            .enumerate()
            .filter_map(|(i, s)| Some((i, best(&self.files[*s], &self.live, room)?)))
            .max_by_key(|(_, b)| b.gain)
        {
            reach.upto[shards.swap_remove(at)] = best.upto;
            reach.takes += best.takes;
            room -= best.takes;
        }
        reach
    }
}

/// The oldest files of a shard, as a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Step {
    upto: u64,
    takes: u64,
    gain: u64,
}

/// The step that gives most, of those that there is room for and that lose nothing.
fn best(files: &[EndedFile], live: &HashMap<FileKey, u64>, room: u64) -> Option<Step> {
    let (mut takes, mut gives, mut best) = (0_u64, 0_u64, None::<Step>);
    for f in files {
        takes += live.get(&f.key).copied().unwrap_or(0);
        gives += f.bytes;
        if takes > room {
            break;
        }
        if let Some(gain) = gives.checked_sub(takes)
            && best.is_none_or(|b| gain >= b.gain)
        {
            best = Some(Step { upto: f.last_lsn, takes, gain });
        }
    }
    best
}

/// Rewrites; what frees more than it takes may have what no snapshot needs of the reserve.
pub(crate) fn rewrite_or_give(
    core: &Arc<Store>,
    topic: &Arc<Topic>,
    candidate: &Candidate,
) -> Result<()> {
    let outcome = rewrite(core, topic, candidate);
    if !outcome.as_ref().is_err_and(Error::is_full) || !core.short_of_space() {
        return outcome;
    }
    let _held = core.wal.pause_allocation();
    if candidate.takes > core.disk.checkpoints.free_with_reserve()? {
        core.wal.truncate_unused();
        if candidate.takes > core.disk.checkpoints.free_with_reserve()? {
            return outcome;
        }
    }
    core.disk.checkpoints.release_spare_reserve(candidate.takes)?;
    let outcome = rewrite(core, topic, candidate);
    core.disk.checkpoints.refill(&core.wal);
    outcome
}

/// About the bytes that a segment takes without its dead: of each record its payload, at most 43
/// bytes, and 20 in the index.
pub(crate) fn takes(seg: &Seg) -> u64 {
    seg.live_bytes + 43 * seg.live_count + 20 * seg.meta.span() + 4096
}

impl State {
    /// Adds to `live` what the records in each log file take in segments. What ending the active
    /// segment takes, where it is worth being written anew, is the answer.
    fn moving(
        &self,
        shard: u32,
        events: u64,
        suspect: impl Fn(&SegmentMeta) -> bool,
        live: &mut HashMap<FileKey, u64>,
    ) -> u64 {
        let active = self.index.segs.last().filter(|s| !s.meta.sealed);
        // A file that is made again is copied first.
        let again = active.filter(|s| suspect(&s.meta));
        let again = again.map_or(0, |s| s.meta.data_len + INDEX * s.meta.span());
        let (mut once, mut next) = (again + FILES, None);
        for run in &self.index.runs {
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

    /// On a full disk: of the segments that are a quarter dead, and that there is room to write
    /// anew, the one that frees most.
    pub(crate) fn worth_most(&self, room: u64) -> std::result::Result<Option<Candidate>, u64> {
        let segs = self.index.segs.iter().enumerate();
        let best = segs
            .filter(|(_, s)| s.meta.sealed && s.dead_part(4) && takes(s) <= room)
            .max_by_key(|(_, s)| s.meta.data_len.saturating_sub(s.live_bytes));
        best.map(|(at, _)| self.candidate(at, 1)).transpose()
    }

    /// Whether the active segment is worth being written anew on a full disk.
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
    fn the_step_that_gives_most_is_taken() {
        let files = [file(1, 10), file(2, 20), file(3, 30)];
        let step = |live: &[(u32, u64)], room| {
            let live = live.iter().map(|(k, n)| (FileKey(*k), *n)).collect();
            best(&files, &live, room).map(|s| (s.upto, s.takes, s.gain))
        };
        assert_eq!(step(&[], 0), Some((30, 0, 300)));
        // Through a file that gives nothing to those behind it.
        assert_eq!(step(&[(1, 100)], 100), Some((30, 100, 200)));
        assert_eq!(step(&[(1, 100)], 99), None);
        assert_eq!(step(&[(1, 100), (2, 1)], 100), Some((10, 100, 0)));
        assert_eq!(step(&[(1, 10), (2, 200)], 300), Some((30, 210, 90)));
        assert_eq!(step(&[(1, 10), (2, 200)], 200), Some((10, 10, 90)));
        assert_eq!(step(&[(1, 101), (2, 100), (3, 100)], 1000), None, "it would take more");
    }
}
