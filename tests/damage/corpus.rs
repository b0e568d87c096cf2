//! The directories to damage: a closed and a killed one with every kind of file.

use std::ops::Range;

use topics_engine::{ConfigPatch, Durability, TopicMatch};
use topics_sim::DiskImage;

use crate::crash::{Mounted, Plan};
use crate::oracle::{Observation, World, observe};
use crate::run::{DIR, Driver, HookSpec, Setup, Tuning, batch};
use crate::workloads::class;

/// A directory, and the state that it serves when it is undamaged.
#[derive(Clone, Debug)]
pub struct Corpus {
    pub name: &'static str,
    pub image: DiskImage,
    /// The same directory at an earlier time.
    pub older: DiskImage,
    pub whole: Observation,
    pub world: World,
    pub plan: Plan,
    /// The positions of the records in segments.
    pub locations: Vec<RecordLocation>,
    /// The last group of the killed log: file and offset. Damage to it looks like a torn tail.
    pub last: Option<(String, usize)>,
}

/// A record in a `.data` file.
#[derive(Clone, Debug)]
pub struct RecordLocation {
    pub topic_id: u64,
    pub seq: u64,
    pub path: String,
    pub bytes: Range<usize>,
}

impl Corpus {
    /// Whether the bytes of a record in a segment differ in this image.
    pub fn harmed(&self, image: &DiskImage, topic_id: u64, seq: u64) -> bool {
        let mut locations =
            self.locations.iter().filter(|p| (p.topic_id, p.seq) == (topic_id, seq));
        locations.any(|p| {
            let (is, was) = (image.read(&p.path), self.image.read(&p.path));
            let part = |b: &Option<Vec<u8>>| {
                b.as_ref().and_then(|b| b.get(p.bytes.clone()).map(<[u8]>::to_vec))
            };
            part(&is) != part(&was)
        })
    }

    /// Whether the last group of the log is damaged in this image.
    pub fn tail_harmed(&self, image: &DiskImage) -> bool {
        self.last.as_ref().is_some_and(|(path, at)| {
            let (is, was) = (image.read(path).unwrap_or_default(), self.image.read(path));
            is.get(*at..) != was.unwrap_or_default().get(*at..)
        })
    }
}

/// The topic whose last record is the last group of the killed corpus; damage to it looks like a
/// torn tail.
pub(super) const TAIL: &str = "tail";

/// Two topics of equal shape and seq range, every frame type and every kind of file; one closed,
/// one killed.
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
        sound: true,
    };
    let engine = Mounted::new(&image, &plan).open().unwrap();
    let (whole, problems) = observe(&engine, plan.wall, 50);
    assert!(problems.is_empty(), "{problems:#?}");
    let locations = files(&image).iter().flat_map(|(path, bytes)| locations(path, bytes)).collect();
    let last = (!clean).then(|| last_group(&image, &whole));
    Corpus { name, image, older, whole, world: d.world(), plan, locations, last }
}

/// The records of a `.data` file, located by its format: from offset 64, `frame_len` first, the seq
/// at 5.
fn locations(path: &str, bytes: &[u8]) -> Vec<RecordLocation> {
    let mut out = Vec::new();
    let topic_id = path.split('/').nth(3).and_then(|id| id.parse().ok());
    let (Some(topic_id), true) = (topic_id, path.ends_with(".data")) else { return out };
    let mut at = 64;
    while let Some(head) = bytes.get(at..at + 13) {
        let len = u32::from_le_bytes(head[..4].try_into().unwrap()) as usize + 4;
        let seq = u64::from_le_bytes(head[5..].try_into().unwrap());
        out.push(RecordLocation { topic_id, seq, path: path.to_owned(), bytes: at..at + len });
        at += len;
    }
    out
}

/// The group that contains the last record of the killed log.
fn last_group(image: &DiskImage, whole: &Observation) -> (String, usize) {
    let record = &whole.topic(TAIL).unwrap().records.last().unwrap().data;
    let logs = files(image).into_iter().filter(|f| f.0.ends_with(".log"));
    let mut found = logs.filter_map(|(path, bytes)| {
        let at = bytes.windows(record.len()).position(|w| w == record)?;
        let group = bytes[..at].windows(5).rposition(|w| w == [0x46, 0, 0, 0, 14])?;
        Some((path, group))
    });
    found.next_back().unwrap()
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
    // A power cut creates a Gap: it loses the tail of `disk`.
    let mut cursor = d.fs().crash_cursor();
    while cursor.advance() {}
    let cut = cursor.image(topics_sim::Survival::DropAll);
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

/// Files whose content has no meaning: a few damages suffice.
pub fn is_filler(path: &str) -> bool {
    path.ends_with("meta/reserve")
}

/// Every file of the data directory except the lock.
pub fn files(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let all = image.files().into_iter();
    all.filter(|(p, _)| p.starts_with(DIR) && !p.ends_with(".topics.lock")).collect()
}
