//! What a hostile disk does to an open.

use super::file_ranges::FIRST;
use super::*;
use crate::snapshot::ShardSnap;

/// Opens, checks what is kept, appends and closes uncleanly; `n` times.
fn live(env: &Env, shards: u32, times: u64) {
    let mut want: Option<Vec<u64>> = None;
    for run in 0..times {
        let (kept, opened) = open(env, shards);
        let seqs: Vec<u64> = kept.iter().filter(|k| k.0 == 0).map(|k| k.1).collect();
        if let Some(want) = &want {
            assert_eq!(&seqs, want, "run {run}");
        }
        let head = seqs.last().copied().unwrap_or(0);
        put(&opened.wal, 0, head + 1, 2, Level::Synced);
        want = Some([seqs, vec![head + 1, head + 2]].concat());
    }
}

#[test]
fn i1_a_crash_anywhere_in_an_open_does_not_hurt_the_opens_after_it() {
    let empty = |env: &Env| drop(open(env, 2));
    let (env, fs, _) = sim_env(7);
    empty(&env);
    let mut images = vec![fs];
    let (env, fs, _) = sim_env(7);
    workload(&env, &fs);
    let (env, fs) = mount(&fs.kill_image());
    empty(&env);
    images.push(fs);
    let mut n = 0;
    for fs in images {
        fs.all_crash_states(5, &CrashOptions::default(), &mut |s| {
            let (env, _) = mount(&s.image);
            live(&env, 2, 3);
            n += 1;
        });
    }
    assert!(n > 100, "{n}");
}

/// The names of the WAL files of shard 0, with their bytes.
fn logs(image: &DiskImage) -> Vec<(String, Vec<u8>)> {
    let wal = |n: &str| n.contains("shard-00/") && n.ends_with(".log");
    image.files().into_iter().filter(|(n, _)| wal(n)).collect()
}

/// The image with one byte of a file flipped.
fn flipped(image: &DiskImage, name: &str, at: usize) -> DiskImage {
    let mut bytes = image.read(name).unwrap();
    bytes[at] ^= 0x10;
    let mut image = image.clone();
    assert!(image.put(name, &bytes));
    image
}

/// What a strict open of a damaged image says, and what it keeps.
fn strict(image: &DiskImage) -> Result<Vec<u64>> {
    begin(&mount(image).0, 1, Mode::Strict).map(|o| replayed(&o).iter().map(|k| k.1).collect())
}

const START: usize = crate::format::wal_file::WAL_HEADER + 10;

#[test]
fn a_lost_start_of_the_only_file_is_damage() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    for i in 0..3 {
        put(&opened.wal, 0, i * 3 + 1, 3, Level::Synced);
    }
    let image = fs.kill_image();
    let name = logs(&image)[0].0.clone();
    // Its groups say what it said.
    assert_eq!(strict(&flipped(&image, &name, START)).unwrap(), (1..=9).collect::<Vec<_>>());
    let mut bytes = image.read(&name).unwrap();
    bytes[START..START + 200].fill(0);
    let mut zeroed = image.clone();
    zeroed.put(&name, &bytes);
    let e = strict(&zeroed).unwrap_err();
    assert!(matches!(&e, StorageError::Corrupt { file, .. } if name.ends_with(file)), "{e}");
}

/// Several generations, each killed, so that there are files of all kinds.
fn generations(times: u64) -> (DiskImage, u64) {
    let (env, fs, _) = sim_env(7);
    live(&env, 1, times);
    (fs.kill_image(), times * 2)
}

#[test]
fn i12_a_flip_of_any_byte_of_the_log_is_refused_or_changes_nothing() {
    let (image, head) = generations(3);
    let want: Vec<u64> = (1..=head).collect();
    let (mut refused, mut same) = (0, 0);
    for (name, bytes) in logs(&image) {
        let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
        for at in 0..used + 16 {
            match strict(&flipped(&image, &name, at)) {
                Err(StorageError::Corrupt { file, .. }) => {
                    assert!(name.ends_with(&file), "{name} {at}: names {file}");
                    refused += 1;
                }
                Err(e) => panic!("{name} {at}: {e}"),
                Ok(kept) if kept == want => same += 1,
                // The very last group of a killed process.
                Ok(kept) => assert_eq!(kept, want[..want.len() - 2], "{name} {at}"),
            }
        }
    }
    assert!(refused > 500 && same > 50, "{refused} refused, {same} same");
}

