//! Every file kind with a flipped bit, a truncated tail, or the file of another segment.

use roaring::RoaringBitmap;

use super::*;
use crate::StorageError;

struct Case {
    image: DiskImage,
    meta: SegmentMeta,
    recs: Vec<Rec>,
    dead: RoaringBitmap,
}

fn case(seal: bool) -> Case {
    let world = World::new(SegmentOptions::default());
    let recs = sample(12);
    let mut meta = world.append(None, 1, &recs, seal).unwrap();
    let dead: RoaringBitmap = [1, 3].into_iter().collect();
    let mut round = Round::new(&world.segs);
    meta.del_no = round.write_del(&world.segment(&meta), &dead).unwrap();
    round.sync().unwrap();
    Case { image: world.fs.kill_image(), meta, recs, dead }
}

impl Case {
    fn path(&self, part: FileKind) -> String {
        let files = self.meta.files(TOPIC.topic_id);
        let (name, _) = files.iter().find(|(_, p)| *p == part).unwrap();
        format!("/d/topics/7/{}", name.file(part))
    }

    /// A process on this disk, with one file replaced.
    fn with(&self, part: FileKind, bytes: &[u8]) -> World {
        let mut image = self.image.clone();
        assert!(image.put(&self.path(part), bytes));
        World::next(&image, 2)
    }

    /// Checks every lookup of a segment, except records and deletes.
    fn check_lookups(&self, segment: &Segment, what: &str) {
        let late: Vec<u64> = (1..=12).filter(|s| (s - 1) % 6 == 4).collect();
        assert_eq!(segment.tag_seqs(TagMatch::Eq(b"late"), 99).unwrap(), late, "{what}");
        assert_eq!(segment.attrs().unwrap().rows().len(), late.len(), "{what}");
        let entries = segment.entries(1, 12).unwrap();
        let lens = |s: u64| entries[s as usize - 1].payload_bytes();
        for (rec, seq) in self.recs.iter().zip(1..) {
            let len = if rec.hole { 0 } else { rec.frame(seq).payload_bytes() };
            assert_eq!(lens(seq), len, "{what}: entry {seq}");
        }
        assert_eq!(segment.seek_ts(1003).unwrap().0, 7, "{what}");
    }
}

/// Flips each bit of a file. `check` gets the seqs that the flip can damage: those whose frames contain it.
fn flip_each(case: &Case, part: FileKind, mut check: impl FnMut(&World, usize, &str)) {
    let good = case.image.read(&case.path(part)).unwrap();
    for bit in 0..good.len() * 8 {
        let mut bytes = good.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        let what = format!("{part:?} bit {} of byte {}", bit % 8, bit / 8);
        check(&case.with(part, &bytes), bit / 8, &what);
    }
}

#[test]
fn i12_a_flipped_bit_of_data_is_reported_at_its_record_alone() {
    for seal in [true, false] {
        let case = case(seal);
        let entries = {
            let world = World::next(&case.image, 2);
            world.segment(&case.meta).entries(1, 12).unwrap()
        };
        flip_each(&case, FileKind::Data, |world, at, what| {
            let segment = world.segment(&case.meta);
            let hit = entries
                .iter()
                .position(|e| (e.offset as usize..(e.offset + e.len) as usize).contains(&at));
            let found = match read_all(&segment) {
                Ok(found) => found,
                // A wrong version in the header is an error that names both versions.
                Err(StorageError::Version { .. }) if (4..7).contains(&at) => return,
                Err(e) => panic!("{what}: {e}"),
            };
            let want: Vec<Got> = want(1, &case.recs)
                .into_iter()
                .map(|g| match (g, hit) {
                    (Got::Rec(s, _), Some(n)) if s == n as u64 + 1 => Got::Corrupt(s),
                    (g, _) => g,
                })
                .collect();
            assert_eq!(found, want, "{what}");
            assert_eq!(world.segs.damage_counts().0, u64::from(hit.is_some()), "{what}");
            assert_eq!(*segment.deleted().unwrap(), case.dead, "{what}");
        });
    }
}

