//! Makes a data directory of a prefix: a base, and the rounds after it.
//!
//! | form | segments in packs | and the prefix |
//! |---|---|---|
//! | [`Form::Adopt`] | cold: their records stay in the prefix | belongs to the new directory |
//! | [`Form::Copy`] | downloaded | stays as it is |
//! | [`Form::View`] | cold, those of queues too | stays as it is |
//! | [`Form::Sealed`] | cold; there are no other records, and no log | stays as it is |
//!
//! | module | purpose |
//! |---|---|
//! | `log` | the rounds, as log files |
//! | `segments` | the files of the segments that the snapshot names |
//!
//! The new directory is what a power cut at the time of the last round would have left of the one that
//! shipped it, so that an ordinary open recovers it. `meta/STORE` is written last: without it an open
//! refuses the directory. `meta/LINEAGE` is written first: it makes the first open skip seqs that the
//! other directory may have given to records. A prefix is adopted after its base was read and before its
//! rounds are: what the other directory ships after that is fenced, and never counts.

#[cfg(test)]
mod adopt_tests;
#[cfg(test)]
mod history_tests;
mod log;
#[cfg(test)]
mod sealed_tests;
mod segments;
#[cfg(test)]
pub(crate) mod tests;
#[cfg(test)]
mod view_tests;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;

use topics_env::Env;
use topics_env::objects::{ObjectError, ObjectStore};
use topics_remote::claim::{Claimant, DirectoryRecord, Refusal};
use topics_remote::format::base::Place;
use topics_remote::format::head::Head;
use topics_remote::format::keys;
use topics_remote::format::sealed::ObjectRef;
use topics_remote::history::{self, RestoreBase};
use topics_remote::writer::RemoteWriter;
use topics_remote::{RemoteError, Retry, read};
use topics_storage::StorageError;
use topics_storage::dir::{
    Lineage, Paths, RemoteRecord, Store, create_dir, list_dir, make_root, remove_tree, write_file,
};
use topics_storage::format::wal_file;
use topics_storage::snapshot::{SnapshotBody, encode};

use self::log::LogFiles;
use crate::ship::owner::{holder, remote_error};
use crate::tier::{self, PackTable, of_base};
use crate::types::error::{Error, Result};

/// What to restore.
#[derive(Clone, Debug, Default)]
pub struct RestoreRequest {
    /// Whether the directory is a copy that needs the prefix no more. Otherwise it goes on with the prefix,
    /// and the directory that wrote to it cannot any more.
    pub copy: bool,
    /// The state at this time, ms since the Unix epoch; `None`: the newest one. Only of a copy: a prefix goes
    /// on from its end.
    pub at_ms: Option<u64>,
}

/// What a directory is made for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// It goes on with the prefix.
    Adopt,
    /// It has nothing to do with the prefix any more.
    Copy,
    /// It is read, while the prefix has most records.
    View,
    /// It is read, and has only what a base names of sealed segments.
    Sealed,
}

/// The state that a directory gets.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Target {
    /// The newest one.
    Newest,
    /// The one at a time, ms since the Unix epoch.
    At(u64),
    /// That of a base.
    Base(ObjectRef),
}

impl Target {
    fn at(at_ms: Option<u64>) -> Self {
        at_ms.map_or(Self::Newest, Self::At)
    }

    fn at_ms(&self) -> Option<u64> {
        match self {
            Self::At(at_ms) => Some(*at_ms),
            Self::Newest | Self::Base(_) => None,
        }
    }
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
    /// Shards of the log.
    pub shards: u32,
    /// Topics of the state.
    pub topics: u64,
    /// Rounds that were applied.
    pub rounds: u64,
    /// Bytes of log files.
    pub log_bytes: u64,
    /// Bytes of segments.
    pub segment_bytes: u64,
    /// Bytes of segments that stay in the prefix.
    pub remote_bytes: u64,
    /// Segments that the backup lacks because they were damaged; their seqs are gaps.
    pub missing_segments: u64,
}

/// A restore in progress.
struct Restore<'a> {
    env: &'a Env,
    paths: Paths,
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    form: Form,
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
    let form = if request.copy { Form::Copy } else { Form::Adopt };
    if form == Form::Adopt && request.at_ms.is_some() {
        return Err(Error::InvalidRequest(
            "a prefix goes on from its end: restore an earlier state as a copy, with copy=True or \
             --copy"
                .into(),
        ));
    }
    hydrate(env, store, retry, dir, form, &Target::at(request.at_ms)).map(|(_, done)| done)
}

/// The state of a prefix that is being read.
#[derive(Debug)]
pub(crate) struct View {
    store: Arc<dyn ObjectStore>,
    retry: Retry,
    seen: Seen,
    base: ObjectRef,
    /// Shards of its log.
    pub shards: u32,
}

