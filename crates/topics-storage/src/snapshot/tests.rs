use std::sync::Arc;

use proptest::prelude::*;
use topics_env::{Hook, Site};
use topics_sim::{
    CallKind, CrashOptions, DiskImage, FaultKind, Mutant, PageFate, SimClock, SimFs, SiteLog,
    env_on, sim_env,
};

use super::*;

const STORE: [u8; 16] = *b"0123456789abcdef";

fn paths() -> Paths {
    Paths::new("/d")
}

fn world(hook: Option<Arc<dyn Hook>>) -> (Env, Arc<SimFs>) {
    let (mut env, fs, _) = sim_env(1);
    crate::dir::create_dir(&env, "t", paths().root()).unwrap();
    crate::dir::create_dir(&env, "t", &paths().meta()).unwrap();
    if let Some(hook) = hook {
        env = env.with_hook(hook);
    }
    (env, fs)
}

fn remount(image: &DiskImage) -> Env {
    env_on(&Arc::new(SimFs::from_image(image)), &Arc::new(SimClock::new(1)), 2)
}

fn body(n: u64) -> SnapshotBody {
    let segment = SegmentMeta { first_seq: 1, last_seq: n, data_len: 64, ..Default::default() };
    let topic = |id: u64| TopicSnap {
        topic_id: id,
        name: format!("topic-{id}"),
        config: vec![1; id as usize],
        head: n,
        gaps: vec![GapSnap { from: 1, to: n, reason: 3 }; 2],
        segments: vec![segment; id as usize],
        idempotency: vec![IdempotencySnap { key: u128::MAX - 5, ..Default::default() }],
        sections: vec![Section { kind: 1, version: 2, bytes: vec![9; 3] }],
        ..Default::default()
    };
    SnapshotBody {
        store_id: STORE,
        generation: n,
        shards: vec![ShardSnap { shard: 1, replay_lsn: n, ..Default::default() }],
        topics: (0..4).map(topic).collect(),
        ..Default::default()
    }
}

fn put(env: &Env, n: u64) {
    save(env, n).unwrap();
}

fn save(env: &Env, n: u64) -> Result<u64> {
    write(env, &paths(), n, &mut EncodedSnapshot::of(&body(n))?, || Ok(()))
}

/// The newest snapshot with all its topics.
fn newest(found: LoadedSnapshots) -> Option<(u64, SnapshotBody)> {
    found.newest.map(|(n, s)| (n, s.whole().unwrap()))
}

fn whole(env: &Env, n: u64, bytes: &[u8]) -> Result<SnapshotBody> {
    decode(env, "f", n, STORE, bytes.to_vec())?.whole()
}

#[test]
fn the_newest_is_read() {
    let (env, _fs) = world(None);
    let none = load_newest(&env, &paths(), STORE).unwrap();
    assert!(none.newest.is_none() && none.rejected.is_empty());
    for n in [9, 10, 11] {
        put(&env, n);
    }
    let found = load_newest(&env, &paths(), STORE).unwrap();
    assert_eq!(found.numbers, [11, 10, 9]);
    assert_eq!(newest(found), Some((11, body(11))));
    assert_eq!(load(&env, &paths(), 9, STORE).unwrap().whole().unwrap(), body(9));
    env.fs.open(&paths().meta().join("snapshot.12.bin.tmp"), OpenMode::CreateNew).unwrap();
    prune(&env, &paths(), &[10, 11]).unwrap();
    let names: Vec<_> = env.fs.list(&paths().meta()).unwrap().into_iter().map(|e| e.name).collect();
    assert_eq!(names, ["snapshot.10.bin", "snapshot.11.bin"]);
}

