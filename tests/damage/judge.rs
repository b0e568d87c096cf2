//! What a damaged open may be, and what it must not.

use std::panic::{AssertUnwindSafe, catch_unwind};

use topics_engine::{Engine, Error};
use topics_env::sim::{CallKind, DiskImage, FaultKind};

use super::corpus::{Corpus, TAIL};
use crate::crash::{Mounted, panic_text};
use crate::oracle::{Observation, TopicObs, observe};

/// What one damaged open was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    Refused,
    Reported,
    Same,
}

/// Opens a damaged directory and judges what comes of it.
pub fn judge(c: &Corpus, damaged: &DiskImage, salvage: bool) -> Result<Met, String> {
    let mut plan = c.plan.clone();
    plan.tuning.salvage = salvage;
    let mut disk = Mounted::new(damaged, &plan);
    // A budget instead of a clock: whoever spends it hangs.
    for kind in [CallKind::Read, CallKind::Write, CallKind::Open, CallKind::Create] {
        disk.fs.fail_from(kind, 60_000, FaultKind::EIO);
    }
    let fs = disk.fs.clone();
    let run = AssertUnwindSafe(|| opened(c, &mut disk, salvage));
    let met = catch_unwind(run).unwrap_or_else(|p| Err(format!("panic: {}", panic_text(&*p))));
    if fs.faults_fired() > 0 {
        return Err("the op budget is spent".into());
    }
    met
}

fn opened(c: &Corpus, disk: &mut Mounted, salvage: bool) -> Result<Met, String> {
    let engine = match disk.open() {
        Ok(engine) => engine,
        Err(e) => return refused(&e),
    };
    let (seen, problems) = observe(&engine, c.plan.wall, 50);
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    let met = compare(c, &seen, salvage)?;
    if met == Met::Reported || disk.fs.ops_len().is_multiple_of(8) {
        lives_on(c, disk, engine, &seen, salvage)?;
    }
    Ok(met)
}

fn refused(e: &Error) -> Result<Met, String> {
    match e {
        Error::Corrupt { file, .. } if !file.is_empty() => Ok(Met::Refused),
        Error::Version { .. } => Ok(Met::Refused),
        e => Err(format!("refused without a place: {e:?}")),
    }
}

/// What was served stays so over a checkpoint and a reopen: nothing damaged is copied as whole.
fn lives_on(
    c: &Corpus,
    disk: &mut Mounted,
    engine: Engine,
    seen: &Observation,
    salvage: bool,
) -> Result<(), String> {
    // A checkpoint or a close that meets the damage may refuse, and then says so.
    let _ = engine.checkpoint();
    let _ = engine.close();
    drop(engine);
    let engine = match disk.open() {
        Ok(engine) => engine,
        Err(e) => return refused(&e).map(|_| ()),
    };
    let (again, problems) = observe(&engine, c.plan.wall, 50);
    if !problems.is_empty() {
        return Err(format!("after a checkpoint: {}", problems.join("; ")));
    }
    compare(c, &again, salvage).map_err(|e| format!("after a checkpoint: {e}"))?;
    for topic in &seen.topics {
        let later = again.topic(&topic.state.topic);
        let lost = topic.records.iter().find(|r| later.is_none_or(|l| l.get(r.seq) != Some(r)));
        if let Some(r) = lost.filter(|r| later.is_none_or(|l| l.tombstone(r.seq).is_none())) {
            return Err(format!("{}: seq {} went in a checkpoint", topic.state.topic, r.seq));
        }
    }
    Ok(())
}

fn compare(c: &Corpus, seen: &Observation, salvage: bool) -> Result<Met, String> {
    let mut met = Met::Same;
    for whole in &c.whole.topics {
        let name = &whole.state.topic;
        match seen.topic(name) {
            Some(t) => met = met.min(topic(c, whole, t, salvage)?),
            // Its creation was in the range that was given up, and reported as such.
            None if salvage => met = met.min(Met::Reported),
            None => return Err(format!("{name} is gone")),
        }
    }
    for t in &seen.topics {
        if c.whole.topic(&t.state.topic).is_none() {
            let known = c.world.names.contains_key(&t.state.topic);
            if !(salvage && known) {
                return Err(format!("{} was not there", t.state.topic));
            }
        }
    }
    Ok(met)
}

fn topic(c: &Corpus, whole: &TopicObs, t: &TopicObs, salvage: bool) -> Result<Met, String> {
    let name = &whole.state.topic;
    let mut met = Met::Same;
    for r in &whole.records {
        match t.get(r.seq) {
            Some(s) if s == r => {}
            Some(s) => return Err(format!("{name}: seq {} is {s:?}, was {r:?}", r.seq)),
            None if t.tombstone(r.seq).is_some() => met = Met::Reported,
            None if name == TAIL && c.name == "killed" => met = Met::Reported,
            None => return Err(format!("{name}: seq {} is missing in silence", r.seq)),
        }
    }
    for r in t.records.iter().filter(|r| whole.get(r.seq).is_none()) {
        // The frame that removed it was given up with the range around it.
        let attempted = c.world.attempts.iter().flat_map(|a| a.recs.iter());
        if !salvage || !attempted.into_iter().any(|a| a.data == r.data) {
            return Err(format!("{name}: seq {} was not there: {r:?}", r.seq));
        }
        met = Met::Reported;
    }
    let config = t.state.config == whole.state.config;
    if !salvage && (!config || t.state.epoch != whole.state.epoch) {
        return Err(format!("{name}: config or epoch differ"));
    }
    if t.state.next_seq < whole.state.next_seq && !(name == TAIL && c.name == "killed") {
        let (is, was) = (t.state.next_seq, whole.state.next_seq);
        return Err(format!("I2: {name}: next_seq {is}, was {was}"));
    }
    Ok(met)
}
