//! The files are what FORMAT.md says, built here from its text alone.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use super::*;
use crate::format::record::{Body, Delete, Idempotency, MatchKind, TopicCreate};

const SALT: u64 = 77;

/// A frame: the fields before the variable part, the variable part, its place.
struct Raw {
    kind: u8,
    flags: u8,
    topic: u64,
    seq: u64,
    ts: u64,
    node: &'static [u8],
    tag: &'static [u8],
    data: Vec<u8>,
    lsn: u64,
}

impl Raw {
    fn control(kind: u8, data: Vec<u8>, lsn: u64) -> Self {
        Self { kind, flags: 0, topic: 0, seq: 0, ts: 0, node: b"", tag: b"", data, lsn }
    }

    fn bytes(&self) -> Vec<u8> {
        let len = 42 + self.node.len() + self.tag.len() + self.data.len();
        let mut covered = vec![self.kind, self.flags];
        for v in [self.topic, self.seq, self.ts] {
            covered.extend(v.to_le_bytes());
        }
        covered.extend((self.node.len() as u16).to_le_bytes());
        covered.extend((self.tag.len() as u16).to_le_bytes());
        covered.extend((self.data.len() as u32).to_le_bytes());
        let rest = [self.node, self.tag, &self.data].concat();
        let seed =
            SALT ^ self.lsn.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ (len as u64).rotate_left(40);
        let mut hashed = covered.clone();
        hashed.extend(xxh3_64(&rest).to_le_bytes());
        let sum = xxh3_64_with_seed(&hashed, seed);
        [&(len as u32).to_le_bytes()[..], &covered, &rest, &sum.to_le_bytes()].concat()
    }
}

fn header() -> Vec<u8> {
    let mut b = b"TWAL".to_vec();
    b.extend(1u32.to_le_bytes());
    b.extend([1; 16]);
    b.extend(0u32.to_le_bytes());
    b.extend(1u32.to_le_bytes());
    for v in [1u64, 1, 1, SALT] {
        b.extend(v.to_le_bytes());
    }
    b.extend([0; 16]);
    b.extend(0u64.to_le_bytes());
    b.extend(0u64.to_le_bytes());
    let sum = xxh3_64(&b);
    b.extend(sum.to_le_bytes());
    b
}

fn group(lsn: u64, frames: u32, bytes: u64, synced: u64) -> Raw {
    let mut body = lsn.to_le_bytes().to_vec();
    body.extend(frames.to_le_bytes());
    body.extend(bytes.to_le_bytes());
    body.extend(synced.to_le_bytes());
    Raw::control(14, body, lsn)
}

/// Version 1, name "a", epoch 300, config [9], reserved_to 1024.
const CREATE: [u8; 11] = [1, 1, b'a', 251, 44, 1, 1, 9, 251, 0, 4];

#[test]
fn a_log_is_what_the_text_says() {
    let create = Raw { flags: 8, topic: 9, ts: 5, ..Raw::control(2, CREATE.to_vec(), 2) };
    let meta = b"{\"k\":\"v\"}";
    let mut data = vec![10, 0, 2, 8];
    data.extend(1_700_000_000_000u64.to_le_bytes());
    data.extend((meta.len() as u32).to_le_bytes());
    data.extend(meta);
    data.extend(b"payload");
    let record = Raw {
        flags: 1 | 2 | 16 | 32 | 64,
        topic: 9,
        seq: 1,
        ts: 5,
        node: b"n1",
        tag: b"eu:7",
        ..Raw::control(1, data, 3)
    };
    let (create, record) = (create.bytes(), record.bytes());
    let start = Raw::control(21, 1u64.to_le_bytes().to_vec(), 1).bytes();
    let opened = group(1, 2, (create.len() + record.len()) as u64, 0).bytes();
    let want = [header(), start.clone(), opened.clone(), create, record].concat();
    assert_eq!((start.len(), opened.len()), (54, 74));
    assert_eq!(opened[..5], [0x46, 0, 0, 0, 0x0e]);

    let (env, _, _) = sim_env(1);
    let wal = wal(&env, small());
    let log = Arc::new(Log::default());
    let mut head = Vec::new();
    let body = TopicCreate { name: "a".into(), epoch: 300, config: vec![9], reserved_to: 1024 };
    body.encode_frame(&mut head, 9, 0, 0);
    let mut records = Vec::new();
    let mut attrs = vec![2, 8];
    attrs.extend(1_700_000_000_000u64.to_le_bytes());
    let f = Frame {
        flags: Flags(Flags::BINARY),
        node: b"n1",
        tag: b"eu:7",
        attrs: &attrs,
        meta,
        ..Frame::control(FrameType::Append, 0, 0, 0, b"payload")
    };
    frame::encode(&mut records, &f);
    let commit = Arc::new(Silent);
    let b = Batch { head, records, commit, ..batch(&log, 1, 1, Level::Written) };
    let t = put(&wal, b).unwrap();
    wal.wait(t, Level::Synced).unwrap();
    let file = wal.file(0, FileKey(0)).unwrap();
    let mut found = vec![0; want.len() + 100];
    file.file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found[..want.len()], want);
    assert!(found[want.len()..].iter().all(|b| *b == 0), "zeros behind the last frame");
}