#[test]
fn every_flipped_bit_and_every_truncation_is_detected() {
    let (env, fs) = world(None);
    put(&env, 1);
    put(&env, 2);
    let image = fs.kill_image();
    let good = image.read("/d/meta/snapshot.2.bin").unwrap();
    let check = |bytes: &[u8], what: String| {
        let mut image = image.clone();
        image.put("/d/meta/snapshot.2.bin", bytes);
        let found = load_newest(&remount(&image), &paths(), STORE).unwrap();
        match &found.rejected[..] {
            [(2, StorageError::Corrupt { file, .. })] => assert!(file.ends_with("snapshot.2.bin")),
            other => panic!("{what}: {other:?}"),
        }
        assert_eq!(newest(found), Some((1, body(1))), "{what}");
    };
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        check(&bytes, format!("bit {bit}"));
    }
    for len in 0..good.len() {
        check(&good[..len], format!("truncated to {len}"));
    }
    check(&[&good[..], b"x"].concat(), "longer".into());
    check(&image.read("/d/meta/snapshot.1.bin").unwrap(), "the older in its place".into());
}

#[test]
fn another_version_or_directory_is_refused() {
    let (env, fs) = world(None);
    put(&env, 1);
    put(&env, 2);
    assert!(load_newest(&env, &paths(), [7; 16]).unwrap().newest.is_none());
    let mut image = fs.kill_image();
    let mut bytes = image.read("/d/meta/snapshot.2.bin").unwrap();
    bytes[4] = 9;
    let sum = checksum(&bytes);
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
    image.put("/d/meta/snapshot.2.bin", &bytes);
    let refused = load_newest(&remount(&image), &paths(), STORE);
    assert!(matches!(refused, Err(StorageError::Version { found: 9, supported: 1, .. })));
}

#[test]
fn an_io_error_does_not_fall_back() {
    let (env, fs) = world(None);
    put(&env, 1);
    put(&env, 2);
    fs.fail_nth(CallKind::Read, 1, FaultKind::EIO);
    assert!(matches!(load_newest(&env, &paths(), STORE), Err(StorageError::Io { .. })));
}

#[test]
fn a_forged_length_allocates_nothing() {
    let (env, _fs) = world(None);
    let mut bytes = encode(1, &body(1)).unwrap();
    // The number of shards, after store id, generation and layout.
    let at = HEADER + 32;
    bytes[at..at + 8].copy_from_slice(&(1u64 << 40).to_le_bytes());
    let sum = checksum(&bytes);
    bytes[24..32].copy_from_slice(&sum.to_le_bytes());
    let refused = whole(&env, 1, &bytes);
    assert!(matches!(refused, Err(StorageError::Corrupt { offset: 32, .. })), "{refused:?}");
}

#[test]
fn an_abandoned_snapshot_leaves_the_old_one() {
    let (env, _fs) = world(None);
    put(&env, 1);
    let failed = write(&env, &paths(), 2, &mut EncodedSnapshot::of(&body(2)).unwrap(), || {
        Err(StorageError::Closed)
    });
    assert!(matches!(failed, Err(StorageError::Closed)));
    assert_eq!(list(&env, &paths()).unwrap(), [1]);
    assert_eq!(env.fs.list(&paths().meta()).unwrap().len(), 1);
}

#[test]
fn i9_a_failed_sync_is_an_error() {
    for (kind, fate) in [
        (CallKind::SyncData, PageFate::Lost),
        (CallKind::SyncData, PageFate::Kept),
        (CallKind::SyncDir, PageFate::Lost),
    ] {
        let (env, fs) = world(None);
        put(&env, 1);
        fs.fail_nth(kind, 1, FaultKind::SyncFails { then: fate });
        assert!(save(&env, 2).is_err());
        let found = newest(load_newest(&env, &paths(), STORE).unwrap()).unwrap();
        assert!(found == (1, body(1)) || (kind == CallKind::SyncDir && found == (2, body(2))));
    }
}