#[test]
fn salvage_gives_up_what_it_must_and_a_strict_open_passes_over_exactly_that() {
    let (image, head) = generations(3);
    let want: Vec<u64> = (1..=head).collect();
    let mut lossy = 0;
    for (name, bytes) in logs(&image) {
        let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
        for at in (0..used).step_by(3) {
            let what = format!("{name} {at}");
            let damaged = flipped(&image, &name, at);
            if !matches!(strict(&damaged), Err(StorageError::Corrupt { .. })) {
                continue;
            }
            let (env, fs) = mount(&damaged);
            let opening = match begin(&env, 1, Mode::Salvage) {
                Ok(opening) => opening,
                // Without a snapshot nobody knows what was below the first file that can be read.
                Err(e) => {
                    assert_eq!(name, logs(&image)[0].0, "{what}: {e}");
                    continue;
                }
            };
            let kept = replayed(&opening);
            let gaps: Vec<(u32, Vec<u8>)> = opening
                .losses()
                .map(|l| {
                    assert!(!l.announced && l.from_lsn <= l.to_lsn, "{what}: {l:?}");
                    let mut gap = Vec::new();
                    let body = Gap { from: l.from_lsn, to: l.to_lsn, reason: 1 };
                    body.encode_frame(&mut gap, 0, 0, 0);
                    (l.shard, gap)
                })
                .collect();
            assert!(kept.len() == want.len() || !gaps.is_empty(), "{what}: lost in silence");
            lossy += gaps.len();
            drop(opening.finish(&gaps).unwrap());
            let quarantined = fs.kill_image().dirs().iter().any(|d| d == "/db/damaged");
            assert_eq!(quarantined, !gaps.is_empty(), "{what}: damaged bytes are kept");
            let again = begin(&env, 1, Mode::Strict).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert!(again.losses().all(|l| l.announced), "{what}");
            assert_eq!(replayed(&again), kept, "{what}");
        }
    }
    assert!(lossy > 50, "{lossy}");
}

#[test]
fn an_old_current_is_noticed() {
    let (env, fs, _) = sim_env(7);
    let mut currents = Vec::new();
    for run in 0..3 {
        let (kept, opened) = open(&env, 1);
        // Only in the second run are there files beyond the first of their generation.
        for i in 0..if run == 1 { 100 } else { 6 } {
            put(&opened.wal, 0, kept.len() as u64 + i + 1, 1, Level::Synced);
            currents.push((run, fs.kill_image().read("/db/wal/shard-00/CURRENT").unwrap()));
        }
    }
    let image = fs.kill_image();
    let kept = strict(&image).unwrap();
    currents.dedup();
    let mut noticed = 0;
    for (run, old) in &currents[..currents.len() - 1] {
        let mut stale = image.clone();
        assert!(stale.put("/db/wal/shard-00/CURRENT", old));
        match strict(&stale) {
            Err(StorageError::Corrupt { file, .. }) => {
                assert_eq!(file, "wal/shard-00/CURRENT");
                let (env, _) = mount(&stale);
                let opening = begin(&env, 1, Mode::Salvage).unwrap();
                assert_eq!(replayed(&opening).len(), kept.len());
                noticed += 1;
            }
            Err(StorageError::Missing { .. }) => {}
            Ok(now) => panic!("run {run}: {} of {} are left", now.len(), kept.len()),
            Err(e) => panic!("{e}"),
        }
    }
    assert!(noticed >= 2, "{noticed}");
}

#[test]
fn i12_what_recovery_copied_is_known_to_be_durable() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    for i in 0..4 {
        put(&opened.wal, 0, i * 2 + 1, 2, Level::Written);
    }
    let (env, fs) = mount(&fs.kill_image());
    drop(open(&env, 1));
    let image = fs.kill_image();
    let name = "/db/wal/shard-00/wal-0000000002-0000000001.log";
    let bytes = image.read(name).unwrap();
    let used = bytes.iter().rposition(|b| *b != 0).unwrap() + 1;
    for at in 0..used {
        match strict(&flipped(&image, name, at)) {
            Ok(kept) => assert_eq!(kept.len(), 8, "byte {at}"),
            Err(e) => assert!(matches!(e, StorageError::Corrupt { .. }), "byte {at}: {e}"),
        }
    }
}

/// A snapshot that reflects shard 0 up to `lsn`.
fn reflect(env: &Env, n: u64, store_id: [u8; 16], lsn: u64) {
    let shard = ShardSnap { shard: 0, layout: 1, replay_lsn: lsn, last_lsn: lsn, synced_lsn: lsn };
    let body = SnapshotBody {
        store_id,
        generation: 1,
        layout: 1,
        shards: vec![shard],
        ..Default::default()
    };
    let mut bytes = snapshot::EncodedSnapshot::of(&body).unwrap();
    snapshot::write(env, &Paths::new("/db"), n, &mut bytes, || Ok(())).unwrap();
}

