//! The first file of the new generation in every shard, and the space that a full disk has for it.

use std::path::Path;

use topics_env::OpenMode;

use super::copy::{self, NewFile};
use super::folder::Folder;
use super::shard_plan::ShardPlan;
use super::{Opening, Shard, survey};
use crate::checkpoint::Checkpoints;
use crate::dir::{create_dir, reserve};
use crate::format::wal_file::{WAL_HEADER, WalFileHeader};
use crate::segment::{SegmentOptions, Segments};
use crate::{Result, StorageError};

impl Opening {
    /// Creates the first file of the new generation for every shard of the layout on disk.
    pub(super) fn copy_tails(&mut self) -> Result<()> {
        let (layout, shards) = self.layout;
        self.add_shards(shards)?;
        for i in 0..self.shards.len() {
            let shard = &self.shards[i];
            let id = shard.folder.shard;
            // A shard outside the layout is only read, unless new damage must be logged.
            let (layout, shards) = match shard.folder.files.last() {
                _ if id < shards => (layout, shards),
                Some(last) if shard.plan.fresh().next().is_some() => {
                    (last.header.layout, last.header.shards)
                }
                _ => continue,
            };
            let key = self.key();
            let shard = &self.shards[i];
            let header = self.header(id, shards, layout);
            let (folder, plan) = (&shard.folder, &shard.plan);
            let (env, paths, options) = (&self.env, &self.paths, &self.options);
            let begin = || NewFile::begin(env, paths, options, header.clone(), folder, plan);
            let new = match self.has_space_to_copy(i).then(begin) {
                None | Some(Err(StorageError::Full { .. })) => self.begin_on_full_disk(i, &header),
                Some(other) => other,
            };
            match new {
                Ok(new) => self.shards[i].new = Some((key, new)),
                Err(StorageError::Full { detail }) if self.can_begin_later(i) => {
                    log::warn!("shard {id} is opened for reads: {detail}");
                    self.shards[i].begin_later = Some(header);
                }
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Whether the disk has space for a copy of the shard's tail and for the rest of the open.
    fn has_space_to_copy(&self, i: usize) -> bool {
        let Shard { folder, plan, .. } = &self.shards[i];
        let copied = plan.copied.map_or(0, |extent| {
            let end = match &plan.tail {
                Some((file, stop)) if *file == extent.file => stop.offset,
                _ => folder.files[extent.file].file.len().unwrap_or(0),
            };
            end.saturating_sub(extent.offset)
        });
        if copied == 0 {
            return true;
        }
        // If the free space is unknown, the copy finds out.
        let free = self.env.fs.free_space(self.paths.root()).unwrap_or(u64::MAX);
        free >= copied + self.options.file_initial + reserve::SLACK
    }

    /// Creates a shard's file when the disk has no space for a copy of its tail: makes the tail durable
    /// in place and starts the file behind it.
    fn begin_on_full_disk(&mut self, i: usize, header: &WalFileHeader) -> Result<NewFile> {
        self.release_space();
        let shard = &mut self.shards[i];
        if let Some(extent) = shard.plan.copied {
            copy::rewrite(&self.env, &self.paths, &shard.folder, extent)?;
            shard.plan.keep_in_place();
        }
        let (folder, plan) = (&shard.folder, &shard.plan);
        let (env, paths, options) = (&self.env, &self.paths, &self.options);
        NewFile::begin_from_reserve(env, paths, options, header.clone(), folder, plan)
    }

    /// Whether the open can leave the first file of a shard to the live log: nothing was copied into it,
    /// no new damage must be logged, and the layout stays.
    pub(super) fn can_begin_later(&self, i: usize) -> bool {
        let Shard { folder, plan, .. } = &self.shards[i];
        let damaged = plan.fresh().next().is_some() || folder.lost_end.is_some();
        let known = !folder.files.is_empty() && self.layout.1 == self.options.shards;
        known && plan.copied.is_none() && !damaged
    }

    /// Frees unneeded space: prepared files without frames, files of an unfinished preparation, the
    /// preallocation behind the end of the log, and segments of an unfinished checkpoint, for which
    /// the reserve may have been released. Log files are cut to their headers and keep their names,
    /// because `CURRENT` names one of them and no name is used twice.
    fn release_space(&self) {
        let header = WAL_HEADER as u64;
        for Shard { folder, plan, .. } in &self.shards {
            let holds = |i: usize| plan.file_ranges.iter().any(|l| l.file == i);
            let files = folder.files.iter().enumerate();
            let unused = files.filter(|(i, log)| !holds(*i) && log.found.is_none());
            let unused = unused.map(|(_, log)| (&log.name, header));
            let orphans = folder.orphans.iter().map(|name| (name, header));
            let last = plan.tail.as_ref().map(|(i, stop)| (&folder.files[*i].name, stop.offset));
            for (name, len) in unused.chain(orphans).chain(last) {
                let path = self.paths.shard(folder.shard).join(name);
                if let Err(e) = self.truncate(&path, len) {
                    log::warn!("{} cannot be truncated: {e}", path.display());
                }
            }
        }
        if let Err(e) = self.sweep_segments() {
            log::warn!("the files of an unfinished checkpoint are not removed: {e}");
        }
    }

    /// Truncates a file that is longer than `len`.
    fn truncate(&self, path: &Path, len: u64) -> std::io::Result<()> {
        let file = self.env.fs.open(path, OpenMode::Write)?;
        if file.len()? > len { file.set_len(len) } else { Ok(()) }
    }

    /// Removes segment files that no kept snapshot names, unless a newer snapshot is invalid: that one
    /// may be repaired and name them. The open itself creates segment files only later, in the replay.
    fn sweep_segments(&self) -> Result<()> {
        if !self.loaded.rejected.is_empty() {
            return Ok(());
        }
        let (env, paths, id) = (&self.env, &self.paths, self.store.id);
        let options = SegmentOptions::default();
        let segments = Segments::new(env.clone(), paths.clone(), id, self.generation, options);
        let checkpoints = Checkpoints::new(env.clone(), paths.clone(), id, segments, &self.loaded);
        checkpoints.sweep().map(drop)
    }

    /// Makes sure that shards `0..shards` have a folder.
    pub(super) fn add_shards(&mut self, shards: u32) -> Result<()> {
        for id in 0..shards {
            let known = self.shards.iter().find(|s| s.folder.shard == id);
            if known.is_some_and(|s| s.folder.lost_end.is_none()) {
                continue;
            }
            create_dir(&self.env, "dir.shard", &self.paths.shard(id))?;
            if known.is_some() {
                continue;
            }
            let last = survey::snap_of(self.snapshot(), id).map_or(0, |s| s.last_lsn);
            self.shards.push(Shard {
                folder: Folder::empty(id),
                plan: ShardPlan::first(last),
                tail_intact: false,
                keys: Vec::new(),
                quarantined: Vec::new(),
                new: None,
                begin_later: None,
                begin: None,
                next: None,
            });
        }
        self.shards.sort_by_key(|s| s.folder.shard);
        Ok(())
    }
}
