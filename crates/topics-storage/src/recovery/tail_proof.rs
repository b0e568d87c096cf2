//! Proves that the end of a log that was not closed is whole.
//!
//! On the boot and the mount that wrote the log, every write that returned is in the page cache and
//! can be read, unless its write-back failed and the kernel dropped the page. The kernel reports that
//! once, at the next sync of the file: either to the process that wrote it, which then recorded it in
//! `HEALTH`, or to the sync here.

use std::io;

use topics_env::Env;

use super::folder::{Folder, folder_name};
use crate::dir::Paths;
use crate::format::health::{HEALTH, Health, HealthFile};

/// Determines which logs are whole, for one open.
pub(crate) struct TailProof {
    pub env: Env,
    pub paths: Paths,
    /// The boot and the mount.
    pub boot: ([u8; 16], u64),
    /// Nothing is changed, and `HEALTH` is believed.
    pub read_only: bool,
    /// Whether the sync of the file system succeeded. It reports an error once, for any shard.
    pub fs_synced: Option<bool>,
}

impl TailProof {
    /// Whether every write to the shard's log that returned is there. A `HEALTH` that is missing,
    /// damaged, of another generation or not writable counts as a failed sync.
    pub fn is_intact(&mut self, folder: &Folder) -> bool {
        let Some(last) = folder.files.last() else { return false };
        let (env, header) = (&self.env, &last.header);
        let same_boot = (header.boot_id, header.mount_id) == self.boot;
        if !env.check("recovery.tail.boot", same_boot) {
            return false;
        }
        let (dir, shown) = (self.paths.shard(folder.shard), folder_name(folder.shard, HEALTH));
        let health = HealthFile::find(env, &dir, header).unwrap_or_else(|e| {
            log::warn!("{shown} cannot be read, so that the end of the log is not trusted: {e}");
            None
        });
        let state = health.as_ref().map(|(_, health)| *health);
        let possible = matches!(state, Some(Health::Running | Health::Checking));
        if !env.check("recovery.tail.health", possible) {
            return false;
        }
        // The kernel reports an error once, and only an open that can act on it may take it. A
        // reader sees the page cache, as readers of a running engine do.
        if self.read_only {
            return true;
        }
        let outcome = self.sync(folder, health);
        if let Err(e) = &outcome {
            log::warn!(
                "{shown}: the end of the log is not trusted, its files were not synced: {e}"
            );
        }
        self.env.check("recovery.tail.sync", outcome.is_ok())
    }

    /// Syncs every file that may hold unsynced writes, to collect their errors, each of which is
    /// reported once. Meanwhile `HEALTH` says `checking`: if this open dies after it got an error, the
    /// files report none again, but the file system keeps an error of its own, and the next open syncs
    /// that. It sets `suspect` first, because after its death no error would be left.
    fn sync(&mut self, folder: &Folder, health: Option<(HealthFile, Health)>) -> io::Result<()> {
        let again = health.as_ref().is_some_and(|(_, h)| *h == Health::Checking);
        let health = health.map(|(file, _)| file);
        let say = |what| health.as_ref().map_or(Ok(()), |h| h.set(what));
        let mut outcome = say(if again { Health::Suspect } else { Health::Checking });
        // A rotation syncs the old file, so only files from the last one with a Start can be unsynced.
        let begun = folder.files.iter().rposition(|f| f.first_lsn.is_some()).unwrap_or(0);
        for log in &folder.files[begun..] {
            // This open opened the descriptor, so it gets every error that was not reported yet.
            outcome = log.file.sync_data().and(outcome);
        }
        outcome = health.as_ref().map_or(Ok(()), HealthFile::check).and(outcome);
        if again {
            let sync_fs = || self.env.fs.sync_fs(self.paths.root()).is_ok();
            if !*self.fs_synced.get_or_insert_with(sync_fs) {
                outcome = Err(io::Error::other("the file system reports an error"));
            }
        }
        let known = if outcome.is_ok() { Health::Running } else { Health::Suspect };
        say(known).and(outcome)
    }
}