/// Checks that a crash at any point leaves the last written snapshot or the one being written.
fn survives(hook: Option<Arc<dyn Hook>>) -> std::result::Result<usize, String> {
    let (env, fs) = world(hook);
    let mut log = Vec::new();
    for n in 1..4 {
        save(&env, n).map_err(|e| e.to_string())?;
        log.push((fs.ops_len(), n));
        let keep: Vec<u64> = list(&env, &paths()).unwrap().into_iter().take(2).collect();
        prune(&env, &paths(), &keep).map_err(|e| e.to_string())?;
    }
    let (mut states, mut broken) = (0, None);
    fs.all_crash_states(1, &CrashOptions::default(), &mut |state| {
        states += 1;
        let done = log.iter().rev().find(|(at, _)| *at <= state.after_ops).map_or(0, |(_, n)| *n);
        let found = load_newest(&remount(&state.image), &paths(), STORE).unwrap();
        let rejected = format!("{:?}", found.rejected);
        let newest = newest(found).map_or(0, |(n, b)| {
            assert_eq!(b, body(n));
            n
        });
        if !(newest == done || newest == done + 1) || rejected != "[]" {
            broken = Some(format!("{done}: {newest}, {rejected}, {:?}", state.survival));
        }
    });
    broken.map_or(Ok(states), Err)
}

#[test]
fn i9_every_crash_leaves_a_snapshot_and_every_step_is_needed() {
    let states = survives(None).unwrap();
    assert!(states > 30, "only {states} states");
    let log = Arc::new(SiteLog::default());
    survives(Some(log.clone())).unwrap();
    let mut tried = 0;
    for (site, _) in log.sites() {
        if matches!(site, Site::Check(_)) {
            continue;
        }
        let mutant = Arc::new(Mutant::remove(site, None));
        assert!(survives(Some(mutant)).is_err(), "no crash state detects that {site:?} is missing");
        tried += 1;
    }
    assert_eq!(tried, 3);
}

#[test]
fn every_removed_check_is_detected() {
    for name in ["snapshot.checksum", "snapshot.number", "snapshot.store"] {
        let (env, _fs) = world(None);
        let mutant = Arc::new(Mutant::remove(Site::Check(name), None));
        let env = env.with_hook(mutant.clone());
        let good = encode(2, &body(2)).unwrap();
        let mut flipped = good.clone();
        flipped[HEADER + 20] ^= 1;
        let mut other = body(2);
        other.store_id[3] ^= 1;
        let passed = [flipped, encode(1, &body(1)).unwrap(), encode(2, &other).unwrap()]
            .iter()
            .filter(|bytes| whole(&env, 2, bytes).is_ok())
            .count();
        assert_eq!((passed, mutant.hits()), (1, mutant.hits().max(1)), "{name}");
    }
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    prop::collection::vec(any::<u8>(), 0..40)
}

fn section() -> impl Strategy<Value = Section> {
    (any::<u16>(), any::<u16>(), blob()).prop_map(|(kind, version, bytes)| Section {
        kind,
        version,
        bytes,
    })
}

fn segment() -> impl Strategy<Value = SegmentMeta> {
    (any::<[u64; 11]>(), any::<[bool; 4]>()).prop_map(|(n, b)| SegmentMeta {
        first_seq: n[0],
        last_seq: n[1],
        file_no: n[2],
        data_no: n[3],
        data_len: n[4],
        del_no: n[5],
        live_count: n[6],
        live_bytes: n[7],
        first_ts: n[8],
        last_ts: n[9],
        earliest_expires: n[10],
        sealed: b[0],
        cold: b[1],
        has_tags: b[2],
        has_attrs: b[3],
    })
}