#[test]
fn damage_below_the_replay_position_costs_nothing() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    for i in 0..5 {
        put(&opened.wal, 0, i * 2 + 1, 2, Level::Synced);
    }
    reflect(&env, 1, opened.store.id, 6);
    let image = fs.kill_image();
    let name = logs(&image)[0].0.clone();
    let bytes = image.read(&name).unwrap();
    let find = |seq: u64| {
        let text = format!("value {seq}");
        bytes.windows(text.len()).position(|w| w == text.as_bytes()).unwrap()
    };
    for seq in 1..=4 {
        let kept = strict(&flipped(&image, &name, find(seq))).unwrap();
        assert_eq!(kept.iter().filter(|s| **s > 4).count(), 6, "{seq}: {kept:?}");
    }
    strict(&flipped(&image, &name, find(5))).unwrap_err();
    let (env, _) = mount(&flipped(&image, &name, find(5)));
    let opening = begin(&env, 1, Mode::Salvage).unwrap();
    let lost: Vec<_> = opening.losses().map(|l| (l.from_lsn, l.to_lsn)).collect();
    assert_eq!(lost, [(8, 9)], "the batch, and nothing that the snapshot reflects");
    let (from, to) = opening.losses().next().unwrap().bytes;
    let at = |seq: u64| find(seq) as u64;
    assert!(at(4) < from && from < at(5) && at(6) < to && to < at(7), "its bytes: {from} to {to}");
}

#[test]
fn a_group_of_which_only_a_part_is_known_to_be_durable_can_be_given_up() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    for i in 0..3 {
        put(&opened.wal, 0, i * 3 + 1, 3, Level::Written);
    }
    // Lsn 9 opens the last group, 10 to 12 are its frames.
    reflect(&env, 1, opened.store.id, 11);
    let image = fs.kill_image();
    let name = logs(&image)[0].0.clone();
    let bytes = image.read(&name).unwrap();
    let at = bytes.windows(7).position(|w| w == b"value 7").unwrap();
    let (env, _) = mount(&flipped(&image, &name, at));
    for seq in 20..23 {
        // The snapshot has lsn 10 and 11, nobody knows that 12 was durable.
        let (kept, opened) = open(&env, 1);
        assert_eq!(kept.len() as u64, seq - 20);
        put(&opened.wal, 0, seq, 1, Level::Synced);
    }
}

#[test]
fn frames_of_unknown_types_stop_the_open_or_are_passed_over() {
    for (kind, passes) in [(22u8, false), (127, false), (128, true), (255, true)] {
        let (env, _, _) = sim_env(7);
        let (_, opened) = open(&env, 1);
        let mut b = batch(1, 2);
        frame::encode(&mut b.tail, &frame::Frame::control(FrameType::Append, 0, 0, 0, b"new"));
        b.tail[4] = kind;
        let permit = opened.wal.reserve(0, b.bytes(), None).unwrap();
        let t = opened.wal.stage(b, permit).unwrap();
        opened.wal.wait(t, Level::Written).unwrap();
        put(&opened.wal, 0, 3, 2, Level::Written);
        drop(opened);
        if !passes {
            let e = begin(&env, 1, Mode::Salvage).err().unwrap();
            let found = u32::from(kind);
            assert!(
                matches!(&e, StorageError::Version { found: f, supported: 21, .. } if *f == found),
                "{e}"
            );
            continue;
        }
        for _ in 0..2 {
            let (kept, _) = open(&env, 1);
            assert_eq!(kept.iter().map(|k| k.1).collect::<Vec<_>>(), [1, 2, 3, 4], "{kind}");
        }
    }
}

/// A log of one shard in several files, its snapshot, which reflects it up to `lsn` of the last lsns of
/// all files but the newest, and these.
fn several_files(lsn: impl Fn(&[u64]) -> Option<u64>) -> (DiskImage, Vec<u64>) {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    for i in 0..60 {
        put(&opened.wal, 0, i * 3 + 1, 3, Level::Synced);
    }
    let ends: Vec<u64> = opened.wal.ended_files(0).iter().map(|f| f.last_lsn).collect();
    assert!(ends.len() > 2, "{ends:?}");
    if let Some(lsn) = lsn(&ends) {
        reflect(&env, 1, opened.store.id, lsn);
    }
    (fs.kill_image(), ends)
}

/// The ranges that an open with `salvage` declares lost.
fn declared_lost(image: &DiskImage) -> Vec<(u64, u64)> {
    let opening = begin(&mount(image).0, 1, Mode::Salvage).unwrap();
    opening.losses().map(|l| (l.from_lsn, l.to_lsn)).collect()
}