#[test]
fn a_flipped_bit_of_idx_changes_nothing() {
    for seal in [true, false] {
        let case = case(seal);
        flip_each(&case, FileKind::Idx, |world, at, what| {
            let segment = world.segment(&case.meta);
            match read_all(&segment) {
                Ok(found) => assert_eq!(found, want(1, &case.recs), "{what}"),
                Err(StorageError::Version { .. }) if (4..8).contains(&at) => return,
                Err(e) => panic!("{what}: {e}"),
            }
            // The time of a hole comes from the records.
            let hole_ts = !seal && at >= 32 && case.recs[(at - 32) / 20].hole;
            if !hole_ts {
                case.check_lookups(&segment, what);
            }
            assert_eq!(*segment.deleted().unwrap(), case.dead, "{what}");
        });
    }
}

#[test]
fn a_flipped_bit_of_tags_or_attrs_changes_nothing() {
    let case = case(true);
    for part in [FileKind::Tags, FileKind::Attrs] {
        flip_each(&case, part, |world, at, what| {
            let segment = world.segment(&case.meta);
            if (4..8).contains(&at) {
                let refused = segment.tag_seqs(TagMatch::Eq(b"late"), 99).is_err()
                    || segment.attrs().is_err();
                if refused {
                    return;
                }
            }
            case.check_lookups(&segment, what);
        });
    }
}

#[test]
fn a_flipped_bit_of_del_is_refused() {
    let case = case(true);
    flip_each(&case, FileKind::Del, |world, _, what| {
        let path = case.path(FileKind::Del);
        match world.segment(&case.meta).deleted() {
            Err(StorageError::Corrupt { file, .. }) => assert_eq!(file, path, "{what}"),
            Err(StorageError::Version { .. }) => {}
            other => panic!("{what}: {other:?}"),
        }
    });
}

#[test]
fn truncated_files_are_damage_or_are_rebuilt() {
    for seal in [true, false] {
        let case = case(seal);
        for (_, part) in case.meta.files(TOPIC.topic_id) {
            let good = case.image.read(&case.path(part)).unwrap();
            for len in 0..good.len() {
                let world = case.with(part, &good[..len]);
                let segment = world.segment(&case.meta);
                let named = world.segs.check_named(TOPIC, &[case.meta], true);
                let what = format!("{part:?} cut to {len}, sealed {seal}");
                match part {
                    FileKind::Data => {
                        assert!(matches!(named, Err(StorageError::Corrupt { .. })), "{what}");
                        let found = read_all(&segment).unwrap();
                        for (g, w) in found.iter().zip(want(1, &case.recs)) {
                            let Got::Rec(seq, _) = w else { unreachable!() };
                            assert!(*g == w || *g == Got::Corrupt(seq), "{what}");
                        }
                        assert_eq!(found.len(), want(1, &case.recs).len(), "{what}");
                        assert!(found.iter().any(|g| matches!(g, Got::Corrupt(_))), "{what}");
                    }
                    FileKind::Del => assert!(segment.deleted().is_err(), "{what}"),
                    _ => {
                        named.unwrap();
                        assert_eq!(read_all(&segment).unwrap(), want(1, &case.recs), "{what}");
                        case.check_lookups(&segment, &what);
                    }
                }
            }
        }
    }
}

#[test]
fn missing_files_are_damage_or_are_rebuilt() {
    let case = case(true);
    for (_, part) in case.meta.files(TOPIC.topic_id) {
        let mut image = case.image.clone();
        assert!(image.remove(&case.path(part)));
        let world = World::next(&image, 2);
        let segment = world.segment(&case.meta);
        let named = world.segs.check_named(TOPIC, &[case.meta], false);
        let missing = matches!(named, Err(StorageError::Missing { .. }));
        match part {
            FileKind::Data => {
                assert!(missing);
                assert!(matches!(read_all(&segment), Err(StorageError::Missing { .. })));
            }
            FileKind::Del => {
                assert!(missing);
                assert!(matches!(segment.deleted(), Err(StorageError::Missing { .. })));
            }
            _ => {
                assert!(!missing);
                assert_eq!(read_all(&segment).unwrap(), want(1, &case.recs));
                case.check_lookups(&segment, "missing");
            }
        }
    }
}

