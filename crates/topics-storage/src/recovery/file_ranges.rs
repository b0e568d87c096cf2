//! Determines which files of a shard's folder form its log, and where each of them ends.

use super::folder::Folder;
use crate::Result;
use crate::format::frame::FrameType;
use crate::format::record::{Gap, Start};
use crate::format::wal_file::WAL_HEADER;
use crate::wal::scan::{self, Scan};
use topics_env::Env;

/// Offset of the first frame after a Start.
pub(crate) const FIRST: u64 = (WAL_HEADER + Start::FRAME_LEN) as u64;

/// A file that holds frames of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileRange {
    /// Index in [`Folder::files`].
    pub file: usize,
    /// The lsn of its first frame.
    pub first: u64,
    pub offset: u64,
    /// Frames from this lsn on are void: a later file begins with it.
    pub until: Option<u64>,
    /// Its Start is damaged: the range begins at its first valid group.
    pub lost_start: bool,
}

/// The files that hold frames, in order. A valid Start voids all frames at or above its lsn in earlier
/// files. A file without a Start holds no frames, unless its groups are proven durable. `durable` is
/// the durable lsn of the snapshot.
pub(crate) fn file_ranges(folder: &Folder, durable: u64) -> Vec<FileRange> {
    let found = || folder.files.iter().filter_map(|f| f.found);
    let durable = found().map(|g| g.synced_lsn_max).fold(durable, u64::max);
    let no_start = folder.files.iter().all(|f| f.first_lsn.is_none());
    let mut out: Vec<FileRange> = Vec::new();
    for (file, log) in folder.files.iter().enumerate().rev() {
        let until = out.last().map(|l| l.first);
        let (first, offset) = match (log.first_lsn, log.found) {
            (Some(first), _) => (first, FIRST),
            (None, Some(g)) if no_start || durable >= g.lsn || until.is_some_and(|u| u > g.lsn) => {
                (g.lsn, g.offset)
            }
            _ => continue,
        };
        if until.is_none_or(|u| first < u) {
            out.push(FileRange { file, first, offset, until, lost_start: log.first_lsn.is_none() });
        }
    }
    out.reverse();
    out
}

/// Whether an earlier recovery declared all of these lsns lost, by a Gap frame in one of these files.
pub(crate) fn is_declared_lost(
    env: &Env,
    folder: &Folder,
    file_ranges: &[FileRange],
    range: (u64, u64),
) -> Result<bool> {
    for file_range in file_ranges {
        let log = &folder.files[file_range.file];
        let shown = folder.shown(log);
        let mut scan = Scan::new(env, log.file.clone(), &log.header, &shown, file_range.first)?;
        scan.seek(file_range.offset, file_range.first);
        loop {
            while file_range.until.is_none_or(|u| scan.next_lsn() < u)
                && let Some(f) = scan.next_frame()?
            {
                if f.frame.kind == FrameType::Gap
                    && Gap::of_lsns(&f.frame).is_some_and(|g| g.from <= range.0 && g.to >= range.1)
                {
                    return Ok(true);
                }
            }
            let stop = scan.stop();
            match scan::find_group(&log.file, &log.header, &shown, stop.offset, stop.lsn)? {
                Some(g) if file_range.until.is_none_or(|u| g.lsn < u) => scan.seek(g.offset, g.lsn),
                _ => break,
            }
        }
    }
    Ok(false)
}
