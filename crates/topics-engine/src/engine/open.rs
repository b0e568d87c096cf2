//! Opening: recovery → the subsystems → a running engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_remote::Retry;
use topics_storage::StorageError;
use topics_storage::checkpoint::Checkpoints;
use topics_storage::dir::{Lineage, Paths};
use topics_storage::recovery::{Loss, Mode, Opened, Opening, Problem, RecoveryProgress};
use topics_storage::segment::Segments;

use super::host::Host;
use super::open_engine::OpenEngine;
use crate::catalog::Catalog;
use crate::checkpoint::{Store, round};
use crate::ctx::Pressure;
use crate::queue;
use crate::recovery::{
    Access, LogEnd, Lost, Replay, Target, problem, segment_options, wal_options,
};
use crate::restore::{self, View};
use crate::topic;
use crate::topic::events::{Base, Ctx, TopicHost};
use crate::txn;
use crate::types::api::{Gap, GapReason};
use crate::types::error::{Error, Result};
use crate::types::options::{Options, RecoveryMode, RemoteOptions};
use crate::types::quota::Quota;

/// Opens a directory and recovers what it holds.
pub(crate) fn open(
    env: Env,
    dir: &Path,
    options: Options,
    progress: Arc<RecoveryProgress>,
) -> Result<Arc<OpenEngine>> {
    open_log(env, dir, options, progress, LogEnd::Open)
}

fn open_log(
    env: Env,
    dir: &Path,
    options: Options,
    progress: Arc<RecoveryProgress>,
    end: LogEnd,
) -> Result<Arc<OpenEngine>> {
    options.check()?;
    let strict = !options.recovery.gives_up();
    let opened = recover(env, dir, options, progress, end);
    opened.map_err(|e| if strict { e.with_repair_advice(dir) } else { e })
}

fn recover(
    env: Env,
    dir: &Path,
    options: Options,
    progress: Arc<RecoveryProgress>,
    end: LogEnd,
) -> Result<Arc<OpenEngine>> {
    let dir = &absolute(dir)?;
    let paths = Paths::new(dir);
    let mode = match options.recovery {
        RecoveryMode::Strict => Mode::Strict,
        RecoveryMode::Salvage | RecoveryMode::Repair => Mode::Salvage,
    };
    let pid = env.process_id();
    let mut opening = Opening::begin(env.clone(), paths.clone(), pid, wal_options(&options), mode)
        .map_err(|e| at(dir, e))?;
    // The files of unloaded topics are checked later; `salvage` checks all of them.
    // An open that only reads gives nothing away.
    let lineage = opening.lineage().filter(|_| !env.is_read_only());
    let skip = lineage.map_or(0, |l| l.skip);
    let closed = opening.closed() && mode == Mode::Strict && skip == 0;
    let topics = opening.take_topics();
    let segments = Segments::new(
        env.clone(),
        paths.clone(),
        opening.store().id,
        opening.generation(),
        segment_options(&options, &env),
    );
    let (base, host) = base(env.clone(), dir, options, segments.clone(), progress);
    let target = Target { base: &base, table: &host.table, ids: &host.ids };
    let snapshot_layout = opening.snapshot().map(|b| b.layout);
    let access = if closed { Access::Closed } else { Access::Change };
    let replay = Replay::of(target, &opening, topics, access)?;
    let lost: Vec<_> = replay.lost(target, &opening, (skip, end)).iter().map(Lost::frame).collect();
    let repaired = mode == Mode::Salvage
        && (opening.losses().any(|l| !l.announced)
            || !opening.snapshots().rejected.is_empty()
            || !replay.segments.is_empty());
    let opened = opening.finish(&lost)?;
    let engine = start((base, host), paths.clone(), segments, opened, closed)?;
    if skip > 0 {
        // The gaps are durable in the log.
        Lineage::NO_SKIP.write(&env, &paths)?;
    }
    engine.catalog().ids.recovered();
    // Before the first write the newest snapshot must be one of the current layout, whatever was
    // replayed, and even if an earlier open changed the layout and was killed.
    let mut layouts = snapshot_layout.into_iter().chain(replay.oldest_layout);
    if layouts.any(|l| l != engine.ctx().layout) {
        let moved = round::checkpoint_everything(engine.store());
        if let Err(Error::StorageUnavailable { reason: "io", detail }) = moved {
            // A reopened segment may report a write error of the time before this open; the second
            // attempt writes a new one.
            log::warn!("the change of the number of shards is tried again: {detail}");
            round::checkpoint_everything(engine.store())?;
        } else {
            moved?;
        }
    }
    for topic in engine.catalog().table.loaded.shadowed() {
        topic::delete_superseded(engine.ctx(), &topic);
    }
    engine.catalog().table.loaded.each(|t| t.recovered(engine.base()));
    engine.catalog().table.serve();
    engine.host.wire(engine.host.routers.recovered(engine.catalog())?);
    txn::recovered(&engine.transactions)?;
    engine.deliverer.workers.resume(&engine.deliverer)?;
    queue::finish(engine.queues.catalog());
    engine.catalog().table.loaded.each(|t| queue::announce_again(&engine.queues, t));
    if engine.ctx().wal.has_begun() {
        engine.store().disk.checkpoints.refill(&engine.ctx().wal);
    }
    if repaired {
        checkpoint_repair(engine.store())?;
    }
    if let Some(cold) = &engine.base().cold {
        cold.opened();
    }
    engine.start_background()?;
    if let Some(archiver) = engine.archiver.as_ref().filter(|_| engine.base().options.background) {
        archiver.start()?;
    }
    if let Some(shipper) = &engine.shipper
        && engine.base().options.background
        && shipper.ships()
    {
        shipper.start()?;
    }
    Ok(engine)
}