/// What shows that a prefix has a newer state than a view.
#[derive(Debug)]
enum Seen {
    /// Nothing: it is the state at a time, and stays that.
    Fixed,
    /// Another nonce of `HEAD`, or the round of this epoch and number.
    Round([u8; 16], u64, u64),
    /// Another base in `HEAD`.
    Base,
}

impl View {
    /// Whether nothing was shipped since; of a sealed view, whether no base was published since. An error if the
    /// base of a sealed view was deleted.
    pub fn is_current(&self) -> Result<bool> {
        if matches!(self.seen, Seen::Fixed) {
            return Ok(true);
        }
        let head = read::head(&*self.store, &self.retry).map_err(remote_error)?;
        let Some((head, _)) = head else { return Ok(false) };
        match self.seen {
            Seen::Round(nonce, epoch, next) => {
                Ok(head.nonce == nonce && !self.has(&keys::round(epoch, next))?)
            }
            _ if head.base.as_ref() == Some(&self.base) => Ok(true),
            _ if self.has(&self.base.key)? => Ok(false),
            _ => Err(remote_error(history::expired(&self.base.key))),
        }
    }

    fn has(&self, key: &str) -> Result<bool> {
        match read::retrying(&self.retry, || self.store.head(key)) {
            Ok(_) => Ok(true),
            Err(ObjectError::NotFound { .. }) => Ok(false),
            Err(e) => Err(remote_error(e.into())),
        }
    }

    /// Names the base of the view, for [`sealed`].
    pub fn base(&self) -> String {
        let ObjectRef { key, len, hash } = &self.base;
        format!("{key}:{len}:{hash:032x}")
    }
}

/// The base that a text of [`View::base`] names.
fn base_of(text: &str) -> Result<ObjectRef> {
    let parse = || {
        let mut parts = text.split(':');
        let (key, len, hash) = (parts.next()?, parts.next()?, parts.next()?);
        let hash = u128::from_str_radix(hash, 16).ok()?;
        let object = ObjectRef { key: key.to_owned(), len: len.parse().ok()?, hash };
        parts.next().is_none().then_some(object)
    };
    parse().ok_or_else(|| {
        let text = format!("{text:?} names no base: it is what `base` of a view returns");
        Error::InvalidRequest(text)
    })
}

/// Makes a directory to read a prefix with: the state at a time, `None`: the newest one.
pub(crate) fn view(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    dir: &Path,
    at_ms: Option<u64>,
) -> Result<View> {
    let target = Target::at(at_ms);
    let (found, done) = hydrate(env, store.clone(), retry, dir, Form::View, &target)?;
    let next = found.base.first_round + done.rounds;
    let seen = match at_ms {
        Some(_) => Seen::Fixed,
        None => Seen::Round(found.head.nonce, found.base.header.epoch, next),
    };
    Ok(View { store, retry: retry.clone(), seen, base: found.object, shards: done.shards })
}

/// Makes a directory to read the sealed segments with that a base names, `None`: the newest base. No round and no
/// part of an active segment is fetched. Each topic ends with its last sealed segment.
pub(crate) fn sealed(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    dir: &Path,
    base: Option<&str>,
) -> Result<View> {
    let target = base.map_or(Ok(Target::Newest), |text| base_of(text).map(Target::Base))?;
    let (found, done) = hydrate(env, store.clone(), retry, dir, Form::Sealed, &target)?;
    let (retry, base) = (retry.clone(), found.object);
    Ok(View { store, retry, seen: Seen::Base, base, shards: done.shards })
}

fn hydrate(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    dir: &Path,
    form: Form,
    target: &Target,
) -> Result<(RestoreBase, Restored)> {
    let paths = Paths::new(dir);
    make_root(env, &paths)?;
    if !list_dir(env, dir)?.is_empty() {
        let text = format!(
            "{} is not empty: restore into a new directory, or remove what is in it",
            dir.display()
        );
        return Err(Error::InvalidRequest(text));
    }
    let mut races = RACES;
    loop {
        let head = history::head(&*store, retry).map_err(remote_error)?;
        let nonce = head.nonce;
        let done = from_head(env, store.clone(), retry, &paths, form, (head, target));
        let Err(e) = &done else { return done };
        races -= 1;
        if form == Form::Adopt || matches!(target, Target::Base(_)) || races == 0 {
            return done;
        }
        let newer = history::head(&*store, retry).map_err(remote_error)?;
        if newer.nonce == nonce {
            return done;
        }
        // Its owner may have deleted what an earlier base needs.
        ::log::warn!("the owner of the prefix wrote to it meanwhile, its new state is read: {e}");
        list_dir(env, dir)?.iter().for_each(|entry| remove_tree(env, &dir.join(&entry.name)));
    }
}

/// Makes a directory of the state that this `HEAD` leads to.
fn from_head(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    retry: &Retry,
    paths: &Paths,
    form: Form,
    (head, target): (Head, &Target),
) -> Result<(RestoreBase, Restored)> {
    let base = match target {
        Target::Base(object) => history::chosen(&*store, retry, head, object.clone()),
        _ => history::base(&*store, retry, head, target.at_ms()),
    };
    let (base, paths) = (base.map_err(remote_error)?, paths.clone());
    let mut run = Restore { env, paths, store, retry: retry.clone(), form, base };
    let done = run.run(target.at_ms())?;
    Ok((run.base, done))
}

