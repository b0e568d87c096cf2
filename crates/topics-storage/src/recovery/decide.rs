//! What of a shard's log is kept: torn tail or damage, unfinished batch, proven or not.
//!
//! An invalid frame at lsn L is damage iff a later file begins above L, or a valid Group further on
//! names a `synced_lsn` of L or above, or a valid snapshot reflects L or above. Otherwise it is the
//! end of the log. Damage below the replay position costs nothing: it is passed over where the log
//! goes on behind it.

use std::collections::VecDeque;

use topics_env::Env;

use super::chain::{Folder, folder_name};
use super::links::{FIRST, Link, is_declared_lost, links};
use super::plan::{Extent, Reflected, ScanObserver, ShardPlan};
use super::{Loss, Mode};
use crate::format::frame::FrameType;
use crate::format::record::Group;
use crate::format::wal_file::WAL_HEADER;
use crate::wal::scan::{self, Scan, ScanEnd};
use crate::{Result, StorageError};

/// More frames than a shard's log ever held above its newest snapshot: at least 190 GB of them. Where
/// nobody can say how many frames are lost, so many lsns are given up, and so many seqs of each topic
/// are not assigned again.
pub(crate) const UNKNOWN_EXTENT: u64 = 1 << 32;

/// A group that nothing proves durable yet.
#[derive(Clone, Copy, Debug)]
struct Tail {
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
    let links = links(folder, reflected.durable_lsn);
    check_unreadable(folder, &links, reflected, mode)?;
    let mut proven = reflected.durable_lsn;
    for link in links.iter().skip(1) {
        proven = proven.max(link.first.saturating_sub(1));
    }
    // A file whose Start is not there may hold nothing, but its groups know what was durable.
    let found = folder.files.iter().filter_map(|f| f.found);
    proven = found.map(|g| g.synced_lsn_max).fold(proven, u64::max);
    let mut lost_end = folder.lost_end.clone();
    if let (true, Some(last)) = (links.is_empty(), folder.files.last()) {
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
        plan: ShardPlan { links: links.clone(), ..ShardPlan::default() },
    };
    let mut entered = false;
    for (n, link) in links.iter().enumerate() {
        if link.until.is_some_and(|u| u <= reflected.replay_lsn + 1) {
            continue;
        }
        if !std::mem::replace(&mut entered, true) {
            log_scan.enter(n, link)?;
        }
        log_scan.file(n, link)?;
    }
    let after = links.last().map_or(0, |l| l.file + 1);
    let unreadable = folder.unreadable.iter().find(|u| u.at >= after);
    if let Some(e) = unreadable.map(|u| u.error.clone()).or(lost_end) {
        log_scan.lost_end(&e);
    }
    log_scan.finish()
}

/// A file that cannot be read at all is needed unless the one after it begins at or below the
/// replay position.
fn check_unreadable(
    folder: &Folder,
    links: &[Link],
    reflected: Reflected,
    mode: Mode,
) -> Result<()> {
    for u in &folder.unreadable {
        let next = links.iter().find(|l| l.file >= u.at);
        match next {
            Some(l) if l.first <= reflected.replay_lsn + 1 => log::warn!("{}; not needed", u.error),
            _ if mode == Mode::Salvage => log::error!("{}", u.error),
            _ => return Err(u.error.clone()),
        }
    }
    Ok(())
}

struct LogScan<'a> {
    env: &'a Env,
    folder: &'a Folder,
    reflected: Reflected,
    mode: Mode,
    observer: &'a mut dyn ScanObserver,
    proven: u64,
    tails: VecDeque<Tail>,
    /// The last lsn that does not leave a batch unfinished.
    complete: u64,
    /// Where the frame after it begins in the file being scanned.
    complete_at: u64,
    last_kind: Option<FrameType>,
    plan: ShardPlan,
}

