//! What a scan of a shard's log declares lost, and the error that is the cause.

use super::decide::{LogScan, UNKNOWN_EXTENT};
use super::file_ranges::{FIRST, FileRange, is_declared_lost};
use super::{Loss, Mode};
use crate::wal::scan::ScanEnd;
use crate::{Result, StorageError};

impl LogScan<'_> {
    /// Declares the end of the log lost: its newest part is missing or unreadable, and its extent is
    /// unknown.
    pub(super) fn lost_end(&mut self, why: &StorageError) {
        let (file, offset) = match why {
            StorageError::Corrupt { file, offset, .. } => (file.clone(), *offset),
            StorageError::Missing { what } => (what.clone(), 0),
            e => (e.to_string(), 0),
        };
        let from_lsn = self.complete.max(self.reflected.replay_lsn) + 1;
        let to_lsn = from_lsn + UNKNOWN_EXTENT - 1;
        let shard = self.folder.shard;
        let before = self.plan.file_ranges.last().map(|l| self.folder.files[l.file].header.layout);
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

    /// Marks everything up to `lsn` as proven: a durable frame behind damage proves those before it.
    fn no_copy_below(&mut self, lsn: u64) {
        self.proven = self.proven.max(lsn);
        self.tails.clear();
    }

    /// The first of these files that ends before its first frame. A prepared file is longer, so such a
    /// file was cut.
    pub(super) fn cut_short(&self, from: usize, to: usize) -> Result<Option<StorageError>> {
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

    /// The error of the unreadable file between file range `n` and the next one, if the log breaks off there.
    fn root_cause(&self, n: usize, until: Option<u64>) -> Result<Option<StorageError>> {
        let Some(file_range) = self.plan.file_ranges.get(n) else { return Ok(None) };
        let next = self.plan.file_ranges.get(n + 1).filter(|l| until == Some(l.first));
        let Some(next) = next else { return Ok(None) };
        let mut unreadable = self.folder.unreadable.iter();
        if let Some(u) = unreadable.find(|u| u.at > file_range.file && u.at <= next.file) {
            return Ok(Some(u.error.clone()));
        }
        if next.lost_start {
            return Ok(Some(self.no_start(next)));
        }
        self.cut_short(file_range.file + 1, next.file)
    }

    /// The first and the last layout in which the frames of a lost range may have been logged.
    fn layouts_of(
        &self,
        (n, file_range): (usize, &FileRange),
        at: &ScanEnd,
        to: u64,
    ) -> (u64, u64) {
        let layout = |l: &FileRange| self.folder.files[l.file].header.layout;
        let next = self.plan.file_ranges.get(n + 1).filter(|l| l.first <= to + 1);
        // No file precedes the first one.
        let first = if at.lsn < file_range.first { 0 } else { layout(file_range) };
        (first, next.map_or(layout(file_range), layout))
    }

    /// Declares the lsns up to `to` lost. A damaged batch is dropped whole, including its frames before
    /// the damage. `bytes` is the range of the lost frames in the file.
    pub(super) fn declare_lost(
        &mut self,
        (n, file_range): (usize, &FileRange),
        at: &ScanEnd,
        to: u64,
        bytes: (u64, u64),
        error: Option<StorageError>,
    ) -> Result<()> {
        let range = (self.complete.max(self.reflected.replay_lsn) + 1, to);
        let mut loss = Loss {
            shard: self.folder.shard,
            layouts: self.layouts_of((n, file_range), at, to),
            file: self.folder.shown(&self.folder.files[file_range.file]),
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
        let later = self.plan.file_ranges.get(n..).unwrap_or_default();
        loss.announced = is_declared_lost(self.env, self.folder, later, range)?;
        let reached_end = file_range.until == Some(to + 1);
        let root_cause = if reached_end { self.root_cause(n, file_range.until)? } else { None };
        let root_cause = error.or(root_cause);
        if self.mode == Mode::Strict && !loss.announced {
            return Err(root_cause.unwrap_or_else(|| StorageError::Corrupt {
                file: loss.file,
                offset: at.offset,
                detail: format!(
                    "invalid frame at lsn {} ({}), but what follows was durable: run `topics repair` to \
                     see what would be lost (lsn {} to {to})",
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
}
