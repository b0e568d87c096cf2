#![allow(
    clippy::disallowed_methods,
    reason = "permits are what is tested, or held against the log"
)]
mod hostile;
mod layout;
mod salvage;
mod space;

use std::path::Path;
use std::sync::Arc;

use topics_env::{Env, OpenMode};
use topics_sim::{CrashOptions, DiskImage, SimFs, env_on, sim_env};

use super::*;
use crate::format::frame::{self, FrameType};
use crate::format::record::{Body, Gap};
use crate::wal::{Batch, Commit, Level, PlacedBatch, Wal};

struct Quiet;

impl Commit for Quiet {
    fn apply(&self, _: &PlacedBatch<'_>) {}
    fn failed(&self, _: &StorageError) {}
}

fn options(shards: u32) -> WalOptions {
    WalOptions {
        shards,
        file_initial: 2048,
        file_max: 4096,
        background: false,
        ..WalOptions::default()
    }
}

fn batch(seq: u64, n: u64) -> Batch {
    let mut records = Vec::new();
    for i in 0..n {
        let data = format!("value {}", seq + i);
        let f = frame::Frame::control(FrameType::Append, 0, 0, 0, data.as_bytes());
        frame::encode(&mut records, &f);
    }
    Batch {
        head: Vec::new(),
        records,
        headroom: 0,
        tail: Vec::new(),
        first_seq: seq,
        ts: 5,
        topic_id: 1,
        level: Level::Written,
        frees_space: false,
        commit: Arc::new(Quiet),
    }
}

fn put(wal: &Wal, shard: usize, seq: u64, n: u64, level: Level) {
    let b = batch(seq, n);
    let permit = wal.reserve(shard, b.bytes(), None).unwrap();
    let t = wal.stage(b, permit).unwrap();
    wal.wait(t, level).unwrap();
}

/// Seqs by shard of what is kept, each checked against its value.
fn replayed(opening: &Opening) -> Vec<(usize, u64)> {
    try_replayed(opening).unwrap()
}

fn try_replayed(opening: &Opening) -> Result<Vec<(usize, u64)>> {
    let mut out = Vec::new();
    opening.replay(&RecoveryProgress::default(), |_, p| {
        let mut at = 0;
        while at < p.bytes.len() {
            let (f, len) = frame::parse(&p.bytes[at..]).unwrap();
            if f.kind == FrameType::Append {
                assert_eq!(f.data, format!("value {}", f.seq).as_bytes());
                out.push((p.shard, f.seq));
            }
            at += len;
        }
        Ok(())
    })?;
    Ok(out)
}

#[test]
fn a_replay_says_how_far_it_has_come() {
    let (env, fs, _) = sim_env(1);
    workload(&env, &fs);
    let (env, _fs) = mount(&fs.kill_image());
    let opening = begin(&env, 1, Mode::Strict).unwrap();
    let (progress, mut seen) = (RecoveryProgress::default(), Vec::new());
    let watched = |_, _: &PlacedBatch<'_>| {
        seen.push(progress.ppm());
        Ok(())
    };
    opening.replay(&progress, watched).unwrap();
    assert_eq!((seen.len(), seen[0]), (12, 0), "a batch counts when it has been applied");
    assert!(seen.windows(2).all(|w| w[0] < w[1] && w[1] < 1_000_000), "{seen:?}");
    assert_eq!(progress.ppm(), 1_000_000);
    assert!(progress.replayed() >= 36, "groups count too");
}

fn begin(env: &Env, shards: u32, mode: Mode) -> Result<Opening> {
    Opening::begin(env.clone(), Paths::new(Path::new("/db")), 1, options(shards), mode)
}

fn open(env: &Env, shards: u32) -> (Vec<(usize, u64)>, Opened) {
    let opening = begin(env, shards, Mode::Strict).unwrap();
    let kept = replayed(&opening);
    (kept, opening.finish(&[]).unwrap())
}

/// Batches of three on one shard, every second one synced; returns per journal length what was
/// durable then.
fn workload(env: &Env, fs: &SimFs) -> Vec<(usize, u64)> {
    let mut acked = Vec::new();
    let (_, opened) = open(env, 1);
    for i in 0..12 {
        let level = if i % 2 == 0 { Level::Synced } else { Level::Written };
        put(&opened.wal, 0, i * 3 + 1, 3, level);
        if level == Level::Synced {
            acked.push((fs.ops_len(), i * 3 + 3));
        }
    }
    acked
}

fn mount(image: &DiskImage) -> (Env, Arc<SimFs>) {
    let (_, _, clock) = sim_env(3);
    let fs = Arc::new(SimFs::from_image(image));
    (env_on(&fs, &clock, 4), fs)
}

#[test]
fn i1_i5_every_crash_keeps_what_was_synced_and_batches_are_whole() {
    let (env, fs, _) = sim_env(7);
    let acked = workload(&env, &fs);
    let mut states = 0;
    let mut lossy = 0;
    fs.all_crash_states(11, &CrashOptions::default(), &mut |s| {
        let durable = acked.iter().filter(|(op, _)| *op <= s.after_ops).map(|a| a.1).max();
        let (env, _) = mount(&s.image);
        let (kept, opened) = open(&env, 1);
        let seqs: Vec<u64> = kept.iter().map(|k| k.1).collect();
        let head = seqs.last().copied().unwrap_or(0);
        assert_eq!(seqs, (1..=head).collect::<Vec<_>>(), "in order, no hole: {:?}", s.survival);
        assert_eq!(head % 3, 0, "I5: {:?} after {}", s.survival, s.after_ops);
        assert!(head >= durable.unwrap_or(0), "I1: {:?} after {}", s.survival, s.after_ops);
        // What is served now survives a power cut right away.
        put(&opened.wal, 0, head + 1, 1, Level::Synced);
        drop(opened);
        states += 1;
        lossy += u64::from(s.image.lost_something());
    });
    assert!(states > 500 && lossy > 100, "{states} states, {lossy} lost something");
}