impl LogScan<'_> {
    /// The first file must hold the replay position, or nothing below it.
    fn enter(&mut self, n: usize, link: &Link) -> Result<()> {
        let expected = self.reflected.replay_lsn + 1;
        if self.env.check("recovery.chain", link.first <= expected) {
            return Ok(());
        }
        let what = format!(
            "{}: the file with lsn {expected} (the next one begins at {})",
            folder_name(self.folder.shard, ""),
            link.first
        );
        let missing = StorageError::Missing { what };
        let before = self.folder.unreadable.iter().rfind(|u| u.at <= link.file);
        let missing = before.map_or(missing, |u| u.error.clone());
        let cut = self.cut_short(0, link.file)?.unwrap_or(missing);
        let missing = if link.lost_start { self.no_start(link) } else { cut };
        let range = (expected, link.first - 1);
        let later = self.plan.links.get(n..).unwrap_or_default();
        if !self.reflected.known && !is_declared_lost(self.env, self.folder, later, range)? {
            // The log was trimmed, and there is no snapshot of what it said.
            return Err(missing);
        }
        let stop =
            ScanEnd { lsn: expected, offset: 0, why: crate::format::frame::FrameError::Zero };
        self.declare_lost((n, link), &stop, link.first - 1, (0, 0), Some(missing))
    }

    /// Scans one file until the lsn at which its successor begins, or to its end.
    fn file(&mut self, n: usize, link: &Link) -> Result<()> {
        let log = &self.folder.files[link.file];
        let (shown, until) = (self.folder.shown(log), link.until);
        let mut scan = Scan::new(self.env, log.file.clone(), &log.header, &shown, link.first)?;
        scan.seek(link.offset, link.first);
        self.complete_at = link.offset;
        if link.lost_start {
            self.lost_start(link, &shown)?;
        }
        let mut at = self.frames(link.file, &mut scan, until)?;
        loop {
            if let Some(u) = until.filter(|u| at.lsn >= *u) {
                // A batch is in one group, and a group in one file (I5).
                let whole = self.complete.max(self.reflected.replay_lsn) + 1 >= u;
                return match self.env.check("recovery.batch", whole) {
                    true => Ok(()),
                    false => self.declare_lost(
                        (n, link),
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
                self.plan.tail = Some((link.file, at));
                return Ok(());
            }
            // Beside a running log, what says that the frame was durable may be younger than the
            // look at the frame.
            scan.seek(at.offset, at.lsn);
            let again = self.frames(link.file, &mut scan, until)?;
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
            self.declare_lost((n, link), &at, to, (self.complete_at, end), None)?;
            self.complete = to;
            match resume {
                Some(g) => {
                    scan.seek(g.offset, g.lsn);
                    self.complete_at = g.offset;
                    at = self.frames(link.file, &mut scan, until)?;
                }
                None => return Ok(()),
            }
        }
    }

    /// The newest part of the log is missing, or cannot be read. Nothing says how much that was.
    fn lost_end(&mut self, why: &StorageError) {
        let (file, offset) = match why {
            StorageError::Corrupt { file, offset, .. } => (file.clone(), *offset),
            StorageError::Missing { what } => (what.clone(), 0),
            e => (e.to_string(), 0),
        };
        let from_lsn = self.complete.max(self.reflected.replay_lsn) + 1;
        let to_lsn = from_lsn + UNKNOWN_EXTENT - 1;
        let shard = self.folder.shard;
        let before = self.plan.links.last().map(|l| self.folder.files[l.file].header.layout);
        let layouts = (before.unwrap_or(0), u64::MAX);
        let bytes = (0, u64::MAX);
        self.take(Loss { shard, layouts, file, offset, bytes, from_lsn, to_lsn, announced: false });
        self.complete = to_lsn;
    }

    fn take(&mut self, loss: Loss) {
        self.no_copy_below(loss.to_lsn);
        self.observer.lost(&loss);
        self.plan.losses.push(loss);
    }

    fn passed(&mut self, damage: Loss) {
        self.no_copy_below(damage.to_lsn);
        self.plan.passed.push(damage);
    }

    /// What was durable behind damage was so before it too.
    fn no_copy_below(&mut self, lsn: u64) {
        self.proven = self.proven.max(lsn);
        self.tails.clear();
    }

    /// The Start says nothing that the frames do not: where the first group lies right behind it,
    /// only the Start itself is damaged.
    fn lost_start(&self, link: &Link, shown: &str) -> Result<()> {
        if link.offset == FIRST || self.mode == Mode::Salvage {
            log::error!(
                "{shown}: the Start frame is damaged; the first valid group has lsn {}",
                link.first
            );
            return Ok(());
        }
        Err(self.no_start(link))
    }

    fn no_start(&self, link: &Link) -> StorageError {
        StorageError::Corrupt {
            file: self.folder.shown(&self.folder.files[link.file]),
            offset: WAL_HEADER as u64,
            detail: format!(
                "the Start frame is damaged, and nothing valid precedes lsn {}",
                link.first
            ),
        }
    }

    /// Not a torn tail: something durable is at or above this lsn.
    fn damage(&self, lsn: u64, known: u64) -> bool {
        !self.env.check("recovery.torn", lsn > known)
    }

    /// Reads valid frames; returns where they stop.
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

    /// A file of these that ends before its first frame: one that was only made ready is longer.
    fn cut_short(&self, from: usize, to: usize) -> Result<Option<StorageError>> {
        for log in self.folder.files.get(from..to).unwrap_or_default() {
            let file = self.folder.shown(log);
            let len = log.file.len().map_err(|e| StorageError::io(format!("read {file}"), e))?;
            if len <= FIRST && log.first_lsn.is_none() {
                let detail = "the file ends before its first frame".into();
                return Ok(Some(StorageError::Corrupt { file, offset: len, detail }));
            }
        }
        Ok(None)
    }

    /// What lies between link `n` and the next and cannot be read, where the log breaks off there.
    fn root_cause(&self, n: usize, until: Option<u64>) -> Result<Option<StorageError>> {
        let Some(link) = self.plan.links.get(n) else { return Ok(None) };
        let next = self.plan.links.get(n + 1).filter(|l| until == Some(l.first));
        let Some(next) = next else { return Ok(None) };
        let mut unreadable = self.folder.unreadable.iter();
        if let Some(u) = unreadable.find(|u| u.at > link.file && u.at <= next.file) {
            return Ok(Some(u.error.clone()));
        }
        if next.lost_start {
            return Ok(Some(self.no_start(next)));
        }
        self.cut_short(link.file + 1, next.file)
    }

    /// The layouts between what precedes a lost range in the log and what follows it.
    fn layouts_of(&self, (n, link): (usize, &Link), at: &ScanEnd, to: u64) -> (u64, u64) {
        let layout = |l: &Link| self.folder.files[l.file].header.layout;
        let next = self.plan.links.get(n + 1).filter(|l| l.first <= to + 1);
        // What precedes the first file is not there.
        let first = if at.lsn < link.first { 0 } else { layout(link) };
        (first, next.map_or(layout(link), layout))
    }

    /// Gives the lsns up to `to` up. A batch that the damage touches is dropped whole: what of it
    /// precedes the damage too. `bytes` hold what is given up.
    fn declare_lost(
        &mut self,
        (n, link): (usize, &Link),
        at: &ScanEnd,
        to: u64,
        bytes: (u64, u64),
        error: Option<StorageError>,
    ) -> Result<()> {
        let range = (self.complete.max(self.reflected.replay_lsn) + 1, to);
        let mut loss = Loss {
            shard: self.folder.shard,
            layouts: self.layouts_of((n, link), at, to),
            file: self.folder.shown(&self.folder.files[link.file]),
            offset: at.offset,
            bytes,
            from_lsn: range.0,
            to_lsn: to,
            announced: false,
        };
        if let Some(e) = self.plan.extents.last_mut() {
            e.last_lsn = e.last_lsn.min(self.complete);
        }
        if range.0 > to {
            log::warn!("{} is damaged at offset {}: the snapshot has it", loss.file, loss.offset);
            self.passed(Loss { from_lsn: at.lsn.min(to), ..loss });
            return Ok(());
        }
        let later = self.plan.links.get(n..).unwrap_or_default();
        loss.announced = is_declared_lost(self.env, self.folder, later, range)?;
        let reached_end = link.until == Some(to + 1);
        let root_cause = if reached_end { self.root_cause(n, link.until)? } else { None };
        let root_cause = error.or(root_cause);
        if self.mode == Mode::Strict && !loss.announced {
            return Err(root_cause.unwrap_or_else(|| StorageError::Corrupt {
                file: loss.file,
                offset: at.offset,
                detail: format!(
                    "invalid frame at lsn {} ({}), but what follows was durable: run `topics repair` to \
                     see what would be given up (lsn {} to {to})",
                    at.lsn, at.why, range.0
                ),
            }));
        }
        if let Some(StorageError::Corrupt { file, offset, .. }) = root_cause {
            (loss.file, loss.offset, loss.bytes) = (file, offset, (0, u64::MAX));
        }
        self.take(loss);
        Ok(())
    }

    fn finish(mut self) -> Result<ShardPlan> {
        let mut end = self.complete;
        self.plan.clean = self.last_kind == Some(FrameType::CleanClose)
            && self.tails.back().is_some_and(|t| t.end == end);
        if self.plan.clean {
            // CleanClose is a group of its own and is not copied.
            end = self.tails.pop_back().map_or(end, |t| t.lsn - 1);
        }
        while self.tails.back().is_some_and(|t| t.lsn >= end) {
            // A group of which nothing is kept.
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
