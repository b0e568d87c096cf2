//! Decides what to keep of a shard's log: torn tail or damage, unfinished batches, proven groups.
//!
//! An invalid frame at lsn L is damage iff a later file begins above L, or a valid Group further on
//! names a `synced_lsn` of L or above, or a valid snapshot reflects L or above. Otherwise it is the
//! end of the log. Damage below the replay position is harmless and skipped, because the snapshot has
//! what it held.

use std::collections::VecDeque;

use topics_env::Env;

use super::Mode;
use super::file_ranges::{FIRST, FileRange, file_ranges, is_declared_lost};
use super::folder::{Folder, folder_name};
use super::shard_plan::{Extent, Reflected, ScanObserver, ShardPlan};
use crate::format::frame::FrameType;
use crate::format::record::Group;
use crate::format::wal_file::WAL_HEADER;
use crate::wal::scan::{self, Scan, ScanEnd};
use crate::{Result, StorageError};

/// An upper bound of the frames of a shard's log above its newest snapshot (at least 190 GB). If the
/// number of lost frames is unknown, this many lsns are declared lost, and this many seqs of each
/// topic are not assigned again.
pub(crate) const UNKNOWN_EXTENT: u64 = 1 << 32;

/// A group that is not proven durable yet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tail {
    file: usize,
    lsn: u64,
    offset: u64,
    end: u64,
}

pub(crate) fn decide(
    env: &Env,
    folder: &Folder,
    reflected: Reflected,
    mode: Mode,
    observer: &mut dyn ScanObserver,
) -> Result<ShardPlan> {
    let file_ranges = file_ranges(folder, reflected.durable_lsn);
    check_unreadable(folder, &file_ranges, reflected, mode)?;
    let mut proven = reflected.durable_lsn;
    for file_range in file_ranges.iter().skip(1) {
        proven = proven.max(file_range.first.saturating_sub(1));
    }
    // A file without a Start may hold no frames of the log, but its groups prove what was durable.
    let found = folder.files.iter().filter_map(|f| f.found);
    proven = found.map(|g| g.synced_lsn_max).fold(proven, u64::max);
    let mut lost_end = folder.lost_end.clone();
    if let (true, Some(last)) = (file_ranges.is_empty(), folder.files.last()) {
        // `CURRENT` never names a shard's first file before its Start is durable.
        let no_start = StorageError::Corrupt {
            file: folder.shown(last),
            offset: WAL_HEADER as u64,
            detail: "no file of the shard begins with a Start frame".into(),
        };
        if mode == Mode::Strict || !reflected.known {
            return Err(no_start);
        }
        lost_end.get_or_insert(no_start);
    }
    let mut log_scan = LogScan {
        env,
        folder,
        reflected,
        mode,
        observer,
        proven,
        tails: VecDeque::new(),
        complete: reflected.replay_lsn,
        complete_at: 0,
        last_kind: None,
        plan: ShardPlan { file_ranges: file_ranges.clone(), ..ShardPlan::default() },
    };
    let mut entered = false;
    for (n, file_range) in file_ranges.iter().enumerate() {
        if file_range.until.is_some_and(|u| u <= reflected.replay_lsn + 1) {
            continue;
        }
        if !std::mem::replace(&mut entered, true) {
            log_scan.enter(n, file_range)?;
        }
        log_scan.file(n, file_range)?;
    }
    let after = file_ranges.last().map_or(0, |l| l.file + 1);
    let unreadable = folder.unreadable.iter().find(|u| u.at >= after);
    if let Some(e) = unreadable.map(|u| u.error.clone()).or(lost_end) {
        log_scan.lost_end(&e);
    }
    log_scan.finish()
}

/// Fails if an unreadable file is needed: it is, unless the file after it begins at or below the replay
/// position.
fn check_unreadable(
    folder: &Folder,
    file_ranges: &[FileRange],
    reflected: Reflected,
    mode: Mode,
) -> Result<()> {
    for u in &folder.unreadable {
        let next = file_ranges.iter().find(|l| l.file >= u.at);
        match next {
            Some(l) if l.first <= reflected.replay_lsn + 1 => log::warn!("{}; not needed", u.error),
            _ if mode == Mode::Salvage => log::error!("{}", u.error),
            _ => return Err(u.error.clone()),
        }
    }
    Ok(())
}

