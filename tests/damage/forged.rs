//! Directories composed of files that do not belong together: from other times, from another store,
//! or with an end that no run produces.

use std::path::Path;

use topics_sim::{DiskImage, env_on};
use topics_storage::format::frame::seal;
use topics_storage::format::record::{Group, Start};
use topics_storage::format::wal_file::{WAL_HEADER, parse_name};

use super::corpus::files;
use crate::crash::{Mounted, Plan, PointCursor, points};
use crate::oracle::{Observation, observe};
use crate::run::{DIR, Driver, HookSpec, Setup, batch};
use crate::workloads::ALL;

/// The number of records in each batch of these logs.
const WHOLE: usize = 4;

pub(super) fn plan(d: &Driver, seed: u64, hook: &HookSpec) -> Plan {
    Plan {
        tuning: d.tuning,
        wall: d.world().wall,
        seed,
        hook: hook.clone(),
        retries: Vec::new().into(),
        thorough: false,
        journal: false,
        sound: true,
    }
}

pub(super) fn driver(seed: u64, hook: &HookSpec) -> Driver {
    let setup = Setup { workload: "forged", seed, hook: hook.clone(), faults: false };
    let mut d = Driver::new(setup);
    d.tuning.wal_bytes = 4 << 10;
    d
}

/// An open with `strict` must refuse this directory.
fn refused(image: &DiskImage, plan: &Plan, what: &str) -> Vec<String> {
    match Mounted::new(image, plan).open() {
        Ok(_) => vec![format!("{what}: it is opened")],
        Err(_) => Vec::new(),
    }
}

/// The logs of a shard in order, with their bytes.
fn logs(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let mut logs = files(image);
    logs.retain(|f| f.0.ends_with(".log"));
    logs.sort_by_key(|f| parse_name(f.0.rsplit('/').next().unwrap_or_default()));
    logs
}

fn begun(log: &[u8]) -> bool {
    log.get(WAL_HEADER..WAL_HEADER + 4).is_some_and(|b| b != [0; 4])
}

/// `CURRENT` names an empty file; the previous file, which contains all records, is missing.
pub(super) fn prior(seed: u64, hook: &HookSpec) -> Vec<String> {
    let rotation = ALL.iter().find(|w| w.name == "rotation");
    let Some(rec) = rotation.map(|w| w.run(seed, hook.clone())) else { return Vec::new() };
    let mut position = PointCursor::new(&rec);
    for point in points(&rec) {
        position.seek(point);
        let mut image = position.killed();
        let current = image.read(&format!("{DIR}/wal/shard-00/CURRENT")).unwrap_or_default();
        let named = |f: &(String, Vec<u8>)| {
            let name = f.0.rsplit('/').next().unwrap_or_default().as_bytes();
            current.windows(name.len()).any(|w| w == name)
        };
        let logs = logs(&image);
        let Some(at) = logs.iter().position(named).filter(|at| *at > 1) else { continue };
        if !begun(&logs[at].1) && begun(&logs[at - 1].1) {
            image.remove(&logs[at - 1].0);
            return refused(&image, &position.plan(point, hook), "the last log in use is missing");
        }
    }
    vec!["no such moment: nothing was tried".into()]
}

/// `CURRENT` of two files ago: the file after the named one has been in use.
pub(super) fn stale(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = driver(seed, hook);
    d.open();
    let path = format!("{DIR}/wal/shard-00/CURRENT");
    let current = |d: &Driver| d.fs().kill_image().read(&path).unwrap_or_default();
    let mut seen = vec![current(&d)];
    while seen.len() < 4 {
        d.append("a", &batch(WHOLE).size(200));
        if seen.last() != Some(&current(&d)) {
            seen.push(current(&d));
        }
    }
    d.append("a", &batch(WHOLE).size(200));
    let mut image = d.fs().kill_image();
    image.put(&path, &seen[seen.len() - 3]);
    refused(&image, &plan(&d, seed, hook), "CURRENT of before")
}

