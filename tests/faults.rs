//! Calls that fail while the engine runs: the workload continues, then a restart, then a power cut;
//! the oracle judges each.

use std::collections::BTreeMap;

use topics_sim::{CallKind, CrashOptions, FaultKind, PageFate, Survival};

use crate::crash::{Plan, Point, PointCursor, probe, verdict};
use crate::oracle::Keep;
use crate::run::{Driver, HookSpec, Recording, Setup, batch};
use crate::workloads::{Workload, class};

/// One fault: the nth call of a kind fails in this way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    pub call: CallKind,
    pub nth: usize,
    pub kind: FaultKind,
}

/// The ways in which a kind of call can fail.
pub fn kinds(call: CallKind) -> Vec<FaultKind> {
    let fates = [PageFate::Kept, PageFate::Lost, PageFate::Reverted];
    let syncs = fates.map(|then| FaultKind::SyncFails { then });
    match call {
        CallKind::Write => vec![
            FaultKind::EIO,
            FaultKind::ENOSPC,
            FaultKind::EDQUOT,
            FaultKind::EFBIG,
            FaultKind::EINTR,
            FaultKind::ShortWrite,
            FaultKind::ZeroProgress,
        ],
        CallKind::Read => vec![FaultKind::EIO, FaultKind::EINTR, FaultKind::ShortWrite],
        CallKind::SyncData | CallKind::SyncFs => syncs.to_vec(),
        // Names are not read back from pages: a reverted name is lost.
        CallKind::SyncDir => [&syncs[..2], &[FaultKind::EMFILE]].concat(),
        CallKind::Create => vec![FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EMFILE],
        CallKind::Open | CallKind::List => vec![FaultKind::EIO, FaultKind::EMFILE],
        CallKind::Allocate | CallKind::SetLen => {
            vec![FaultKind::EIO, FaultKind::ENOSPC, FaultKind::EFBIG]
        }
        CallKind::CreateDir | CallKind::Rename => vec![FaultKind::EIO, FaultKind::ENOSPC],
        _ => vec![FaultKind::EIO],
    }
}

/// The number of calls of each kind that a workload makes.
pub fn calls(rec: &Recording) -> BTreeMap<CallKind, usize> {
    CallKind::ALL.into_iter().map(|k| (k, rec.lives[0].fs.calls(k))).collect()
}

/// Runs a workload with one fault in its first process; returns the problems.
pub fn run(w: &Workload, seed: u64, fault: Fault, hook: &HookSpec) -> Vec<String> {
    let setup = Setup { workload: w.name, seed, hook: hook.clone(), faults: true };
    let mut d = Driver::new(setup);
    d.fs().fail_nth(fault.call, fault.nth, fault.kind);
    if fault.kind == FaultKind::EMFILE {
        // The call runs again after files were closed for it.
        d.fs().fail_nth(fault.call, fault.nth, fault.kind);
    }
    (w.script)(&mut d);
    d.fs().clear_faults();
    d.fs().set_free_space(None);
    if fault.kind == FaultKind::EMFILE && d.engine.is_some() {
        goes_on(&mut d);
    }
    after(&mut d);
    let problems = d.problems();
    let rec = d.finish();
    if std::env::var("TOPICS_TRACE").is_ok() {
        rec.trace();
    }
    if !problems.is_empty() {
        return problems;
    }
    cut(&rec, hook)
}

/// After a shortage ends, every write succeeds without a restart.
fn goes_on(d: &mut Driver) {
    d.look();
    d.strict();
    d.append("safe", &batch(1).config(class(topics_engine::Durability::Fsync)));
    for _ in 0..3 {
        d.append("other", &batch(2).size(3000));
        d.pass(6_000);
        d.tick();
        d.checkpoint();
    }
}

/// After the fault: observe, restart, work, observe again.
fn after(d: &mut Driver) {
    d.look();
    d.kill();
    d.strict();
    if d.engine.is_none() && !d.open() {
        return;
    }
    d.append("safe", &batch(1).config(class(topics_engine::Durability::Fsync)).key("after"));
    d.append("other", &batch(2));
    d.look();
    d.tick();
    d.checkpoint();
    d.append("other", &batch(1).sync());
    d.look();
}

/// Power cuts at the end, of every kind except the random ones.
fn cut(rec: &Recording, hook: &HookSpec) -> Vec<String> {
    let mut position = PointCursor::new(rec);
    let life = rec.lives.len() - 1;
    let end = Point { life, at: rec.lives[life].fs.ops_len() };
    position.seek(end);
    let plan = Plan { sound: false, ..position.plan(end, hook) };
    let options = CrashOptions { random: 1, torn_bytes: 0, names: 1, single: false };
    let survivals = position.cursor.survivals(rec.seed, &options);
    let wanted = |s: &Survival| !matches!(s, Survival::Prefix(n) if n % 4 != 0);
    for survival in survivals.into_iter().filter(wanted) {
        let probed = probe(&position.cursor.image(survival), &plan);
        let found = verdict(&position.world, &probed, Keep::Power);
        if !found.is_empty() {
            let text = format!("power cut at the end, {survival:?}:");
            return std::iter::once(text).chain(found).collect();
        }
    }
    Vec::new()
}