/// Ends a recovery that declared data lost: writes snapshots that no longer name it, so that the next
/// open succeeds in strict mode too.
fn checkpoint_repair(store: &Arc<Store>) -> Result<()> {
    for _ in 0..2 {
        match round::checkpoint(store) {
            Err(e) if e.is_shortage() => {
                log::warn!("the next open must be one with salvage again: {e}");
                return Ok(());
            }
            done => done.map(drop)?,
        }
    }
    Ok(())
}

/// Opens a directory without changing its files: recovery writes to memory only.
pub(crate) fn open_read_only(env: Env, dir: &Path, options: Options) -> Result<Arc<OpenEngine>> {
    require_directory(&env, dir)?;
    let has_threads = options.background;
    let options = Options { background: false, ..options };
    let engine = open(env.read_only(), dir, options, Arc::default())?;
    freeze(&engine, has_threads);
    Ok(engine)
}

/// Makes `dir` a directory to read a prefix of an object store with, and opens it: the state at a time,
/// `None`: the newest one. `dir` is missing or empty, and of no use after the engine is closed.
pub(crate) fn open_prefix(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    dir: &Path,
    at_ms: Option<u64>,
    options: Options,
) -> Result<Arc<OpenEngine>> {
    open_view(env, store, dir, options, |store, retry| restore::view(env, store, retry, dir, at_ms))
}

/// The same for the sealed segments that a base names, `None`: the newest base.
pub(crate) fn open_sealed(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    dir: &Path,
    base: Option<&str>,
    options: Options,
) -> Result<Arc<OpenEngine>> {
    open_view(env, store, dir, options, |store, retry| {
        restore::sealed(env, store, retry, dir, base)
    })
}

fn open_view(
    env: &Env,
    store: Arc<dyn ObjectStore>,
    dir: &Path,
    options: Options,
    view: impl FnOnce(Arc<dyn ObjectStore>, &Retry) -> Result<View>,
) -> Result<Arc<OpenEngine>> {
    let limits = options.remote.map(|remote| remote.limits).unwrap_or_default();
    let mut retry = Retry::new(env.clone(), std::thread::sleep);
    retry.deadline = limits.cold_timeout;
    let view = view(store.clone(), &retry)?;
    let wal_shards = view.shards;
    let has_threads = options.background;
    let remote = Some(RemoteOptions { store, limits });
    let options = Options { remote, wal_shards, background: false, ..options };
    // Files of segments are kept in it as they are fetched.
    let engine = open_log(env.clone(), dir, options, Arc::default(), LogEnd::Exact)?;
    freeze(&engine, has_threads);
    if let Some(cold) = &engine.base().cold {
        cold.wait_for_sides();
    }
    let _ = engine.view.set(view);
    Ok(engine)
}

/// Refuses what is no data directory.
fn require_directory(env: &Env, dir: &Path) -> Result<()> {
    match topics_storage::dir::Store::read(env, &Paths::new(dir))? {
        Some(_) => Ok(()),
        None => Err(Error::InvalidRequest(format!("{} is no data directory", dir.display()))),
    }
}