/// A log that ends within a batch, because the next file claims to start there.
pub(super) fn half_batch(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = driver(seed, hook);
    d.open();
    while logs(&d.fs().kill_image()).iter().filter(|l| begun(&l.1)).count() < 2 {
        d.append("a", &batch(WHOLE).size(200).sync());
    }
    let mut image = d.fs().kill_image();
    let found = logs(&image).into_iter().rfind(|l| begun(&l.1));
    let Some((path, mut bytes)) = found else { return vec!["no log".into()] };
    let number = |at: usize| {
        bytes.get(at..at + 8).map_or(0, |b| b.iter().rev().fold(0, |n, b| n << 8 | u64::from(*b)))
    };
    let (salt, len) = (number(56), Start::FRAME_LEN);
    let Some(first) = first_lsn(&bytes) else { return vec!["no Start".into()] };
    let mut frame = Vec::new();
    let first_lsn = first - 2;
    Start { first_lsn }.encode_frame(&mut frame);
    seal(&mut frame, salt, first_lsn);
    bytes[WAL_HEADER..WAL_HEADER + len].copy_from_slice(&frame);
    bytes[WAL_HEADER + len..].fill(0);
    image.put(&path, &bytes);
    let plan = plan(&d, seed, hook);
    refused(&image, &plan, "a log ends within a batch")
}

fn first_lsn(log: &[u8]) -> Option<u64> {
    let frame = log.get(WAL_HEADER..WAL_HEADER + Start::FRAME_LEN)?;
    let (frame, _) = topics_storage::format::frame::parse(frame).ok()?;
    Start::of(&frame).map(|s| s.first_lsn)
}

/// A killed store with one log, and the position of that log.
fn one_log(seed: u64, hook: &HookSpec) -> (Driver, DiskImage, (String, Vec<u8>)) {
    let mut d = driver(seed, hook);
    d.tuning.wal_bytes = 64 << 10;
    d.open();
    for _ in 0..5 {
        d.append("a", &batch(WHOLE).sync());
    }
    let image = d.fs().kill_image();
    let log = logs(&image).into_iter().rfind(|l| begun(&l.1)).unwrap_or_default();
    (d, image, log)
}

fn flipped(image: &DiskImage, (path, bytes): &(String, Vec<u8>), at: usize) -> DiskImage {
    let (mut image, mut bytes) = (image.clone(), bytes.clone());
    bytes[at] ^= 4;
    image.put(path, &bytes);
    image
}

/// Damages a record below the synced lsn of the later groups.
pub(super) fn proven(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (d, image, log) = one_log(seed, hook);
    // A record of the first group.
    let at = WAL_HEADER + Start::FRAME_LEN + Group::FRAME_LEN + 40;
    refused(&flipped(&image, &log, at), &plan(&d, seed, hook), "damage below what was synced")
}

/// Changes every byte of the log's header.
pub(super) fn header(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (d, image, log) = one_log(seed, hook);
    let plan = plan(&d, seed, hook);
    let damaged = (0..WAL_HEADER).step_by(8).map(|at| (at, flipped(&image, &log, at)));
    damaged.flat_map(|(at, image)| refused(&image, &plan, &format!("header byte {at}"))).collect()
}

/// The Start names another lsn; the later groups prove the original one.
pub(super) fn start(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (d, image, log) = one_log(seed, hook);
    let lsn = first_lsn(&log.1).unwrap_or(0).to_le_bytes();
    let frame = &log.1[WAL_HEADER..WAL_HEADER + Start::FRAME_LEN];
    // The body, after the frame's own fields.
    let Some(at) = frame.windows(8).rposition(|w| w == lsn) else { return vec!["no lsn".into()] };
    let image = flipped(&image, &log, WAL_HEADER + at);
    serves(&d, &image, &plan(&d, seed, hook), "a damaged Start")
}

/// `verify` also reads the bytes that no reader has requested.
pub(super) fn verified(seed: u64, hook: &HookSpec) -> Vec<String> {
    let corpus = super::corpora(seed, hook).swap_remove(0);
    let found = files(&corpus.image).into_iter().find(|f| f.0.ends_with(".attrs"));
    let Some(file) = found else { return vec!["no attributes".into()] };
    let image = flipped(&corpus.image, &file, file.1.len() / 2);
    let disk = Mounted::new(&image, &corpus.plan);
    let env = hook.on(env_on(&disk.fs, &disk.clock, seed), &disk.fs);
    match topics_engine::verify(&env, Path::new(DIR), &mut |_| ()) {
        Ok(report) if report.problems.is_empty() => {
            vec![format!("verify finds nothing wrong with {}", file.0)]
        }
        _ => Vec::new(),
    }
}