/// Two segments of the same shape, of two topics: no file of one is accepted for the other.
#[test]
fn swapped_files_are_detected() {
    let world = World::new(SegmentOptions::default());
    let mine = world.sealed(&sample(12));
    let strange: Vec<Rec> = sample(12)
        .into_iter()
        .map(|mut r| {
            r.data.reverse();
            r
        })
        .collect();
    let other = TopicKey { topic_id: 8, epoch: 4 };
    let mut writer = SegmentWriter::create(&world.segs, other, 1).unwrap();
    fill(&mut writer, &strange).unwrap();
    writer.seal().unwrap();
    let mut round = Round::new(&world.segs);
    let theirs = round.add(writer).unwrap();
    round.sync().unwrap();
    let image = world.fs.kill_image();
    let path =
        |m: &SegmentMeta, t: u64, p: FileKind| format!("/d/topics/{t}/{}", m.name(t).file(p));
    for parts in [
        &[FileKind::Data][..],
        &[FileKind::Idx],
        &[FileKind::Tags],
        &[FileKind::Attrs],
        &[FileKind::Data, FileKind::Idx],
        &[FileKind::Data, FileKind::Idx, FileKind::Tags, FileKind::Attrs],
    ] {
        let mut image = image.clone();
        for part in parts {
            let bytes = image.read(&path(&theirs, 8, *part)).unwrap();
            assert!(image.put(&path(&mine, 7, *part), &bytes));
        }
        let world = World::next(&image, 2);
        let segment = world.segment(&mine);
        let found = read_all(&segment).unwrap();
        let good = want(1, &sample(12));
        // Without its own index, the holes of a segment are unknown.
        let unknown = parts.contains(&FileKind::Data) && parts.contains(&FileKind::Idx);
        assert_eq!(found.len(), if unknown { 12 } else { good.len() });
        if parts.contains(&FileKind::Data) {
            assert!(found.iter().all(|g| matches!(g, Got::Corrupt(_))), "{parts:?}: {found:?}");
        } else {
            assert_eq!(found, good, "{parts:?}");
            assert_eq!(segment.attrs().unwrap().rows().len(), 2);
            assert_eq!(segment.tag_seqs(TagMatch::Eq(b"late"), 99).unwrap(), [5, 11]);
        }
    }
}

#[test]
fn i12_no_frame_is_valid_at_another_position() {
    let world = World::new(SegmentOptions::default());
    let recs: Vec<Rec> = (0..4).map(|i| Rec::new(1, &format!("same length {i}"))).collect();
    let meta = world.sealed(&recs);
    let file = format!("/d/topics/7/{}", meta.name(7).file(FileKind::Data));
    let mut image = world.fs.kill_image();
    let mut bytes = image.read(&file).unwrap();
    let len = (bytes.len() - 64) / 4;
    let (a, b) = bytes[64..].split_at_mut(len);
    a.swap_with_slice(&mut b[..len]);
    assert!(image.put(&file, &bytes));
    let found = read_all(&World::next(&image, 2).segment(&meta)).unwrap();
    assert_eq!(found[..2], [Got::Corrupt(1), Got::Corrupt(2)]);
    assert_eq!(found[2..], want(1, &recs)[2..]);
}

#[test]
fn an_io_error_is_neither_missing_nor_corrupt() {
    use topics_sim::{CallFilter, CallKind, FaultKind};
    let case = case(true);
    for (part, name) in
        [(FileKind::Data, ".data"), (FileKind::Idx, ".idx"), (FileKind::Del, ".del")]
    {
        for nth in 1..4 {
            let world = World::next(&case.image, 2);
            let calls = CallFilter::on_path(CallKind::Read, name);
            world.fs.fail_nth(calls, nth, FaultKind::EIO);
            let segment = world.segment(&case.meta);
            let outcome = match part {
                FileKind::Del => segment.deleted().map(|_| Vec::new()),
                _ => read_all(&segment),
            };
            if world.fs.faults_fired() > 0 {
                assert!(matches!(outcome, Err(StorageError::Io { .. })), "{part:?} {nth}");
            } else {
                assert!(nth > 1);
            }
            world.fs.clear_faults();
            assert_eq!(read_all(&segment).unwrap(), want(1, &case.recs), "the error is temporary");
            assert_eq!(world.segs.damage_counts(), (0, 0));
        }
    }
}