/// Makes an engine refuse every write.
fn freeze(engine: &OpenEngine, has_threads: bool) {
    engine.ctx().freeze();
    if let Some(cold) = engine.base().cold.as_ref().filter(|_| has_threads) {
        cold.use_threads();
    }
}

/// The absolute path, which stays valid if the process changes its working directory: files are created,
/// and the lock file is checked, by path.
pub(super) fn absolute(dir: &Path) -> Result<PathBuf> {
    std::path::absolute(dir).map_err(|e| {
        Error::InvalidRequest(format!("the data directory {:?}: {e}", dir.display().to_string()))
    })
}

/// The state that frames are applied to, and the context of its topics.
fn base(
    env: Env,
    dir: &Path,
    options: Options,
    segments: Arc<Segments>,
    progress: Arc<RecoveryProgress>,
) -> (Base, Arc<Host>) {
    let keys = Quota::new("max_idempotency_keys", options.max_idempotency_keys);
    let pressure = Arc::<Pressure>::default();
    let host = Host::new(&env, &options, keys.clone(), pressure.clone());
    let shared = (keys, pressure, host.clone() as Arc<dyn TopicHost>);
    (Base::new(env, dir.to_owned(), options, segments, progress, shared), host)
}

fn start(
    (base, host): (Base, Arc<Host>),
    paths: Paths,
    segments: Arc<Segments>,
    opened: Opened,
    closed: bool,
) -> Result<Arc<OpenEngine>> {
    let checkpoints =
        Checkpoints::new(base.env.clone(), paths, opened.store.id, segments, &opened.snapshots);
    // A clean close leaves no file and no folder that no snapshot names, and makes their removal durable.
    if !closed {
        checkpoints.sweep()?;
    }
    let Opened { wal, lock, store, generation, layout, outside, .. } = opened;
    let ctx = Ctx::new(base, wal, lock, (generation, layout));
    let catalog = Catalog::new(ctx, host.table.clone(), host.ids.clone());
    Ok(OpenEngine::new(Store::new(catalog, checkpoints, store.id, outside), host))
}

/// The data that `salvage` would declare lost.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    /// Ranges of the logs.
    pub losses: Vec<Loss>,
    /// The gaps of the topics, each with the topic's name.
    pub gaps: Vec<(String, Gap)>,
    /// Files that would be rebuilt from others, or from their undamaged part.
    pub files: Vec<Problem>,
    /// Why the objects of cold segments were not looked at, if there are any.
    pub unlooked: Option<String>,
}

/// Finds the data that `salvage` would declare lost.
pub(crate) fn plan(env: &Env, dir: &Path, options: Options) -> Result<Plan> {
    let (paths, wal) = (Paths::new(dir), wal_options(&options));
    let mut opening = Opening::inspect(env.clone(), paths.clone(), env.process_id(), wal)
        .map_err(|e| at(dir, e))?;
    let topics = opening.take_topics();
    let (id, generation) = (opening.store().id, opening.generation());
    // Segments that would be written anew are, in memory.
    let env = env.clone().read_only();
    let set = segment_options(&options, &env);
    let segments = Segments::new(env.clone(), paths, id, generation, set);
    let options = Options { recovery: RecoveryMode::Repair, ..options };
    let (base, host) = base(env, dir, options, segments, Arc::default());
    let target = Target { base: &base, table: &host.table, ids: &host.ids };
    let replay = Replay::of(target, &opening, topics, Access::Look)?;
    let lost = replay.lost(target, &opening, (0, LogEnd::Open));
    let losses = opening.losses().filter(|l| !l.announced).cloned().collect();
    let gaps = lost.into_iter().filter_map(|l| {
        let reason = GapReason::from_code(l.gap.reason)?;
        Some((l.topic?.1, Gap { from: l.gap.from, to: l.gap.to, reason }))
    });
    let store = opening.store_damage().map(problem);
    Ok(Plan {
        losses,
        gaps: replay.holes.into_iter().chain(gaps).collect(),
        files: store.into_iter().chain(replay.segments).collect(),
        unlooked: replay.unlooked,
    })
}

/// Adds the directory to the error of a locked directory.
pub(super) fn at(dir: &Path, e: StorageError) -> Error {
    match e {
        StorageError::Locked { pid, url } => {
            Error::Locked { dir: dir.display().to_string(), pid, url }
        }
        e => e.into(),
    }
}