fn sharded(seed: u64, hook: &HookSpec) -> Driver {
    let mut d = driver(seed, hook);
    d.tuning.shards = 3;
    d.open();
    for name in ["a", "b", "c", "d", "e", "f"] {
        d.append(name, &batch(3).sync());
        d.append(name, &batch(2));
    }
    d.sync();
    d
}

fn without_shards(seed: u64, hook: &HookSpec, gone: &str) -> Vec<String> {
    let d = sharded(seed, hook);
    let mut image = d.fs().kill_image();
    image.remove(&format!("{DIR}/wal/{gone}"));
    refused(&image, &plan(&d, seed, hook), &format!("{gone} is missing"))
}

/// The directory of a shard is missing, and no snapshot names it.
pub(super) fn missing_shard(seed: u64, hook: &HookSpec) -> Vec<String> {
    without_shards(seed, hook, "shard-01")
}

/// The directory of the first shard, whose files state the layout, is missing.
pub(super) fn missing_first_shard(seed: u64, hook: &HookSpec) -> Vec<String> {
    without_shards(seed, hook, "shard-00")
}

fn snapshots(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let mut found = files(image);
    found.retain(|f| f.0.contains("/snapshot.") && f.0.ends_with(".bin"));
    found.sort_by_key(|f| number(&f.0));
    found
}

fn number(path: &str) -> u64 {
    path.rsplit('.').nth(1).and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// A store after some checkpoints, and the bytes of its first snapshot.
fn checkpointed(seed: u64, hook: &HookSpec, topic: &str) -> (Driver, Vec<u8>) {
    let mut d = driver(seed, hook);
    d.open();
    let mut first = Vec::new();
    for round in 0..4 {
        for _ in 0..8 {
            d.append(topic, &batch(WHOLE).size(200).sync());
        }
        d.checkpoint();
        if round == 0 {
            first = snapshots(&d.fs().kill_image()).pop().map_or(first, |s| s.1);
        }
    }
    (d, first)
}

/// An open must serve the earlier state, whatever one of its snapshots contains.
pub(super) fn serves(d: &Driver, image: &DiskImage, plan: &Plan, what: &str) -> Vec<String> {
    let Some(engine) = d.engine.as_ref() else { return vec!["no engine".into()] };
    let whole = observe(engine, plan.wall, 50).0;
    let engine = match Mounted::new(image, plan).open() {
        Ok(engine) => engine,
        Err(e) => return vec![format!("{what}: refused: {e}")],
    };
    let (seen, problems) = observe(&engine, plan.wall, 50);
    if !problems.is_empty() {
        return problems;
    }
    let records = |o: &Observation| {
        o.topics.iter().map(|t| (t.state.topic.clone(), t.records.clone())).collect::<Vec<_>>()
    };
    if records(&seen) == records(&whole) {
        return Vec::new();
    }
    vec![format!("{what}: serves {}, not {}", seen.line(), whole.line())]
}

/// An old snapshot under the number of a new one: the log that follows it is gone.
pub(super) fn renumbered(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (d, first) = checkpointed(seed, hook, "a");
    let mut image = d.fs().kill_image();
    let Some((newest, _)) = snapshots(&image).pop() else { return vec!["no snapshot".into()] };
    image.put(&newest, &first);
    serves(&d, &image, &plan(&d, seed, hook), "an old snapshot under another number")
}

/// The snapshot of another store under the same number.
pub(super) fn foreign(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (d, _) = checkpointed(seed, hook, "a");
    let (other, _) = checkpointed(seed ^ 0x5ea1, hook, "b");
    let mut image = d.fs().kill_image();
    let (mine, theirs) = (snapshots(&image), snapshots(&other.fs().kill_image()));
    let (Some(mine), Some(theirs)) = (mine.last(), theirs.last()) else {
        return vec!["no snapshot".into()];
    };
    if mine.0 != theirs.0 {
        return vec![format!("{} is not {}: nothing was tried", mine.0, theirs.0)];
    }
    image.put(&mine.0, &theirs.1);
    serves(&d, &image, &plan(&d, seed, hook), "a snapshot of another store")
}
