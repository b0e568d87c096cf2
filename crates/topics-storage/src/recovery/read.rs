//! Reading the shards of a directory: which must be there, and what of each is kept.

use super::decide::decide;
use super::folder::Folder;
use super::shard_plan::{NoObserver, Reflected};
use super::{Mode, Opening, Shard, quarantine, survey, tail_proof};
use crate::dir::{list_dir, show};
use crate::snapshot::{self, SnapshotBody};
use crate::{Result, StorageError};

impl Opening {
    pub(super) fn read_shards(&mut self, mode: Mode) -> Result<()> {
        let mut found: Vec<(Folder, Reflected)> = Vec::new();
        let (env, paths) = (self.env.clone(), self.paths.clone());
        let (boot, read_only) = (self.boot, self.read_only || env.is_read_only());
        let mut proof = tail_proof::TailProof { env, paths, boot, read_only, fs_synced: None };
        for wanted in survey::shards(&self.env, &self.paths, self.snapshot())? {
            if self.retire(wanted.shard)? {
                continue;
            }
            let (env, paths) = (&self.env, &self.paths);
            let (shard, known) = (wanted.shard, wanted.known);
            let folder = Folder::read(env, paths, shard, &self.store.id, known, mode)?;
            found.extend(folder.map(|f| (f, wanted.reflected)));
        }
        if mode == Mode::Salvage {
            self.find_lost_shards(&mut found)?;
        }
        for (folder, reflected) in found {
            let (env, paths) = (&self.env, &self.paths);
            // Before the scan: pages that a failed write-back dropped must not be read first.
            let tail_intact = proof.is_intact(&folder);
            let plan = decide(env, &folder, reflected, mode, &mut NoObserver);
            let plan = plan.map_err(|e| self.root_cause(e))?;
            let quarantined = match mode {
                _ if self.read_only => Vec::new(),
                Mode::Strict => Vec::new(),
                Mode::Salvage => quarantine::quarantine_losses(env, paths, &folder, &plan),
            };
            let keys = folder.files.iter().map(|_| self.key()).collect();
            let (new, next) = (None, None);
            let (begin_later, begin) = (None, None);
            self.shards.push(Shard {
                folder,
                plan,
                tail_intact,
                keys,
                quarantined,
                new,
                begin_later,
                begin,
                next,
            });
        }
        self.check_topics_known()?;
        if mode == Mode::Strict {
            let folders: Vec<&Folder> = self.shards.iter().map(|s| &s.folder).collect();
            if let Some(shard) = survey::missing_shards(&self.env, &folders)?.first() {
                return Err(survey::no_current(*shard));
            }
        }
        Ok(())
    }

    /// Counts the shards that lack the newest layout's file as lost.
    fn find_lost_shards(&self, found: &mut Vec<(Folder, Reflected)>) -> Result<()> {
        let folders: Vec<&Folder> = found.iter().map(|(f, _)| f).collect();
        for shard in survey::missing_shards(&self.env, &folders)? {
            match found.iter_mut().find(|(f, _)| f.shard == shard) {
                Some((folder, _)) => {
                    folder.lost_end.get_or_insert_with(|| survey::no_current(shard));
                }
                None => {
                    let reflected = survey::reflected(self.snapshot(), shard);
                    found.push((Folder::lost(shard, "CURRENT"), reflected));
                }
            }
        }
        found.sort_by_key(|(f, _)| f.shard);
        Ok(())
    }

    /// Fails if neither a snapshot nor a log tells which topics exist: the open would serve an empty
    /// directory and remove the segments of the topics.
    fn check_topics_known(&self) -> Result<()> {
        let logged = self.shards.iter().any(|s| !s.plan.file_ranges.is_empty());
        if logged || self.loaded.newest.is_some() {
            return Ok(());
        }
        let topics = self.paths.topics();
        let there = !list_dir(&self.env, &topics)?.is_empty();
        let lost = self.shards.iter().any(|s| !s.plan.losses.is_empty());
        if !there && !lost && self.loaded.numbers.is_empty() {
            return Ok(());
        }
        Err(self.root_cause(StorageError::Missing { what: show(&self.paths.wal()) }))
    }

    /// Replaces "a file is missing" by the damage of the snapshot if no snapshot is valid: a trimmed log
    /// depends on it, and the lost range cannot be told without it.
    fn root_cause(&self, e: StorageError) -> StorageError {
        let StorageError::Missing { what } = &e else { return e };
        if self.loaded.newest.is_some() {
            return e;
        }
        let (file, offset, why) = match self.loaded.rejected.first() {
            Some((_, StorageError::Corrupt { file, offset, detail })) => (file, *offset, &**detail),
            _ => (what, 0, "it is missing"),
        };
        let detail = format!(
            "{why}; no valid snapshot is left, and without {what} the topics are unknown: restore a \
             backup, or move the directory away and start with an empty one"
        );
        StorageError::corrupt(file.clone(), offset, detail)
    }

    /// Removes the folder of a shard that both kept snapshots no longer need. The removal need not be
    /// durable: later snapshots still name the shard ([`super::Opened::outside`]), so that a folder
    /// that a crash brings back, in part or whole, is removed again.
    fn retire(&mut self, shard: u32) -> Result<bool> {
        let done = |b: &SnapshotBody| survey::is_done(b, shard);
        let (env, paths) = (&self.env, &self.paths);
        // A third snapshot is one whose removal a crash undid.
        let (true, [newest, older, ..]) =
            (self.snapshot().is_some_and(done), &self.loaded.numbers[..])
        else {
            return Ok(false);
        };
        let load = |n: &u64| snapshot::load(env, paths, *n, self.store.id);
        let (Ok(newest), Ok(older)) = (load(newest), load(older)) else { return Ok(false) };
        if !survey::may_go(env, paths, [&newest.body, &older.body], shard)? {
            return Ok(false);
        }
        let dir = paths.shard(shard);
        let io = |e| StorageError::io(format!("remove {}", dir.display()), e);
        if !self.read_only && env.fs.exists(&dir).map_err(io)? {
            for e in list_dir(env, &dir)? {
                env.fs.remove_file(&dir.join(e.name)).map_err(io)?;
            }
            env.fs.remove_dir(&dir).map_err(io)?;
        }
        Ok(true)
    }
}