#[test]
fn an_unreadable_file_is_needed_if_its_last_frame_is_above_the_replay_position() {
    for above in [0, 1] {
        let (image, ends) = several_files(|ends| Some(ends[0] + above));
        let first = logs(&image)[0].0.clone();
        let damaged = flipped(&image, &first, 3);
        let newer: Vec<u64> = strict(&damaged).unwrap();
        let all = strict(&image).unwrap();
        assert!(all.ends_with(&newer) && newer.len() > 100, "{above}: {newer:?}");
        assert_eq!(declared_lost(&damaged), [], "{above}: up to {ends:?}");
    }
    // The file before the newest is not behind the end of the log.
    let (image, ends) = several_files(|ends| ends.last().copied());
    let before = logs(&image)[ends.len() - 1].0.clone();
    assert_eq!(declared_lost(&flipped(&image, &before, 3)), []);
    let (image, ends) = several_files(|ends| Some(ends[0] - 1));
    let first = logs(&image)[0].0.clone();
    let damaged = flipped(&image, &first, 3);
    let refused = strict(&damaged).unwrap_err().to_string();
    assert!(refused.contains(&first["/db/".len()..]), "{refused}");
    assert_eq!(declared_lost(&damaged), [(ends[0], ends[0])]);
}

#[test]
fn a_log_whose_first_file_is_gone_opens_where_its_loss_was_declared() {
    // Nothing says what the log held before: neither a snapshot nor an earlier salvage.
    let (image, _) = several_files(|_| None);
    let first = logs(&image)[0].0.clone();
    let mut without = image.clone();
    assert!(without.remove(&first));
    let cases = [(&without, "the file with lsn 1 "), (&flipped(&image, &first, 3), &first[4..])];
    for (damaged, named) in cases {
        for mode in [Mode::Strict, Mode::Salvage] {
            let refused = begin(&mount(damaged).0, 1, mode).err().unwrap().to_string();
            assert!(refused.contains(named), "{mode:?}, {named}: {refused}");
        }
    }
    // A snapshot of the empty log does: the loss is declared, and known without the snapshot.
    let (mut image, ends) = several_files(|_| Some(0));
    assert!(image.remove(&first));
    assert_eq!(declared_lost(&image), [(1, ends[0])]);
    let (env, fs) = mount(&image);
    let opening = begin(&env, 1, Mode::Salvage).unwrap();
    let kept: Vec<u64> = replayed(&opening).iter().map(|k| k.1).collect();
    let mut gap = Vec::new();
    Gap { from: 1, to: ends[0], reason: 1 }.encode_frame(&mut gap, 0, 0, 0);
    drop(opening.finish(&[(0, gap)]).unwrap());
    let mut image = fs.kill_image();
    assert_eq!(strict(&image).unwrap(), kept);
    assert!(image.remove("/db/meta/snapshot.1.bin"));
    assert_eq!(strict(&image).unwrap(), kept);
}

#[test]
fn a_damaged_start_is_passed_over_where_the_first_group_follows_it() {
    let (image, ends) = several_files(|_| None);
    let all = strict(&image).unwrap();
    let second = logs(&image)[1].0.clone();
    let start = flipped(&image, &second, START);
    assert_eq!((strict(&start).unwrap(), declared_lost(&start)), (all, vec![]), "{ends:?}");
    // Without the group after it the file may have had frames that nothing else tells of.
    let (image, _) = several_files(|ends| Some(ends[0] + 9));
    let whole = strict(&image).unwrap();
    let group = flipped(&flipped(&image, &second, START), &second, FIRST as usize + 10);
    let refused = strict(&group).unwrap_err().to_string();
    assert!(refused.contains("the Start frame is damaged"), "{refused}");
    assert_eq!(declared_lost(&group), []);
    let (env, _) = mount(&group);
    let opening = begin(&env, 1, Mode::Salvage).unwrap();
    let kept: Vec<u64> = replayed(&opening).iter().map(|k| k.1).collect();
    assert!(whole.ends_with(&kept) && kept.ends_with(&[178, 179, 180]), "{kept:?}");
}

#[test]
fn the_lsns_go_on_behind_the_last_that_is_kept() {
    let (env, fs, _) = sim_env(7);
    let (_, opened) = open(&env, 1);
    put(&opened.wal, 0, 1, 3, Level::Synced);
    let before = opened.wal.positions(0).written;
    put(&opened.wal, 0, 4, 3, Level::Synced);
    let after = opened.wal.positions(0).written;
    let image = fs.kill_image();
    opened.wal.close(true).unwrap();
    drop(opened);
    let last = |image: &DiskImage| {
        let (kept, opened) = open(&mount(image).0, 1);
        (kept.last().unwrap().1, opened.wal.positions(0).written)
    };
    assert_eq!(last(&fs.kill_image()), (6, after), "the frame of the close is no part of it");
    let name = logs(&image)[0].0.clone();
    let mut bytes = image.read(&name).unwrap();
    let at = bytes.windows(7).position(|w| w == b"value 6").unwrap();
    bytes[at..].fill(0);
    let mut torn = image.clone();
    assert!(torn.put(&name, &bytes));
    assert_eq!(last(&torn), (3, before), "nothing of a torn group");
}