pub(super) struct LogScan<'a> {
    pub(super) env: &'a Env,
    pub(super) folder: &'a Folder,
    pub(super) reflected: Reflected,
    pub(super) mode: Mode,
    pub(super) observer: &'a mut dyn ScanObserver,
    pub(super) proven: u64,
    pub(super) tails: VecDeque<Tail>,
    /// The last lsn that does not leave a batch unfinished.
    pub(super) complete: u64,
    /// Where the frame after it begins in the file being scanned.
    pub(super) complete_at: u64,
    pub(super) last_kind: Option<FrameType>,
    pub(super) plan: ShardPlan,
}

impl LogScan<'_> {
    /// The first file must hold the replay position, or nothing below it.
    fn enter(&mut self, n: usize, file_range: &FileRange) -> Result<()> {
        let expected = self.reflected.replay_lsn + 1;
        if self.env.check("recovery.chain", file_range.first <= expected) {
            return Ok(());
        }
        let what = format!(
            "{}: the file with lsn {expected} (the next one begins at {})",
            folder_name(self.folder.shard, ""),
            file_range.first
        );
        let missing = StorageError::Missing { what };
        let before = self.folder.unreadable.iter().rfind(|u| u.at <= file_range.file);
        let missing = before.map_or(missing, |u| u.error.clone());
        let cut = self.cut_short(0, file_range.file)?.unwrap_or(missing);
        let missing = if file_range.lost_start { self.no_start(file_range) } else { cut };
        let range = (expected, file_range.first - 1);
        let later = self.plan.file_ranges.get(n..).unwrap_or_default();
        if !self.reflected.known && !is_declared_lost(self.env, self.folder, later, range)? {
            // The log was trimmed, and there is no snapshot of what it said.
            return Err(missing);
        }
        let stop =
            ScanEnd { lsn: expected, offset: 0, why: crate::format::frame::FrameError::Zero };
        self.declare_lost((n, file_range), &stop, file_range.first - 1, (0, 0), Some(missing))
    }

    /// Scans one file until the lsn at which its successor begins, or to its end.
    fn file(&mut self, n: usize, file_range: &FileRange) -> Result<()> {
        let log = &self.folder.files[file_range.file];
        let (shown, until) = (self.folder.shown(log), file_range.until);
        let mut scan =
            Scan::new(self.env, log.file.clone(), &log.header, &shown, file_range.first)?;
        scan.seek(file_range.offset, file_range.first);
        self.complete_at = file_range.offset;
        if file_range.lost_start {
            self.lost_start(file_range, &shown)?;
        }
        let mut at = self.frames(file_range.file, &mut scan, until)?;
        loop {
            if let Some(u) = until.filter(|u| at.lsn >= *u) {
                // A batch is in one group, and a group in one file (I5).
                let whole = self.complete.max(self.reflected.replay_lsn) + 1 >= u;
                return match self.env.check("recovery.batch", whole) {
                    true => Ok(()),
                    false => self.declare_lost(
                        (n, file_range),
                        &at,
                        u - 1,
                        (self.complete_at, at.offset),
                        None,
                    ),
                };
            }
            let resume = scan::find_group(&log.file, &log.header, &shown, at.offset, at.lsn)?;
            let resume = resume.filter(|g| until.is_none_or(|u| g.lsn < u));
            let named = resume.as_ref().map_or(0, |g| g.synced_lsn_max);
            let known = self.proven.max(named);
            if until.is_none() && !self.damage(at.lsn, known) {
                self.plan.tail = Some((file_range.file, at));
                return Ok(());
            }
            // A running log may have written the proof of durability after this scan read the frame:
            // read the frame again.
            scan.seek(at.offset, at.lsn);
            let again = self.frames(file_range.file, &mut scan, until)?;
            if again.lsn > at.lsn {
                at = again;
                continue;
            }
            let to = match (&resume, until) {
                (Some(g), _) => g.lsn - 1,
                (None, Some(u)) => u - 1,
                (None, None) => known,
            };
            let len = log.file.len().map_err(|e| StorageError::io(format!("read {shown}"), e))?;
            let end = resume.as_ref().map_or(len, |g| g.offset);
            self.declare_lost((n, file_range), &at, to, (self.complete_at, end), None)?;
            self.complete = to;
            match resume {
                Some(g) => {
                    scan.seek(g.offset, g.lsn);
                    self.complete_at = g.offset;
                    at = self.frames(file_range.file, &mut scan, until)?;
                }
                None => return Ok(()),
            }
        }
    }

    /// Accepts a damaged Start if the first group follows directly, because the frames repeat all that
    /// it says.
    fn lost_start(&self, file_range: &FileRange, shown: &str) -> Result<()> {
        if file_range.offset == FIRST || self.mode == Mode::Salvage {
            log::error!(
                "{shown}: the Start frame is damaged; the first valid group has lsn {}",
                file_range.first
            );
            return Ok(());
        }
        Err(self.no_start(file_range))
    }

    pub(super) fn no_start(&self, file_range: &FileRange) -> StorageError {
        StorageError::Corrupt {
            file: self.folder.shown(&self.folder.files[file_range.file]),
            offset: WAL_HEADER as u64,
            detail: format!(
                "the Start frame is damaged, and nothing valid precedes lsn {}",
                file_range.first
            ),
        }
    }

    /// Whether an invalid frame is damage, not a torn tail: a durable frame is at or above this lsn.
    fn damage(&self, lsn: u64, known: u64) -> bool {
        !self.env.check("recovery.torn", lsn > known)
    }

    /// Reads valid frames; returns where they end.
    fn frames(&mut self, index: usize, scan: &mut Scan, until: Option<u64>) -> Result<ScanEnd> {
        let mut extent: Option<Extent> = None;
        let stop = loop {
            if until.is_some_and(|u| scan.next_lsn() >= u) && self.void() {
                break scan.stop();
            }
            let Some(f) = scan.next_frame()? else { break scan.stop() };
            let e = extent.get_or_insert(Extent {
                file: index,
                offset: f.offset,
                first_lsn: f.lsn,
                last_lsn: f.lsn,
            });
            e.last_lsn = f.lsn;
            self.last_kind = Some(f.frame.kind);
            if let Some(group) = Group::of(&f.frame) {
                self.proven = self.proven.max(group.synced_lsn);
                let end = f.lsn.saturating_add(u64::from(group.frames));
                // A later Start may void the end of a group.
                let end = until.map_or(end, |u| end.min(u - 1));
                self.tails.push_back(Tail { file: index, lsn: f.lsn, offset: f.offset, end });
                while self.tails.front().is_some_and(|t| t.end <= self.proven) {
                    self.tails.pop_front();
                }
            }
            if !f.frame.flags.batch_more() {
                self.complete = f.lsn;
                self.complete_at = f.offset + f.raw.len() as u64;
            }
            self.observer.frame(index, &f);
        };
        self.plan.extents.extend(extent.filter(|e| e.last_lsn > self.reflected.replay_lsn));
        Ok(stop)
    }

    /// Frames at or above the lsn that the next file's Start names are void.
    fn void(&self) -> bool {
        !self.env.check("recovery.void", false)
    }

    fn finish(mut self) -> Result<ShardPlan> {
        let mut end = self.complete;
        self.plan.clean = self.last_kind == Some(FrameType::CleanClose)
            && self.tails.back().is_some_and(|t| t.end == end);
        if self.plan.clean {
            // CleanClose is a group of its own and is never copied.
            end = self.tails.pop_back().map_or(end, |t| t.lsn - 1);
        }
        while self.tails.back().is_some_and(|t| t.lsn >= end) {
            // Nothing of this group is kept.
            end = self.tails.pop_back().map_or(end, |t| t.lsn - 1);
        }
        self.plan.end_lsn = end;
        self.plan.start_lsn = self.tails.front().map_or(end + 1, |t| t.lsn);
        let start = self.plan.start_lsn;
        self.plan.copied = self.tails.front().map(|t| Extent {
            file: t.file,
            offset: t.offset,
            first_lsn: t.lsn,
            last_lsn: end,
        });
        self.plan.extents.retain_mut(|e| {
            e.last_lsn = e.last_lsn.min(start - 1);
            e.first_lsn <= e.last_lsn && e.last_lsn > self.reflected.replay_lsn
        });
        Ok(self.plan)
    }
}
