//! What is damaged: a closed and a killed directory with everything in it.

use topics_engine::{ConfigPatch, Durability, TopicMatch};
use topics_env::sim::DiskImage;

use crate::crash::{Mounted, Plan};
use crate::oracle::{Observation, World, observe};
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

/// The topic whose last record is the last group of the killed corpus: it cannot be told from a
/// torn tail.
pub(super) const TAIL: &str = "tail";

/// Two topics of equal shape and seq range, every frame type and every kind of file; closed, and
/// killed.
pub fn corpora(seed: u64, hook: &HookSpec) -> Vec<Corpus> {
    [("closed", true), ("killed", false)]
        .map(|(name, clean)| corpus(name, clean, seed, hook))
        .into()
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
        journal: false,
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

/// Every file of the data directory but the lock.
pub fn files(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let all = image.files().into_iter();
    all.filter(|(p, _)| p.starts_with(DIR) && !p.ends_with(".topics.lock")).collect()
}
