//! Damaged directories: every open refuses and says where, reports the exact loss, or gives the
//! identical state.

use std::panic::{AssertUnwindSafe, catch_unwind};

use topics_engine::{ConfigPatch, Durability, Engine, Error, TopicMatch};
use topics_env::sim::{CallKind, DiskImage, FaultKind};

use crate::crash::{Mounted, Plan, panic_text};
use crate::oracle::{Observation, TopicObs, World, observe};
use crate::run::{DIR, Driver, HookSpec, Setup, Tuning, batch};
use crate::workloads::class;

/// A directory worth damaging, and what it serves when it is whole.
#[derive(Clone, Debug)]
pub struct Corpus {
    pub name: &'static str,
    pub image: DiskImage,
    /// The same directory some time before.
    pub older: DiskImage,
    pub whole: Observation,
    pub world: World,
    pub plan: Plan,
}

/// What one damaged open was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Met {
    Refused,
    Reported,
    Same,
}

/// The topic whose last record is the last group of the killed corpus: it cannot be told from a
/// torn tail.
const TAIL: &str = "tail";

/// Two topics of equal shape and seq range, every frame type and every kind of file; closed, and
/// killed.
pub fn corpora(seed: u64, hook: &HookSpec) -> Vec<Corpus> {
    [("closed", true), ("killed", false)].map(|(name, clean)| corpus(name, clean, seed, hook)).into()
}

fn corpus(name: &'static str, clean: bool, seed: u64, hook: &HookSpec) -> Corpus {
    let setup = Setup { workload: name, seed, hook: hook.clone(), faults: false };
    let mut d = Driver::new(setup);
    d.tuning = Tuning { segment_records: 8, ..Tuning::default() };
    let older = script(&mut d);
    if clean {
        d.close();
    } else {
        d.append(TAIL, &batch(1).size(60));
    }
    let image = d.fs().kill_image();
    let problems = d.problems();
    assert!(problems.is_empty(), "{problems:#?}");
    let plan = Plan {
        tuning: d.tuning,
        wall: d.world().wall,
        seed,
        hook: hook.clone(),
        retries: Vec::new().into(),
        thorough: true,
    };
    let engine = Mounted::new(&image, &plan).open().unwrap();
    let (whole, problems) = observe(&engine, plan.wall, 50);
    assert!(problems.is_empty(), "{problems:#?}");
    Corpus { name, image, older, whole, world: d.world(), plan }
}

fn script(d: &mut Driver) -> DiskImage {
    let twins = ["left", "right"];
    d.open();
    for name in twins {
        d.create(name, &class(Durability::Fsync));
    }
    for round in 0..4 {
        for name in twins {
            d.append(name, &batch(6).size(120).tags(&["red", "blue"]).node("n1").meta());
            d.append(name, &batch(3).size(90).binary().ttl(3_600_000));
        }
        d.append("disk", &batch(3).key(format!("k{round}")));
        d.checkpoint();
    }
    let older = d.fs().kill_image();
    for name in twins {
        d.delete(name, None, Some(TopicMatch::Eq(b"blue".to_vec())));
    }
    d.checkpoint();
    d.tick();
    d.append("mem", &batch(2).config(class(Durability::Memory)));
    d.append("disk", &batch(2));
    d.sync();
    d.append("disk", &batch(5).tags(&["lost"]));
    // A power cut, for a Gap; the tail of `disk` goes.
    let mut cursor = d.fs().crash_cursor();
    while cursor.advance() {}
    let cut = cursor.image(topics_env::sim::Survival::DropAll);
    d.power(&cut);
    d.open();
    d.append("disk", &batch(2));
    d.checkpoint();
    d.checkpoint();
    let cap = ConfigPatch { cap_records: Some(5), ..ConfigPatch::default() };
    d.append("capped", &batch(4).config(cap));
    d.append("capped", &batch(4));
    d.append("gone", &batch(2).tags(&["t"]));
    d.drop_topic("gone");
    for name in twins {
        d.append(name, &batch(4).size(100).tags(&["red"]).key("again"));
        d.append(name, &batch(2).binary().ttl(3_600_000).meta());
        d.delete(name, Some(4), None);
        d.delete(name, None, Some(TopicMatch::Glob(b"re".to_vec())));
        d.append(name, &batch(5).size(80).tags(&["green"]));
    }
    d.create("left", &ConfigPatch { priority: Some(Some(3)), ..ConfigPatch::default() });
    d.create("disk", &class(Durability::Fsync));
    d.create("disk", &class(Durability::Disk));
    for _ in 0..12 {
        d.append("left", &batch(1).size(200));
        d.append("right", &batch(1).size(200));
    }
    d.append(TAIL, &batch(3));
    d.sync();
    older
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
    if met == Met::Reported || disk.fs.ops_len() % 8 == 0 {
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

/// Every file of the data directory but the lock.
pub fn files(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let all = image.files().into_iter();
    all.filter(|(p, _)| p.starts_with(DIR) && !p.ends_with(".topics.lock")).collect()
}
