//! Files of staged rows that are damaged, or that belong to another decision.

use std::path::Path;
use std::sync::Arc;

use topics_engine::{
    CommitRequest, Engine, NewRecord, Options, Result, StageRequest, StagedState, TxnRequest,
    TxnRows, TxnStage,
};
use topics_sim::{CallFilter, CallKind, DiskImage, FaultKind, SimClock, SimFs, env_on};

use super::corpus::files;
use crate::delivery::options;
use crate::oracle::observe;
use crate::run::{DIR, HookSpec};

const WALL: u64 = 1_700_000_000_000;

/// A disk and the engine on it.
struct Store {
    fs: Arc<SimFs>,
    engine: Engine,
}

fn open(fs: Arc<SimFs>, seed: u64, hook: &HookSpec) -> Result<Store> {
    let env = hook.on(env_on(&fs, &Arc::new(SimClock::new(WALL)), seed), &fs);
    let options = Options { segment_max_events: 64, ..options(3) };
    let engine = Engine::open(env, Path::new(DIR), options)?;
    Ok(Store { fs, engine })
}

fn on(image: &DiskImage, seed: u64, hook: &HookSpec) -> Result<Store> {
    open(Arc::new(SimFs::from_image(image)), seed, hook)
}

/// The payloads of all topics.
fn payloads(engine: &Engine) -> Vec<String> {
    let all = observe(engine, WALL, 50).0.topics;
    let records = all.iter().flat_map(|t| &t.records);
    records.map(|r| String::from_utf8_lossy(&r.data).into_owned()).collect()
}

const STAGE: [TxnStage<'static>; 1] = [TxnStage { stage: "s", parts: 1, records: None }];

/// A waiting stage: the disk, its file, and its listing.
fn waiting(seed: u64, hook: &HookSpec) -> Result<(DiskImage, String, Vec<StagedState>)> {
    let store = open(Arc::new(SimFs::new()), seed, hook)?;
    let records =
        ["\"one\"", "\"two\""].map(|d| NewRecord { data: d.as_bytes(), ..NewRecord::default() });
    let rows = [TxnRows { topic: "t", records: &records, ..TxnRows::default() }];
    store.engine.stage("w", &StageRequest { stage: "s", part: 0, rows: &rows })?;
    let listed = store.engine.writer_state("w")?.staged;
    let image = store.fs.kill_image();
    let file = files(&image).into_iter().find(|f| f.0.ends_with(".rows"));
    Ok((image, file.map_or_else(String::new, |f| f.0), listed))
}

/// Flips each byte of a file, each on its own copy of the disk.
fn flips(image: &DiskImage, path: &str, mut judge: impl FnMut(usize, &DiskImage)) -> usize {
    let bytes = image.read(path).unwrap_or_default();
    for at in 0..bytes.len() {
        let (mut other, mut disk) = (bytes.clone(), image.clone());
        other[at] ^= 1 << (at % 8);
        disk.put(path, &other);
        judge(at, &disk);
    }
    bytes.len()
}

/// I12: a stage with a damaged header is not listed, or listed unchanged.
pub(super) fn header(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (image, path, listed) = match waiting(seed, hook) {
        Ok(found) => found,
        Err(e) => return vec![e.to_string()],
    };
    let mut out = Vec::new();
    let tried = flips(&image, &path, |at, disk| {
        // An unknown version makes the open fail.
        let Ok(store) = on(disk, seed ^ 1, hook) else { return };
        let staged = store.engine.writer_state("w").map(|s| s.staged).unwrap_or_default();
        if !staged.is_empty() && staged != listed {
            out.push(format!("I12: byte {at} of the header: listed as {staged:?}"));
        }
    });
    if tried == 0 {
        out.push("no file: nothing was tried".into());
    }
    out
}

/// I12: a stage with damaged rows is not published.
pub(super) fn rows(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (image, path, _) = match waiting(seed, hook) {
        Ok(found) => found,
        Err(e) => return vec![e.to_string()],
    };
    let mut out = Vec::new();
    let tried = flips(&image, &path, |at, disk| {
        let Ok(store) = on(disk, seed ^ 1, hook) else { return };
        let req = CommitRequest { epoch: 1, stages: &STAGE, ..CommitRequest::default() };
        let came = store.engine.commit("w", &req).map_err(|e| e.code());
        if came != Err("txn_incomplete") {
            let there = payloads(&store.engine);
            out.push(format!("I12: byte {at}: a commit is {came:?}, readers get {there:?}"));
        }
    });
    if tried == 0 {
        out.push("no file: nothing was tried".into());
    }
    out
}

/// A decision that is not completed: the parts outside its shard failed.
fn decided(base: &DiskImage, data: &str, seed: u64, hook: &HookSpec) -> Result<DiskImage> {
    let store = on(base, seed, hook)?;
    for shard in ["shard-01", "shard-02"] {
        store.fs.fail_from(CallFilter::on_path(CallKind::Write, shard), 1, FaultKind::ENOSPC);
    }
    let records = [NewRecord { data: data.as_bytes(), ..NewRecord::default() }];
    let rows =
        ["a", "b", "c"].map(|topic| TxnRows { topic, records: &records, ..TxnRows::default() });
    let req =
        TxnRequest { writer: Some("w"), epoch: Some(1), rows: &rows, ..TxnRequest::default() };
    // The outcome is unknown until the next open.
    _ = store.engine.transact(&req);
    Ok(store.fs.kill_image())
}

fn other_rows(seed: u64, hook: &HookSpec) -> Result<Vec<String>> {
    let store = open(Arc::new(SimFs::new()), seed, hook)?;
    for topic in ["a", "b", "c"] {
        store.engine.create_topic(topic, &topics_engine::ConfigPatch::default())?;
    }
    store.engine.close()?;
    let base = store.fs.kill_image();
    let mut image = decided(&base, "\"mine\"", seed ^ 1, hook)?;
    let other = decided(&base, "\"other\"", seed ^ 2, hook)?;
    let staged = |i: &DiskImage| files(i).into_iter().find(|f| f.0.ends_with(".rows"));
    let (Some(mine), Some(other)) = (staged(&image), staged(&other)) else {
        return Ok(vec!["no rows: nothing was tried".into()]);
    };
    if mine.0 != other.0 || payloads(&on(&image, seed ^ 3, hook)?.engine).len() != 3 {
        return Ok(vec![format!("{} and {}: nothing was tried", mine.0, other.0)]);
    }
    image.put(&mine.0, &other.1);
    Ok(match on(&image, seed ^ 3, hook) {
        Err(e) if e.to_string().contains(".rows") => Vec::new(),
        Err(e) => vec![format!("the refusal names no file: {e}")],
        Ok(store) => vec![format!("I12: rows of another decision: {:?}", payloads(&store.engine))],
    })
}

/// I12: the file of a decision is replaced by a valid one of a diverged copy of the directory. An
/// open must refuse it.
pub(super) fn otherwise(seed: u64, hook: &HookSpec) -> Vec<String> {
    other_rows(seed, hook).unwrap_or_else(|e| vec![e.to_string()])
}
