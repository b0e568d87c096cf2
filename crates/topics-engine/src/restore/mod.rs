//! Restores a data directory from a prefix.
//!
//! | module | purpose |
//! |---|---|
//! | `log` | the rounds, as log files |
//! | `segments` | the files of the segments that the snapshot names |
//!
//! The new directory is what a power cut at the time of the last round would have left of the one that
//! shipped it, so that an ordinary open recovers it. `meta/STORE` is written last: without it an open
//! refuses the directory. `meta/LINEAGE` is written first: it makes the first open skip seqs that the
//! other directory may have given to records.

mod log;
mod segments;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_remote::Retry;
use topics_remote::format::base::Place;
use topics_remote::history::{self, RestoreBase};
use topics_remote::read;
use topics_storage::StorageError;
use topics_storage::dir::{Lineage, Paths, Store, create_dir, list_dir, make_root, write_file};
use topics_storage::format::wal_file;
use topics_storage::snapshot::encode;

use self::log::LogFiles;
use crate::ship::owner::remote_error;
use crate::tier;
use crate::types::error::{Error, Result};

/// What to restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreRequest {
    /// The state at this time, ms since the Unix epoch; `None`: the newest one.
    pub at_ms: Option<u64>,
}

/// What was restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Restored {
    /// The time of the state, ms since the Unix epoch.
    pub state_ms: u64,
    /// The time of the newest state that is known to be in the prefix.
    pub newest_ms: u64,
    /// Whether the prefix holds rounds or bases of a later time.
    pub has_later: bool,
    /// Whether records may have been acked after the state, so that each topic skips seqs.
    pub skips: bool,
    /// Topics of the state.
    pub topics: u64,
    /// Rounds that were applied.
    pub rounds: u64,
    /// Bytes of log files.
    pub log_bytes: u64,
    /// Bytes of segments.
    pub segment_bytes: u64,
    /// Segments that the backup lacks because they were damaged; their seqs are gaps.
    pub missing_segments: u64,
}

/// A restore in progress.
struct Restore<'a> {
    env: &'a Env,
    paths: Paths,
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    base: RestoreBase,
}

/// Restores into a directory that is missing or empty.
pub fn restore(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    dir: &Path,
    request: &RestoreRequest,
) -> Result<Restored> {
    let paths = Paths::new(dir);
    make_root(env, &paths)?;
    if !list_dir(env, dir)?.is_empty() {
        let text = format!(
            "{} is not empty: restore into a new directory, or remove what is in it",
            dir.display()
        );
        return Err(Error::InvalidRequest(text));
    }
    let base = history::base(&*store, retry, request.at_ms).map_err(remote_error)?;
    let run = Restore { env, paths, store, retry: retry.clone(), base };
    run.run(request)
}

impl Restore<'_> {
    fn run(&self, request: &RestoreRequest) -> Result<Restored> {
        let (env, paths, base) = (self.env, &self.paths, &self.base.base);
        let snapshot = read::snapshot(env, &self.base.object.key, base).map_err(remote_error)?;
        let n = u64::from_le_bytes(base.snapshot[8..16].try_into().unwrap_or_default());
        let mut body = snapshot.whole()?;
        // Until the log is restored, whether anything lies beyond it is unknown.
        create_dir(env, "dir.names", &paths.meta())?;
        Lineage::ORIGIN_WENT_ON.write(env, paths)?;
        for dir in [paths.wal(), paths.topics(), paths.txn()] {
            create_dir(env, "dir.names", &dir)?;
        }
        let log = LogFiles::restore(self, &body, request.at_ms)?;
        let mut out = Restored {
            state_ms: log.cut_ms,
            newest_ms: self.base.newest_ms.max(log.newest_ms),
            has_later: log.has_later || self.base.newest_ms > log.cut_ms,
            topics: log.topic_count(),
            rounds: log.rounds,
            log_bytes: log.bytes,
            ..Restored::default()
        };
        self.stages(&log)?;
        self.segments(&mut body, &mut out)?;
        body.sections.retain(|s| s.kind != tier::SECTION);
        // The log may say that a later snapshot took effect, which the restored directory does not have.
        let n = n.max(log.last_snapshot);
        let snapshot = encode(n, &body)?;
        write_file(env, "restore.file", &paths.snapshot(n), &snapshot)?;
        env.sync_dir("restore.dir", &paths.meta()).map_err(|e| StorageError::io("restore", e))?;
        out.skips = out.has_later || log.is_open_ended(&self.base);
        if !out.skips {
            Lineage::NO_SKIP.write(env, paths)?;
        }
        Store::create(env, paths, base.header.store_id)?;
        Ok(out)
    }

    /// The files of staged rows that decisions without an end need.
    fn stages(&self, log: &LogFiles) -> Result<()> {
        let rows = &self.base.base.rows;
        let named = rows.iter().filter_map(|r| Some((&r.name, self.base.base.place(&r.at)?)));
        let mut places: BTreeMap<&String, Place> = named.collect();
        places.extend(log.rows.iter().map(|(name, place)| (name, *place)));
        for name in log.open_stages() {
            let Some(place) = places.get(&name) else {
                let what = format!("the staged rows {name} in the backup");
                return Err(StorageError::Missing { what }.into());
            };
            let found = read::place(&*self.store, &self.retry, place).map_err(remote_error)?;
            let path = self.paths.txn().join(&name);
            write_file(self.env, "restore.file", &path, &found)?;
        }
        self.env
            .sync_dir("restore.dir", &self.paths.txn())
            .map_err(|e| StorageError::io("restore", e).into())
    }
}

/// The name of a shard's log file, from its header.
fn name_of(header: &wal_file::WalFileHeader) -> String {
    wal_file::name(header.generation, header.ordinal)
}