/// How often a prefix is read or adopted again because its owner wrote to it meanwhile.
const RACES: usize = 8;

impl Restore<'_> {
    fn run(&mut self, at_ms: Option<u64>) -> Result<Restored> {
        // Until the log is restored, whether anything lies beyond it is unknown.
        create_dir(self.env, "dir.names", &self.paths.meta())?;
        Lineage::ORIGIN_WENT_ON.write(self.env, &self.paths)?;
        for dir in [self.paths.wal(), self.paths.topics(), self.paths.txn()] {
            create_dir(self.env, "dir.names", &dir)?;
        }
        if self.form == Form::Adopt {
            self.adopt()?;
        }
        let (env, paths, base) = (self.env, &self.paths, &self.base.base);
        let snapshot = read::snapshot(env, &self.base.object.key, base).map_err(remote_error)?;
        let n = u64::from_le_bytes(base.snapshot[8..16].try_into().unwrap_or_default());
        let mut body = snapshot.whole()?;
        if self.form == Form::Sealed {
            self.sealed_only(&mut body)?;
            self.name_packs(&mut body)?;
            Lineage::NO_SKIP.write(env, paths)?;
            self.finish(n, &body)?;
            let topics = body.topics.len() as u64;
            return Ok(Restored { shards: 1, topics, ..Restored::default() });
        }
        let log = LogFiles::restore(self, &body, at_ms)?;
        let mut out = Restored {
            state_ms: log.cut_ms,
            newest_ms: self.base.newest_ms.max(log.newest_ms),
            has_later: log.has_later || self.base.newest_ms > log.cut_ms,
            shards: body.shards.len() as u32,
            topics: log.topic_count(),
            rounds: log.rounds,
            log_bytes: log.bytes,
            ..Restored::default()
        };
        self.stages(&log)?;
        self.segments(&mut body, &mut out)?;
        let packs = self.name_packs(&mut body)?;
        if self.form == Form::Adopt {
            self.fetch_sides(&body, packs)?;
        }
        // The log may say that a later snapshot took effect, which the restored directory does not have.
        let n = n.max(log.last_snapshot);
        out.skips = out.has_later || log.is_open_ended(&self.base);
        if !out.skips || self.form == Form::View {
            Lineage::NO_SKIP.write(env, paths)?;
        }
        self.finish(n, &body)?;
        Ok(out)
    }

    /// Writes the snapshot, and then what makes the directory one.
    fn finish(&self, n: u64, body: &SnapshotBody) -> Result<()> {
        let (env, paths) = (self.env, &self.paths);
        write_file(env, "restore.file", &paths.snapshot(n), &encode(n, body)?)?;
        env.sync_dir("restore.dir", &paths.meta()).map_err(|e| StorageError::io("restore", e))?;
        Store::create(env, paths, self.base.base.header.store_id)?;
        Ok(())
    }

    /// Makes the new directory the owner of the prefix, as it is after this.
    fn adopt(&mut self) -> Result<()> {
        for _ in 0..RACES {
            let Head { prefix_id, epoch, nonce, .. } = self.base.head;
            let record =
                RemoteRecord { prefix_id, epoch, seen: Some(nonce), attempted: Vec::new() };
            record.write(self.env, &self.paths)?;
            let record = DirectoryRecord { env: self.env.clone(), paths: self.paths.clone() };
            let claimant = Claimant {
                store_id: self.base.base.header.store_id,
                holder: holder(self.env, self.paths.root()),
                has_packs: true,
                record: Arc::new(record),
            };
            let (store, retry) = (self.store.clone(), self.retry.clone());
            match RemoteWriter::open(store, retry, &claimant, &|| Ok(())) {
                // Its owner wrote to it since the base was read.
                Err(RemoteError::NotOurs(Refusal::Copied { .. })) => {
                    let head = history::head(&*self.store, &self.retry).map_err(remote_error)?;
                    let newer = history::base(&*self.store, &self.retry, head, None);
                    self.base = newer.map_err(remote_error)?;
                }
                done => return done.map(drop).map_err(remote_error),
            }
        }
        let detail = "the owner of the prefix writes to it all the time: stop it, and try again";
        Err(Error::StorageUnavailable { reason: "remote", detail: detail.into() })
    }

    /// Makes the snapshot name the packs of cold segments, and returns these.
    fn name_packs(&self, body: &mut SnapshotBody) -> Result<PackTable> {
        body.sections.retain(|s| s.kind != tier::SECTION);
        let packs = PackTable::default();
        if self.form != Form::Copy {
            of_base(&self.base.base, &body.topics)?.into_iter().for_each(|p| packs.add(p));
            body.sections.extend(packs.capture());
        }
        Ok(packs)
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
