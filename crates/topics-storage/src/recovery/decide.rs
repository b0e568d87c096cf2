//! What of a shard's log is kept: torn tail or damage, unfinished batch, proven or not.
//!
//! An invalid frame at lsn L is damage iff a later file begins above L, or a valid Group further on
//! names a `synced_lsn` of L or above, or a valid snapshot reflects L or above. Otherwise it is the
//! end of the log.

use std::collections::VecDeque;

use topics_env::Env;

use super::chain::Folder;
use super::{Loss, Mode};
use crate::format::frame::FrameType;
use crate::format::record::Group;
use crate::wal::scan::{self, Scan, Stop};
use crate::{Result, StorageError};

/// Valid, contiguous frames of one file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Extent {
    /// Index in [`Folder::files`].
    pub file: usize,
    /// Offset of the first frame.
    pub offset: u64,
    /// Its lsn.
    pub first_lsn: u64,
    /// The last lsn, inclusive.
    pub last_lsn: u64,
}

/// A group that nothing proves durable yet.
#[derive(Clone, Copy, Debug)]
struct Tail {
    lsn: u64,
    offset: u64,
    end: u64,
}

/// What recovery does with one shard.
#[derive(Clone, Debug, Default)]
pub(super) struct ShardPlan {
    /// What is replayed from where it lies, in lsn order.
    pub extents: Vec<Extent>,
    /// What is copied into the new file first: the groups above the proven lsn.
    pub copied: Option<Extent>,
    /// First lsn of the new file.
    pub start_lsn: u64,
    /// Last kept lsn.
    pub end_lsn: u64,
    /// The log ends with a CleanClose.
    pub clean: bool,
    /// Damage that is given up (`salvage`), or was by an earlier recovery.
    pub losses: Vec<Loss>,
}

/// What a snapshot says about the shard.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reflected {
    /// Nothing up to here is replayed.
    pub replay_lsn: u64,
    /// The snapshot was renamed only when this was durable.
    pub durable_lsn: u64,
}

pub(super) fn decide(
    env: &Env,
    folder: &Folder,
    reflected: Reflected,
    mode: Mode,
) -> Result<ShardPlan> {
    let mut walk = Walk {
        env,
        folder,
        reflected,
        mode,
        proven: reflected.durable_lsn,
        tails: VecDeque::new(),
        complete: reflected.replay_lsn,
        last_kind: None,
        plan: ShardPlan::default(),
    };
    let holding: Vec<usize> =
        (0..folder.files.len()).filter(|i| folder.files[*i].first_lsn.is_some()).collect();
    let first = |i: usize| folder.files[i].first_lsn.unwrap_or(0);
    for pair in holding.windows(2) {
        walk.proven = walk.proven.max(first(pair[1]) - 1);
    }
    // A file whose Start is not there holds nothing, but its groups know what was durable.
    walk.proven = folder.files.iter().map(|f| f.synced_lsn).fold(walk.proven, u64::max);
    let mut reached = None;
    for (n, &i) in holding.iter().enumerate() {
        let next = holding.get(n + 1).map(|&j| first(j));
        if next.is_some_and(|s| s <= reflected.replay_lsn + 1) {
            continue;
        }
        let expected = *reached.get_or_insert(reflected.replay_lsn + 1);
        let begins = first(i) <= expected;
        if !env.check("recovery.chain", begins) {
            return Err(StorageError::Missing {
                what: format!(
                    "wal/shard-{:02}: the file with lsn {expected} (the next one begins at {})",
                    folder.shard,
                    first(i)
                ),
            });
        }
        walk.file(i, first(i), next)?;
        reached = next;
    }
    walk.finish()
}

struct Walk<'a> {
    env: &'a Env,
    folder: &'a Folder,
    reflected: Reflected,
    mode: Mode,
    proven: u64,
    tails: VecDeque<Tail>,
    /// The last lsn that does not leave a batch unfinished.
    complete: u64,
    last_kind: Option<FrameType>,
    plan: ShardPlan,
}

