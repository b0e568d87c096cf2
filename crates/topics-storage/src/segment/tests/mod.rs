//! Segments over the simulated disk.

mod damage;
mod descriptors;
mod faults;
mod format;
mod mutants;
mod reclaim;
mod roundtrip;

use std::sync::Arc;

use topics_env::Env;
use topics_sim::{DiskImage, SimClock, SimFs, env_on};
use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::dir::Paths;
use crate::format::frame::{Flags, Frame, FrameType};

pub const TOPIC: TopicKey = TopicKey { topic_id: 7, epoch: 3 };
pub const STORE: [u8; 16] = *b"0123456789abcdef";

/// A record, or a hole.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rec {
    pub hole: bool,
    pub ts: u64,
    pub node: Vec<u8>,
    pub tag: Option<Vec<u8>>,
    pub attrs: Vec<u8>,
    pub meta: Vec<u8>,
    pub data: Vec<u8>,
}

impl Rec {
    pub fn new(ts: u64, data: &str) -> Self {
        Self { ts, data: data.as_bytes().to_vec(), ..Self::default() }
    }

    pub fn hole() -> Self {
        Self { hole: true, ..Self::default() }
    }

    pub fn tag(mut self, tag: &str) -> Self {
        self.tag = Some(tag.as_bytes().to_vec());
        self
    }

    pub fn expires(mut self, at: u64) -> Self {
        self.attrs.extend_from_slice(&[2, 8]);
        self.attrs.extend_from_slice(&at.to_le_bytes());
        self
    }

    pub fn frame(&self, seq: u64) -> Frame<'_> {
        let flag = |on: bool, bit: u8| if on { bit } else { 0 };
        Frame {
            kind: FrameType::Append,
            flags: Flags(
                flag(self.tag.is_some(), Flags::HAS_TAG)
                    | flag(!self.node.is_empty(), Flags::HAS_NODE)
                    | flag(!self.attrs.is_empty(), Flags::HAS_ATTRS)
                    | flag(!self.meta.is_empty(), Flags::HAS_META),
            ),
            topic_id: TOPIC.topic_id,
            seq,
            ts: self.ts,
            node: &self.node,
            tag: self.tag.as_deref().unwrap_or_default(),
            attrs: &self.attrs,
            meta: &self.meta,
            data: &self.data,
        }
    }
}

/// The inner hash, computed from the layout in the specification instead of by the code.
pub fn inner(f: &Frame<'_>) -> u64 {
    let mut bytes = [f.node, f.tag].concat();
    if !f.attrs.is_empty() {
        bytes.extend_from_slice(&(f.attrs.len() as u16).to_le_bytes());
        bytes.extend_from_slice(f.attrs);
    }
    if !f.meta.is_empty() {
        bytes.extend_from_slice(&(f.meta.len() as u32).to_le_bytes());
        bytes.extend_from_slice(f.meta);
    }
    bytes.extend_from_slice(f.data);
    xxh3_64(&bytes)
}

pub struct World {
    pub fs: Arc<SimFs>,
    pub segs: Arc<Segments>,
}

impl World {
    pub fn new(options: SegmentOptions) -> Self {
        Self::on(Arc::new(SimFs::new()), options, 1)
    }

    pub fn on(fs: Arc<SimFs>, options: SegmentOptions, generation: u64) -> Self {
        let env = env_on(&fs, &Arc::new(SimClock::new(1000)), generation);
        Self::with_env(fs, env, options, generation)
    }

    pub fn with_env(fs: Arc<SimFs>, env: Env, options: SegmentOptions, generation: u64) -> Self {
        let paths = Paths::new("/d");
        crate::dir::create_dir(&env, "test.root", paths.root()).unwrap();
        crate::dir::create_dir(&env, "test.topics", &paths.topics()).unwrap();
        let segs = Segments::new(env, paths, STORE, generation, options);
        Self { fs, segs }
    }

    /// The next process on this disk.
    pub fn next(image: &DiskImage, generation: u64) -> Self {
        Self::on(Arc::new(SimFs::from_image(image)), SegmentOptions::default(), generation)
    }

    pub fn restart(&self, generation: u64) -> Self {
        Self::next(&self.fs.kill_image(), generation)
    }

    pub fn segment(&self, meta: &SegmentMeta) -> Segment {
        self.segs.segment(TOPIC, *meta)
    }

    /// Runs one round that appends to `active`, or to a new segment that starts at `first`.
    pub fn append(
        &self,
        active: Option<&SegmentMeta>,
        first: u64,
        recs: &[Rec],
        seal: bool,
    ) -> crate::Result<SegmentMeta> {
        let mut round = Round::new(&self.segs);
        let mut writer = match active {
            Some(meta) => SegmentWriter::reopen(&self.segs, TOPIC, meta)?,
            None => SegmentWriter::create(&self.segs, TOPIC, first)?,
        };
        fill(&mut writer, recs)?;
        if seal {
            writer.seal()?;
        }
        let meta = round.add(writer)?;
        round.sync()?;
        Ok(meta)
    }

    /// A sealed segment from seq 1.
    pub fn sealed(&self, recs: &[Rec]) -> SegmentMeta {
        self.append(None, 1, recs, true).unwrap()
    }
}

pub fn fill(writer: &mut SegmentWriter, recs: &[Rec]) -> crate::Result<()> {
    for rec in recs {
        if rec.hole {
            writer.hole()?;
            continue;
        }
        let frame = rec.frame(writer.next_seq());
        writer.append(&frame, inner(&frame))?;
    }
    Ok(())
}

/// The content of one seq of a segment: a record, nothing, or damage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Got {
    Rec(u64, Rec),
    Corrupt(u64),
}

pub fn got(item: &Item<'_>) -> Got {
    match item {
        Item::Corrupt(seq) => Got::Corrupt(*seq),
        Item::Record(f) => {
            assert_eq!((f.topic_id, f.kind), (TOPIC.topic_id, FrameType::Append));
            Got::Rec(
                f.seq,
                Rec {
                    hole: false,
                    ts: f.ts,
                    node: f.node.to_vec(),
                    tag: (f.flags.0 & Flags::HAS_TAG != 0).then(|| f.tag.to_vec()),
                    attrs: f.attrs.to_vec(),
                    meta: f.meta.to_vec(),
                    data: f.data.to_vec(),
                },
            )
        }
    }
}

pub fn read_all(segment: &Segment) -> crate::Result<Vec<Got>> {
    let mut block = Block::new();
    let next = segment.read(0, u64::MAX, usize::MAX, &|_| false, &mut block)?;
    assert_eq!(next, segment.meta().last_seq + 1);
    Ok(block.items().map(|i| got(&i)).collect())
}

/// The expected result of [`read_all`].
pub fn want(first: u64, recs: &[Rec]) -> Vec<Got> {
    let seqs = recs.iter().zip(first..).filter(|(r, _)| !r.hole);
    seqs.map(|(r, s)| Got::Rec(s, r.clone())).collect()
}

/// Records of every shape: with and without each part, holes between.
pub fn sample(n: u64) -> Vec<Rec> {
    (0..n)
        .map(|i| {
            let mut rec = Rec::new(1000 + i / 2, &format!("record {i}"));
            match i % 6 {
                1 => rec = rec.tag(&format!("t{}", i % 5)),
                2 => rec.node = b"here".to_vec(),
                3 => rec.meta = b"{\"a\":\"b\"}".to_vec(),
                4 => rec = rec.tag("late").expires(5000 + i),
                5 => rec = Rec::hole(),
                _ => {}
            }
            rec
        })
        .collect()
}