fn topic() -> impl Strategy<Value = TopicSnap> {
    let lists = (
        prop::collection::vec(any::<(u64, u64, u8)>(), 0..4),
        prop::collection::vec(segment(), 0..5),
        prop::collection::vec(any::<(u128, [u64; 4])>(), 0..3),
        prop::collection::vec(section(), 0..3),
    );
    (any::<[u64; 13]>(), any::<u8>(), "\\PC{0,30}", blob(), lists).prop_map(
        |(n, evict_reason, name, config, (gaps, segments, keys, sections))| TopicSnap {
            topic_id: n[0],
            epoch: n[1],
            name,
            config,
            replay: ReplayPos { layout: n[2], lsn: n[3] },
            head: n[4],
            reserved_to: n[5],
            earliest_seq: n[6],
            evict_floor: n[7],
            evict_reason,
            delete_below: n[8],
            gaps: gaps.into_iter().map(|(from, to, reason)| GapSnap { from, to, reason }).collect(),
            last_ts: n[9],
            last_write_ts: n[10],
            live_count: n[11],
            live_bytes: n[12],
            segments,
            idempotency: keys
                .into_iter()
                .map(|(key, k)| IdempotencySnap {
                    key,
                    request: k[0],
                    first_seq: k[1],
                    last_seq: k[2],
                    expires_at: k[3],
                })
                .collect(),
            sections,
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_body_reads_back(
        topics in prop::collection::vec(topic(), 0..8),
        shards in prop::collection::vec(any::<(u32, [u64; 4])>(), 0..4),
        sections in prop::collection::vec(section(), 0..3),
        numbers: [u64; 6],
    ) {
        let shard = |(shard, n): (u32, [u64; 4])| ShardSnap {
            shard, layout: n[0], replay_lsn: n[1], last_lsn: n[2], synced_lsn: n[3],
        };
        let shards: Vec<ShardSnap> = shards.into_iter().map(shard).collect();
        let body = SnapshotBody {
            store_id: STORE,
            generation: numbers[0],
            layout: numbers[1],
            retired: shards.iter().rev().copied().collect(),
            shards,
            next_topic_id: numbers[2],
            reserved_topic_id: numbers[3],
            next_epoch: numbers[4],
            reserved_epoch: numbers[5],
            topics,
            sections,
        };
        let (env, _fs) = world(None);
        let bytes = encode(5, &body).unwrap();
        prop_assert_eq!(whole(&env, 5, &bytes).unwrap(), body);
    }

    #[test]
    fn any_body_decodes_or_fails(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = decode_body("f", bytes, 0).and_then(|s| s.whole().map_err(|e| e.to_string()));
    }
}

#[test]
fn many_topics_fit_the_allocation_limit() {
    let topic = TopicSnap::default();
    let body =
        SnapshotBody { store_id: STORE, topics: vec![topic; 20_000], ..SnapshotBody::default() };
    let bytes = encode(1, &body).unwrap();
    assert_eq!(decode_body("f", bytes, HEADER).unwrap().whole().unwrap(), body);
}

#[test]
fn topics_are_found_by_name_and_id_without_decoding_the_others() {
    let (env, _fs) = world(None);
    let mut all = body(7);
    // Ids need not ascend with the names.
    for (i, t) in all.topics.iter_mut().enumerate() {
        t.topic_id = 100 - i as u64;
    }
    let found = decode(&env, "f", 5, STORE, encode(5, &all).unwrap()).unwrap();
    let table = &found.topics;
    assert!(table.is_sorted());
    assert_eq!(table.len(), all.topics.len());
    for (i, t) in all.topics.iter().enumerate() {
        assert_eq!((table.named(&t.name), table.by_id(t.topic_id)), (Some(i), Some(i)));
        assert_eq!(&table.topic(i).unwrap(), t);
        let topic_header = table.topic_header(i).unwrap();
        assert_eq!(
            (topic_header.topic_id, topic_header.name, topic_header.head),
            (t.topic_id, &*t.name, t.head)
        );
        assert_eq!((&topic_header.segments, &topic_header.gaps), (&t.segments, &t.gaps));
        assert_eq!((topic_header.config, topic_header.live_bytes), (&t.config[..], t.live_bytes));
    }
    assert_eq!((table.named("topic"), table.named("topic-9"), table.by_id(3)), (None, None, None));
    // An entry that is copied in encoded form stays the same.
    let mut builder = SnapshotBuilder::begin(&all, 100).unwrap();
    (0..table.len()).for_each(|i| builder.entry(table.entry(i)));
    assert_eq!(builder.finish(&all).unwrap().file(5), encode(5, &all).unwrap());
    all.topics.reverse();
    let found = decode(&env, "f", 5, STORE, encode(5, &all).unwrap()).unwrap();
    assert!(!found.topics.is_sorted());
}