#[test]
fn recovering_again_gives_the_same_and_a_crash_inside_it_loses_nothing() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let killed = fs.kill_image();
    let (env, fs) = mount(&killed);
    let (first, opened) = open(&env, 1);
    assert_eq!(first.len(), 36, "a killed process loses nothing");
    drop(opened);
    let mut n = 0;
    fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
        if !s.image.files().iter().any(|(name, _)| name.ends_with("CURRENT")) {
            return;
        }
        let (env, _) = mount(&s.image);
        let (kept, _) = open(&env, 1);
        // A power cut may take the tail that no sync covered, but never once it was served.
        assert!(kept.len() >= 33, "{:?} after {}: {}", s.survival, s.after_ops, kept.len());
        if s.after_ops == fs.ops_len() {
            assert_eq!(kept, first, "{:?}", s.survival);
        }
        n += 1;
    });
    assert!(n > 50, "{n}");
}

#[test]
fn a_clean_close_is_known_and_costs_no_copy() {
    let (env, _, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    put(&opened.wal, 0, 1, 3, Level::Written);
    opened.wal.close(true).unwrap();
    drop(opened);
    let opening = begin(&env, 1, Mode::Strict).unwrap();
    let report = opening.reports()[0];
    assert!(report.clean);
    assert!(opening.shards[0].plan.copied.is_none());
    assert_eq!(replayed(&opening).len(), 3);
}

#[test]
fn the_shard_count_may_change_between_runs() {
    let (env, _, _) = sim_env(7);
    let mut want = Vec::new();
    for (run, shards) in [1u32, 3, 2, 2].into_iter().enumerate() {
        let (kept, opened) = open(&env, shards);
        assert_eq!(kept.iter().map(|k| k.1).collect::<Vec<_>>(), want, "run {run}");
        for shard in 0..shards {
            let seq = run as u64 * 100 + u64::from(shard) * 10 + 1;
            put(&opened.wal, shard as usize, seq, 2, Level::Written);
            want.extend([seq, seq + 1]);
        }
        assert_eq!(opened.wal.shards(), shards as usize);
    }
}

#[test]
fn i12_damage_is_refused_or_given_up_and_announced_once() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let image = fs.kill_image();
    let (name, bytes) = image
        .files()
        .into_iter()
        .find(|(n, b)| n.ends_with(".log") && b.windows(7).any(|w| w == b"value 7"))
        .unwrap();
    let at = bytes.windows(7).position(|w| w == b"value 7").unwrap();
    let (env, _) = mount(&image);
    let file =
        env.fs.open(Path::new(&format!("/{}", name.trim_start_matches('/'))), OpenMode::Write);
    file.unwrap().write_all_at(b"V", at as u64).unwrap();
    let refused = begin(&env, 1, Mode::Strict).err().unwrap();
    assert!(
        matches!(&refused, StorageError::Corrupt { file, .. } if name.ends_with(file)),
        "{refused}"
    );
    let opening = begin(&env, 1, Mode::Salvage).unwrap();
    let losses: Vec<Loss> = opening.losses().cloned().collect();
    assert_eq!(losses.len(), 1);
    let seqs: Vec<u64> = replayed(&opening).iter().map(|k| k.1).collect();
    let want: Vec<u64> = (1..=36).filter(|s| !(7..=9).contains(s)).collect();
    assert_eq!(seqs, want, "the touched batch goes whole");
    let mut gap = Vec::new();
    Gap { from: losses[0].from_lsn, to: losses[0].to_lsn, reason: 1 }
        .encode_frame(&mut gap, 0, 0, 0);
    opening.finish(&[(0, gap)]).unwrap();
    let opening = begin(&env, 1, Mode::Strict).unwrap();
    assert!(opening.losses().all(|l| l.announced), "strict passes over what was given up");
    assert_eq!(replayed(&opening).len(), want.len());
}

#[test]
fn another_stores_file_and_a_missing_file_are_damage() {
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let image = fs.kill_image();
    let logs: Vec<(String, Vec<u8>)> =
        image.files().into_iter().filter(|(n, _)| n.ends_with(".log")).collect();
    assert!(logs.len() > 2);
    let mut missing = image.clone();
    assert!(missing.remove(&logs[1].0));
    let e = begin(&mount(&missing).0, 1, Mode::Strict).err().unwrap();
    assert!(matches!(e, StorageError::Missing { .. } | StorageError::Corrupt { .. }), "{e}");
    let mut swapped = image.clone();
    swapped.put(&logs[0].0, &logs[1].1);
    swapped.put(&logs[1].0, &logs[0].1);
    let e = begin(&mount(&swapped).0, 1, Mode::Strict).err().unwrap();
    assert!(matches!(e, StorageError::Corrupt { .. }), "{e}");
}