impl ShardPlan {
    /// The plan of a shard that has no log yet.
    pub fn first(last_lsn: u64) -> Self {
        Self { start_lsn: last_lsn + 1, end_lsn: last_lsn, clean: true, ..Self::default() }
    }
}

impl Walk<'_> {
    /// Walks one file until the lsn at which its successor begins, or to its end.
    fn file(&mut self, index: usize, first_lsn: u64, until: Option<u64>) -> Result<()> {
        let log = &self.folder.files[index];
        let shown = self.folder.shown(log);
        let mut scan = Scan::new(self.env, log.file.clone(), &log.header, &shown, first_lsn)?;
        loop {
            let at = self.frames(index, &mut scan, until)?;
            if until.is_some_and(|u| at.lsn >= u) {
                return Ok(());
            }
            let resume = scan::find_group(&log.file, &log.header, &shown, at.offset, at.lsn)?;
            let resume = resume.filter(|g| until.is_none_or(|u| g.lsn < u));
            let named = resume.as_ref().map_or(0, |g| g.synced_lsn_max);
            let known = self.proven.max(named);
            if until.is_none() && !self.damage(at.lsn, known) {
                return Ok(());
            }
            let to = match (&resume, until) {
                (Some(g), _) => g.lsn - 1,
                (None, Some(u)) => u - 1,
                (None, None) => known,
            };
            self.give_up(index, &at, to)?;
            self.complete = to;
            match resume {
                Some(g) => scan.seek(g.offset, g.lsn),
                None => return Ok(()),
            }
        }
    }

    /// Not a torn tail: something durable is at or above this lsn.
    fn damage(&self, lsn: u64, known: u64) -> bool {
        !self.env.check("recovery.torn", lsn > known)
    }

    /// Reads valid frames; returns where they stop.
    fn frames(&mut self, index: usize, scan: &mut Scan, until: Option<u64>) -> Result<Stop> {
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
                let end = f.lsn + u64::from(group.frames);
                self.tails.push_back(Tail { lsn: f.lsn, offset: f.offset, end });
                while self.tails.front().is_some_and(|t| t.end <= self.proven) {
                    self.tails.pop_front();
                }
            }
            if !f.frame.flags.batch_more() {
                self.complete = f.lsn;
            }
        };
        self.plan.extents.extend(extent.filter(|e| e.last_lsn > self.reflected.replay_lsn));
        Ok(stop)
    }

    /// Frames at or above the lsn that the next file's Start names are void.
    fn void(&self) -> bool {
        !self.env.check("recovery.void", false)
    }

    fn give_up(&mut self, index: usize, at: &Stop, to: u64) -> Result<()> {
        let file = self.folder.shown(&self.folder.files[index]);
        // A batch that the damage touches is dropped whole: what of it precedes the damage too.
        let from_lsn = self.complete + 1;
        let known = self.folder.given_up(self.env, index, (from_lsn, to))?;
        if self.mode == Mode::Strict && !known {
            return Err(StorageError::Corrupt {
                file,
                offset: at.offset,
                detail: format!(
                    "invalid frame at lsn {} ({}), but what follows was durable: run `topics repair` to \
                     see what would be given up (lsn {} to {to})",
                    at.lsn, at.why, at.lsn
                ),
            });
        }
        if let Some(e) = self.plan.extents.last_mut() {
            e.last_lsn = e.last_lsn.min(self.complete);
        }
        self.plan.losses.push(Loss {
            shard: self.folder.shard,
            file,
            offset: at.offset,
            from_lsn,
            to_lsn: to,
            announced: known,
        });
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
        let file = self.plan.extents.last().map(|e| e.file);
        self.plan.copied = match (self.tails.front(), file) {
            (Some(t), Some(file)) => {
                Some(Extent { file, offset: t.offset, first_lsn: t.lsn, last_lsn: end })
            }
            _ => None,
        };
        self.plan.extents.retain_mut(|e| {
            e.last_lsn = e.last_lsn.min(start - 1);
            e.first_lsn <= e.last_lsn && e.last_lsn > self.reflected.replay_lsn
        });
        Ok(self.plan)
    }
}