struct Silent;

impl Commit for Silent {
    fn apply(&self, _: &PlacedBatch<'_>) {}
    fn failed(&self, _: &StorageError) {}
}

#[test]
fn bodies_are_what_the_text_says() {
    let body_of = |bytes: Vec<u8>| frame::parse(&bytes).unwrap().0.data.to_vec();
    let mut out = Vec::new();
    let delete = Delete {
        before_seq: Some(250),
        matching: Some((MatchKind::Glob, b"x".to_vec())),
        seqs: vec![(251, 65_536)],
        bound: 1 << 32,
        why: 3,
    };
    delete.encode_frame(&mut out, 9, 0, 0);
    let want = [
        &[1, 1, 250, 1, 1, 1, b'x', 1, 251, 251, 0, 252, 0, 0, 1, 0, 253][..],
        &(1u64 << 32).to_le_bytes(),
        &[3],
    ]
    .concat();
    assert_eq!(body_of(out), want);

    let mut out = Vec::new();
    let key = 1u128 << 64;
    let body = Idempotency { key, request: 2, first_seq: 3, last_seq: 4, expires_at: 5 };
    body.encode_frame(&mut out, 9, 0, 0);
    let want = [&[1, 254][..], &key.to_le_bytes(), &[2, 3, 4, 5]].concat();
    assert_eq!(body_of(out), want);
}

#[test]
fn current_is_what_the_text_says() {
    let (env, _, _) = sim_env(1);
    let dir = Path::new("/");
    wal_file::write_current(&env, dir, &wal_file::name(1, 2)).unwrap();
    let name = "wal-0000000001-0000000002.log";
    let want = format!("{name} {:016x}\n", xxh3_64(name.as_bytes()));
    let file = env.fs.open(Path::new("/CURRENT"), OpenMode::Read).unwrap();
    let mut found = vec![0; file.len().unwrap() as usize];
    file.read_exact_at(&mut found, 0).unwrap();
    assert_eq!(found, want.as_bytes());
    assert_eq!(wal_file::read_current(&env, dir).unwrap().as_deref(), Some(name));
    // No flipped bit names another file.
    for bit in 0..found.len() * 8 {
        let mut bad = found.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        env.fs
            .open(Path::new("/CURRENT"), OpenMode::Truncate)
            .unwrap()
            .write_all_at(&bad, 0)
            .unwrap();
        assert!(wal_file::read_current(&env, dir).is_err(), "bit {bit}");
    }
}

#[test]
fn unknown_types_are_named_or_skipped() {
    let (env, fs, _) = sim_env(1);
    let log = |kind| {
        let strange = Raw::control(kind, b"?".to_vec(), 2).bytes();
        let next = Raw { topic: 9, seq: 1, ..Raw::control(1, b"x".to_vec(), 3) }.bytes();
        let opened = group(1, 2, (strange.len() + next.len()) as u64, 0).bytes();
        let start = Raw::control(21, 1u64.to_le_bytes().to_vec(), 1).bytes();
        let file = env.fs.open(Path::new("/log"), OpenMode::Truncate).unwrap();
        let bytes = [header(), start, opened, strange, next].concat();
        file.write_all_at(&bytes, 0).unwrap();
        let header = WalFileHeader::read(&env, &*file, "log").unwrap();
        let mut scan = Scan::new(&env, file, &header, "log", 1).unwrap();
        let mut kinds = Vec::new();
        while let Some(f) = scan.next_frame()? {
            kinds.push((f.lsn, f.frame.kind));
        }
        Ok(kinds)
    };
    let skipped: Result<_> = log(200);
    let want = [(1, FrameType::Group), (2, FrameType::Skippable), (3, FrameType::Append)];
    assert_eq!(skipped.unwrap(), want);
    match log(22) {
        Err(StorageError::Version { found: 22, supported: 21, .. }) => {}
        other => panic!("{other:?}"),
    }
    assert!(fs.violations().is_empty());
}
