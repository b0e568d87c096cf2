//! Damage to a log in use: readers and the copy into segments must detect it, and the damaged bytes
//! must be kept.

use std::path::Path;

use topics_engine::Durability;
use topics_env::{Fs, OpenMode};
use topics_sim::{CrashOptions, DiskImage};

use super::corpus::files;
use super::{active, copies, forged, lock, staged};
use crate::oracle::{Observation, observe_damaged};
use crate::run::{Driver, HookSpec, Setup, Tuning, batch};
use crate::workloads::class;

/// A named scenario of damage to a log in use; returns the problems.
pub type Rot = (&'static str, fn(u64, &HookSpec) -> Vec<String>);

/// All scenarios.
pub const ROTS: [Rot; 24] = [
    ("read", read),
    ("copied", copied),
    ("salvaged", salvaged),
    ("proven", forged::proven),
    ("header", forged::header),
    ("start", forged::start),
    ("verified", forged::verified),
    ("prior", forged::prior),
    ("stale", forged::stale),
    ("half_batch", forged::half_batch),
    ("missing_shard", forged::missing_shard),
    ("missing_first_shard", forged::missing_first_shard),
    ("renumbered", forged::renumbered),
    ("foreign", forged::foreign),
    ("hole", active::hole),
    ("bad_place", active::bad_place),
    ("lock_removed", lock::removed),
    ("lock_replaced", lock::replaced),
    ("backup", copies::backup),
    ("clone", copies::clone),
    ("backup_wide", copies::wide),
    ("staged_header", staged::header),
    ("staged_rows", staged::rows),
    ("staged_otherwise", staged::otherwise),
];

/// The damaged record: of the first topic, neither the first nor the last of its log.
const SEQ: u64 = 3;

/// A byte of a record's payload, and the bytes around it after the damage.
struct Spot {
    path: String,
    at: usize,
    byte: u8,
    around: Vec<u8>,
}

impl Spot {
    /// The position of the record in a log.
    fn find(image: &DiskImage, data: &[u8]) -> Option<Self> {
        files(image).into_iter().filter(|f| f.0.ends_with(".log")).find_map(|(path, bytes)| {
            let from = bytes.windows(data.len()).position(|w| w == data)?;
            let at = from + data.len() / 2;
            let byte = bytes[at] ^ 0x10;
            let mut around = bytes[from..from + data.len()].to_vec();
            around[at - from] = byte;
            Some(Self { path, at, byte, around })
        })
    }

    fn kept(&self, image: &DiskImage) -> bool {
        let holds = |bytes: &[u8]| bytes.windows(self.around.len()).any(|w| w == self.around);
        let held = files(image);
        let mut held = held.iter().filter(|f| !super::is_filler(&f.0));
        held.any(|(_, bytes)| holds(bytes))
    }
}

fn look(d: &Driver) -> Result<Observation, String> {
    let engine = d.engine.as_ref().ok_or("no engine")?;
    let (seen, problems, unread) = observe_damaged(engine, d.world().wall, 50);
    match problems.into_iter().chain(unread.into_iter().map(|t| format!("{t} is unread"))).next() {
        Some(p) => Err(p),
        None => Ok(seen),
    }
}

/// An engine that serves records from a log whose groups are all proven durable.
pub(super) fn started(seed: u64, hook: &HookSpec) -> Driver {
    let setup = Setup { workload: "rot", seed, hook: hook.clone(), faults: false };
    let mut d = Driver::new(setup);
    d.tuning = Tuning { segment_records: 8, ..Tuning::default() };
    d.open();
    for name in ["safe", "disk"] {
        d.create(name, &class(Durability::Fsync));
        for _ in 0..3 {
            d.append(name, &batch(2).size(120));
        }
    }
    d.append("disk", &batch(1));
    d
}

/// A process opens the log of an earlier one, then the log is damaged.
fn rotten(seed: u64, hook: &HookSpec) -> Result<(Driver, Observation, Spot), String> {
    let mut d = started(seed, hook);
    d.kill();
    d.open();
    let whole = look(&d)?;
    let record = whole.topic("safe").and_then(|t| t.get(SEQ)).ok_or("no record")?;
    let spot = Spot::find(&d.fs().kill_image(), &record.data).ok_or("not in a log")?;
    let io = |e: std::io::Error| e.to_string();
    let file = d.fs().open(Path::new(&spot.path), OpenMode::Write).map_err(io)?;
    file.write_all_at(&[spot.byte], spot.at as u64).map_err(io)?;
    file.sync_data().map_err(io)?;
    Ok((d, whole, spot))
}

/// I12: only written records are served, and all undamaged ones.
fn judge(now: &Result<Observation, String>, whole: &Observation, when: &str) -> Vec<String> {
    let now = match now {
        Ok(now) => now,
        Err(e) => return vec![format!("{when}: {e}")],
    };
    let mut out = Vec::new();
    for topic in &whole.topics {
        let name = &topic.state.topic;
        for was in &topic.records {
            let harmed = name == "safe" && was.seq == SEQ;
            match now.topic(name).and_then(|t| t.get(was.seq)) {
                Some(is) if is != was => {
                    out.push(format!("I12: {when}: {name}: seq {} is {is:?}", was.seq));
                }
                None if !harmed => out.push(format!("{when}: {name}: seq {} is gone", was.seq)),
                _ => {}
            }
        }
        let announced = now
            .topic(name)
            .is_some_and(|t| name != "safe" || t.get(SEQ).is_some() || t.tombstone(SEQ).is_some());
        if !announced {
            out.push(format!("I4: {when}: {name}: seq {SEQ} went in silence"));
        }
    }
    out
}

fn read(seed: u64, hook: &HookSpec) -> Vec<String> {
    match rotten(seed, hook) {
        Ok((d, whole, _)) => judge(&look(&d), &whole, "a read of a damaged log"),
        Err(e) => vec![e],
    }
}

/// The log is removed after its copy; the damaged bytes stay.
fn copied(seed: u64, hook: &HookSpec) -> Vec<String> {
    let (mut d, whole, spot) = match rotten(seed, hook) {
        Ok(rotten) => rotten,
        Err(e) => return vec![e],
    };
    let from = d.fs().ops_len();
    d.checkpoint();
    let mut out = judge(&look(&d), &whole, "a checkpoint of a damaged log");
    wear(&mut d);
    out.extend(judge(&look(&d), &whole, "after the log has gone"));
    out.extend(lost(&d, &spot, from, seed));
    d.reopen();
    out.extend(judge(&look(&d), &whole, "after a reopen"));
    out
}

/// The same for frames that an open with `salvage` declares lost.
fn salvaged(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = started(seed, hook);
    let Ok(whole) = look(&d) else { return vec!["cannot be read".into()] };
    let mut image = d.fs().kill_image();
    let record = whole.topic("safe").and_then(|t| t.get(SEQ)).map(|r| r.data.clone());
    let Some(spot) = record.and_then(|r| Spot::find(&image, &r)) else {
        return vec!["not in a log".into()];
    };
    let mut bytes = image.read(&spot.path).unwrap_or_default();
    bytes[spot.at] = spot.byte;
    image.put(&spot.path, &bytes);
    d.power(&image);
    d.tuning.salvage = true;
    if !d.open() {
        return vec!["salvage refuses".into()];
    }
    wear(&mut d);
    lost(&d, &spot, 0, seed)
}

/// Writes until every file of the log is replaced.
fn wear(d: &mut Driver) {
    for _ in 0..4 {
        for name in ["safe", "disk"] {
            d.append(name, &batch(12).size(300));
        }
        d.checkpoint();
        d.tick();
    }
}

/// Power cuts after which no file contains the damaged bytes.
fn lost(d: &Driver, spot: &Spot, from: usize, seed: u64) -> Vec<String> {
    let fs = d.fs();
    if fs.kill_image().read(&spot.path).is_some_and(|b| b.get(spot.at) == Some(&spot.byte)) {
        return vec![format!("{} is still there: nothing was tried", spot.path)];
    }
    let options = CrashOptions { random: 1, torn_bytes: 0, names: 2, single: false };
    let mut cursor = fs.crash_cursor();
    cursor.seek(from);
    loop {
        for survival in cursor.survivals(seed, &options) {
            if !spot.kept(&cursor.image(survival)) {
                let last = cursor.at().checked_sub(1).map(|i| fs.describe_op(i));
                let last = last.unwrap_or_default();
                return vec![format!("damaged bytes are not kept: {survival:?} after {last}")];
            }
        }
        if !cursor.advance() {
            return Vec::new();
        }
    }
}
