//! The logs, by the rules that an open goes by: damage or torn tail, which shards must be there.

use super::Check;
use crate::dir::show;
use crate::format::frame::FrameType;
use crate::format::record::{Body, CheckpointMark};
use crate::format::wal_file::WAL_HEADER;
use crate::recovery::decide::{UNKNOWN_EXTENT, decide};
use crate::recovery::folder::Folder;
use crate::recovery::shard_plan::ScanObserver;
use crate::recovery::survey::{self, Wanted};
use crate::recovery::{Loss, Mode};
use crate::snapshot::SnapshotBody;
use crate::wal::scan::ScannedFrame;
use crate::{Result, StorageError};

/// What the frames of the logs say beside being whole.
#[derive(Default)]
struct LogObserver {
    frames: u64,
    /// The highest snapshot of which the logs say that it took effect.
    mark: u64,
}

impl ScanObserver for LogObserver {
    fn frame(&mut self, _file: usize, f: &ScannedFrame<'_>) {
        self.frames += 1;
        if f.frame.kind == FrameType::CheckpointMark
            && let Ok(mark) = CheckpointMark::decode(&f.frame)
        {
            self.mark = self.mark.max(mark.snapshot);
        }
    }
}

impl Check<'_> {
    pub(super) fn logs(&mut self, kept: &[(u64, SnapshotBody)]) -> Result<()> {
        let (mut folders, mut seen) = (Vec::new(), LogObserver::default());
        let newest = kept.first();
        for wanted in survey::shards(self.env, self.paths, newest.map(|(_, body)| body))? {
            if let [(_, newest), (_, older)] = kept
                && survey::may_go(self.env, self.paths, [newest, older], wanted.shard)?
            {
                continue;
            }
            let outcome = self.log(wanted, &mut seen).map(|f| folders.extend(f));
            self.record(&self.paths.shard(wanted.shard), outcome)?;
        }
        self.report.records += seen.frames;
        let there = newest.map_or(0, |(n, _)| *n);
        let named = self.report.problems.iter().any(|p| p.file.contains("snapshot."));
        if seen.mark > there && !named {
            let file = show(&self.paths.snapshot(seen.mark));
            self.add_problem(file, 0, "the log says that it took effect, and it is missing".into());
        }
        let folders: Vec<&Folder> = folders.iter().collect();
        for shard in survey::missing_shards(self.env, &folders)? {
            // What is lost of the others is found above.
            let told = |f: &Folder| f.lost_end.is_some() || !f.unreadable.is_empty();
            if !folders.iter().any(|f| f.shard == shard && told(f)) {
                self.record(&self.paths.wal(), Err(survey::no_current(shard)))?;
            }
        }
        Ok(())
    }

    fn log(&mut self, wanted: Wanted, seen: &mut LogObserver) -> Result<Option<Folder>> {
        let (env, paths) = (self.env, self.paths);
        let read = |mode| Folder::read(env, paths, wanted.shard, &self.id, wanted.known, mode);
        let folder = match read(Mode::Strict) {
            // `salvage` finds its way without it.
            Err(e @ (StorageError::Corrupt { .. } | StorageError::Missing { .. })) => {
                let folder = read(Mode::Salvage)?;
                self.record(&paths.shard(wanted.shard), Err(e))?;
                folder
            }
            other => other?,
        };
        let Some(folder) = folder else { return Ok(None) };
        let dir = paths.shard(wanted.shard);
        for name in folder.files.iter().map(|f| &f.name) {
            self.count(&dir.join(name))?;
        }
        for file in &folder.unreadable {
            self.count(&dir.join(&file.name))?;
            self.record(&dir, Err(file.error.clone()))?;
        }
        let plan = decide(env, &folder, wanted.reflected, Mode::Salvage, seen)?;
        for file_range in plan.file_ranges.iter().filter(|l| l.lost_start) {
            let file = folder.shown(&folder.files[file_range.file]);
            self.add_problem(file, WAL_HEADER as u64, "the Start frame is damaged".into());
        }
        // Of a file that cannot be read, or is missing: reported above.
        let is_unknown = |l: &Loss| l.to_lsn + 1 - l.from_lsn >= UNKNOWN_EXTENT;
        let is_reported = |l: &Loss| {
            folder.unreadable.iter().any(|u| l.file.ends_with(&u.name))
                || (is_unknown(l) && folder.lost_end.is_some())
        };
        for loss in plan.fresh().filter(|l| !is_reported(l)) {
            let Loss { file, offset, from_lsn, to_lsn, .. } = loss;
            let detail = if is_unknown(loss) {
                format!(
                    "no file of the shard begins with a Start frame: lost from lsn {from_lsn} on"
                )
            } else {
                format!(
                    "invalid frames, lsn {from_lsn} to {to_lsn}, though what follows was durable"
                )
            };
            self.add_problem(file.clone(), *offset, detail);
        }
        for Loss { file, offset, .. } in &plan.passed {
            let detail = "invalid frames; the snapshot has what they say".into();
            self.add_problem(file.clone(), *offset, detail);
        }
        Ok(Some(folder))
    }
}
