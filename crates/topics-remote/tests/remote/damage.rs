//! Damaged objects are never believed: every byte changed, every length, every part exchanged.

use bytes::Bytes;
use topics_env::objects::ObjectStore;
use topics_remote::RemoteError;
use topics_remote::format::base::{
    Base, BaseDeletes, BasePack, BaseRows, BaseSegment, BaseTail, DeadObjects, EarlierBase, Place,
    Span,
};
use topics_remote::format::keys::Serial;
use topics_remote::format::pack::{self, PackDirectory, PackEntry, PackWriter, SegmentFiles};
use topics_remote::format::round::{self, RoundPart, RoundRows, RoundWriter, WAL_HEADER};
use topics_remote::format::sealed::{HEADER, ObjectKind, SealedObject};
use topics_remote::read;
use topics_sim::ObjectOp;

use crate::support::{BuiltSegment, World, header, segment, sized};

fn pack_of(number: u64, segments: &[BuiltSegment]) -> (SealedObject, PackDirectory) {
    let world = World::new(1);
    let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, number), 0);
    for s in segments {
        writer.push_segment(&world.env, &s.files()).unwrap();
    }
    writer.finish().unwrap()
}

/// A pack with an entry of each kind.
fn small_pack(number: u64) -> (SealedObject, PackDirectory) {
    let world = World::new(1);
    let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, number), 0);
    writer.push_segment(&world.env, &segment(7, 1, 5, 20, true).files()).unwrap();
    let active = segment(7, 6, 3, 10, false);
    let from = active.files[0].len() / 2;
    writer.push_tail(&world.env, active.topic, &active.meta, (&active.files[0], from)).unwrap();
    writer.push_deletes(77, b"a bitmap").unwrap();
    writer.push_rows("7.stage", b"staged rows").unwrap();
    writer.finish().unwrap()
}

fn small_round() -> SealedObject {
    let part = |lsn| RoundPart {
        wal_header: [lsn as u8; WAL_HEADER],
        file_offset: 104,
        first_lsn: lsn,
        end_lsn: lsn + 4,
        synced_lsn: lsn,
        offset: 0,
        len: 0,
        hash: 0,
    };
    let mut writer = RoundWriter::new(header(ObjectKind::Round, 3, 9), 1234);
    writer.push(part(10), b"frames of shard 0");
    writer.push(part(77), b"and of shard 1");
    let pack = BasePack { serial: Serial { epoch: 3, number: 1 }, len: 900, hash: 1 << 77 };
    let place = Place { pack, offset: 64, len: 99 };
    writer.push_rows(RoundRows { name: "7.stage".to_owned(), place });
    writer.finish()
}

fn small_base() -> Base {
    let object = small_pack(5).0.object;
    let serial = |epoch, number| Serial { epoch, number };
    let pack = BasePack { serial: serial(3, 5), len: object.len, hash: object.hash };
    let at = |offset| Span { pack: 0, offset, len: 3 };
    let earlier = EarlierBase {
        serial: serial(2, 7),
        made_ms: 5,
        stored_ms: 6,
        first_round: 7,
        len: 900,
        hash: 1 << 70,
    };
    Base {
        header: header(ObjectKind::Base, 3, 2),
        made_ms: 99,
        first_round: 4,
        packs_settled: 5,
        packs: vec![pack],
        segments: vec![BaseSegment { file_no: 2, pack: 0, offset: 64, lens: [9, 8, 0, 7] }],
        tails: vec![BaseTail { file_no: 3, from: 0, at: at(90) }],
        deletes: vec![BaseDeletes { del_no: 4, at: at(93) }],
        rows: vec![BaseRows { name: "7.stage".to_owned(), at: at(96) }],
        kept: vec![earlier],
        dead: vec![DeadObjects::one(ObjectKind::Pack, serial(3, 1), serial(3, 2))],
        snapshot: b"the snapshot".to_vec(),
    }
}

/// Every damaged form of an object: each byte changed (at the release gate: each bit), each prefix,
/// zeroed and exchanged ranges, bytes appended, inserted and removed.
fn damaged_forms(bytes: &Bytes, mut visit: impl FnMut(&str, usize, &[u8])) -> u64 {
    let mut forms = 0;
    let mut visit = |what: &str, at, form: Vec<u8>| {
        if form[..] != bytes[..] {
            forms += 1;
            visit(what, at, &form);
        }
    };
    let masks: &[u8] = if sized(0, 0, 1) == 1 { &[1, 2, 4, 8, 16, 32, 64, 128] } else { &[1, 128] };
    for at in 0..bytes.len() {
        for mask in masks {
            let mut form = bytes.to_vec();
            form[at] ^= mask;
            visit("changed byte", at, form);
        }
        visit("truncated", at, bytes[..at].to_vec());
        visit("beginning removed", at + 1, bytes[at + 1..].to_vec());
        let mut form = bytes.to_vec();
        form.remove(at);
        visit("byte removed", at, form);
        let mut form = bytes.to_vec();
        form.insert(at, 0);
        visit("byte inserted", at, form);
    }
    for at in (0..bytes.len()).step_by(16) {
        for len in [8, 16, 64] {
            let end = (at + len).min(bytes.len());
            let mut form = bytes.to_vec();
            form[at..end].fill(0);
            visit("zeroed", at, form);
            let mut form = bytes.to_vec();
            form.rotate_left(at.max(1));
            visit("rotated", at, form);
        }
    }
    visit("appended", bytes.len(), [bytes, &[0][..]].concat());
    visit("twice", bytes.len(), [&bytes[..], &bytes[..]].concat());
    forms
}

#[test]
fn a_pack_is_read_as_it_was_written() {
    let segments =
        [segment(7, 1, 300, 1000, true), segment(7, 301, 2, 10, true), segment(9, 1, 4, 5, true)];
    let (object, directory) = pack_of(5, &segments);
    let whole = &object.object;
    assert_eq!(pack::verify(&whole.key, Some(whole.hash), &object.bytes).unwrap(), directory);
    assert_eq!(directory.segments().count(), 3);
    let of = |p: &pack::PackPart| &object.bytes[p.offset as usize..(p.offset + p.len) as usize];
    for (entry, built) in directory.segments().zip(&segments) {
        assert_eq!((entry.topic, entry.file_no), (built.topic, built.meta.file_no));
        for (part, bytes) in entry.parts.iter().zip(&built.files) {
            assert!(if part.len == 0 { bytes.is_empty() } else { of(part) == &bytes[..] });
        }
    }
}

#[test]
fn the_other_entries_of_a_pack_are_files_verbatim() {
    let (object, directory) = small_pack(5);
    let of = |p: &pack::PackPart| &object.bytes[p.offset as usize..(p.offset + p.len) as usize];
    let active = segment(7, 6, 3, 10, false);
    let at = active.files[0].len() / 2;
    assert_eq!(directory.entries.len(), 4);
    for entry in &directory.entries[1..] {
        let part = of(&entry.parts()[0]);
        match entry {
            PackEntry::Tail { file_no, from, .. } => {
                assert_eq!((*file_no, *from), (active.meta.file_no, at as u64));
                assert_eq!(part, &active.files[0][at..]);
            }
            PackEntry::Deletes { del_no, .. } => {
                assert_eq!((*del_no, part), (77, &b"a bitmap"[..]))
            }
            PackEntry::Rows { name, .. } => {
                assert_eq!((&name[..], part), ("7.stage", &b"staged rows"[..]));
            }
            PackEntry::Segment(_) => panic!("{entry:?}"),
        }
    }
}

/// A pack with nothing but entries of one kind, as short as they can be.
#[test]
fn a_pack_of_any_one_kind_is_read_as_it_was_written() {
    let world = World::new(6);
    let sealed = segment(7, 1, 1, 1, true);
    let active = segment(7, 2, 1, 1, false);
    type Push<'a> = &'a dyn Fn(&mut PackWriter) -> topics_remote::Result<()>;
    let kinds: [(&str, Push<'_>); 6] = [
        ("segment", &|p| p.push_segment(&world.env, &sealed.files())),
        ("tail", &|p| p.push_tail(&world.env, active.topic, &active.meta, (&active.files[0], 0))),
        ("deletes", &|p| p.push_deletes(0, b"d")),
        ("rows", &|p| p.push_rows("stage-0000000000000001.rows", b"r")),
        ("rows with a short name", &|p| p.push_rows("r", b"r")),
        ("rows without a name", &|p| p.push_rows("", b"r")),
    ];
    for (kind, push) in kinds {
        let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, 5), 0);
        push(&mut writer).unwrap();
        let (object, written) = writer.finish().unwrap();
        let key = &object.object.key;
        let found = pack::verify(key, Some(object.object.hash), &object.bytes);
        assert_eq!(found.ok(), Some(written), "{kind}");
        let forms = damaged_forms(&object.bytes, |what, at, form| {
            assert!(pack::verify(key, None, form).is_err(), "{kind}: {what} at {at}");
        });
        assert!(forms > 0);
    }
}

#[test]
fn a_full_pack_takes_no_more_entries() {
    let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, 5), 0);
    assert!(writer.is_empty());
    let mut n = 0;
    while !writer.is_full() {
        writer.push_deletes(n, b"d").unwrap();
        n += 1;
    }
    assert_eq!(n, pack::MAX_ENTRIES as u64);
    let e = writer.push_deletes(n, b"d").unwrap_err();
    assert!(matches!(e, RemoteError::Usage { .. }), "{e}");
    let (object, directory) = writer.finish().unwrap();
    assert_eq!(directory.entries.len(), pack::MAX_ENTRIES);
    pack::verify(&object.object.key, None, &object.bytes).unwrap();
}

/// What a caller may not put into a pack: the pack stays as it was.
#[test]
fn entries_without_bytes_and_segments_out_of_order_are_refused() {
    let world = World::new(7);
    let (one, two) = (segment(7, 1, 2, 5, true), segment(7, 3, 2, 5, true));
    let active = segment(7, 5, 2, 5, false);
    let end = active.files[0].len();
    let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, 5), 0);
    writer.push_segment(&world.env, &two.files()).unwrap();
    let tail = |w: &mut PackWriter, from| {
        w.push_tail(&world.env, active.topic, &active.meta, (&active.files[0], from))
    };
    let no_idx = SegmentFiles { files: [&two.files[0], b"", b"", b""], ..two.files() };
    let no_files = SegmentFiles { files: [b""; pack::PARTS.len()], ..two.files() };
    for _ in 0..2 {
        let before = writer.len();
        let refused = [
            ("before the last", writer.push_segment(&world.env, &one.files())),
            ("twice", writer.push_segment(&world.env, &two.files())),
            ("without .idx", writer.push_segment(&world.env, &no_idx)),
            ("without files", writer.push_segment(&world.env, &no_files)),
            ("an empty tail", tail(&mut writer, end)),
            ("a tail beyond its file", tail(&mut writer, end + 1)),
            ("no deletes", writer.push_deletes(1, b"")),
            ("no rows", writer.push_rows("rows", b"")),
        ];
        for (what, result) in refused {
            assert!(matches!(result, Err(RemoteError::Usage { .. })), "{what}: {result:?}");
        }
        assert_eq!(writer.len(), before);
        // The second time after another entry: then no segment follows.
        tail(&mut writer, 0).unwrap();
    }
    let (object, directory) = writer.finish().unwrap();
    assert_eq!(directory.entries.len(), 3);
    pack::verify(&object.object.key, None, &object.bytes).unwrap();
    let empty = PackWriter::new(header(ObjectKind::Pack, 3, 6), 0).finish();
    assert!(matches!(empty, Err(RemoteError::Usage { .. })), "{empty:?}");
}

#[test]
fn a_directory_is_read_in_one_request_if_it_is_small() {
    let world = World::new(2);
    let store = world.bucket.client(1);
    let pack = small_pack(5).0;
    store.create(&pack.object.key, &pack.bytes).unwrap();
    let directory = pack::verify(&pack.object.key, None, &pack.bytes).unwrap();
    // If it is longer than the first fetch: the first fetch, the footer, the directory.
    for (first_fetch, requests) in [(read::FIRST_FETCH, 1), (200, 3), (0, 3)] {
        let before = world.bucket.count(ObjectOp::Get);
        let found = read::pack_directory(&store, &world.retry(), &pack.object, first_fetch);
        assert_eq!(found.unwrap(), directory);
        assert_eq!(world.bucket.count(ObjectOp::Get) - before, requests);
    }
}

#[test]
fn no_damage_of_a_pack_is_believed() {
    let (object, directory) = small_pack(5);
    let (key, hash) = (&object.object.key, object.object.hash);
    pack::verify(key, None, &object.bytes).unwrap();
    let whole = damaged_forms(&object.bytes, |what, at, form| {
        for hash in [None, Some(hash)] {
            let found = pack::verify(key, hash, form);
            assert!(found.is_err(), "{what} at {at} of {} was believed", object.bytes.len());
        }
    });
    // A reader of the directory alone: it fails, or finds the directory as it was written.
    let dir_at =
        directory.entries.iter().flat_map(PackEntry::parts).map(|p| p.offset + p.len).max();
    let dir_at = dir_at.unwrap() as usize;
    let (mut refused, mut same) = (0, 0);
    let world = World::new(3);
    let (store, retry) = (world.bucket.client(1), world.retry());
    let partial = damaged_forms(&object.bytes, |what, at, form| {
        world.bucket.tamper(key, Some(Bytes::copy_from_slice(form)));
        match read::pack_directory(&store, &retry, &object.object, read::FIRST_FETCH) {
            Err(_) => refused += 1,
            Ok(found) => {
                assert_eq!(found, directory, "{what} at {at}");
                assert!(form[dir_at..] == object.bytes[dir_at..], "{what} at {at}");
                same += 1;
            }
        }
    });
    println!("{whole} damaged packs; of {partial} directories {refused} refused, {same} intact");
    assert!(refused > 0 && same > 0);
}

#[test]
fn no_damage_of_a_round_or_a_base_is_believed() {
    let round = small_round();
    let base = small_base();
    let sealed = base.seal();
    let key = &sealed.object.key;
    assert_eq!(Base::verify(key, Some(sealed.object.hash), &sealed.bytes).unwrap(), base);
    let directory = round::verify(&round.object.key, &round.bytes).unwrap();
    let (first, second) = (&directory.parts[0], &directory.parts[1]);
    assert_eq!(round.bytes[first.offset as usize..second.offset as usize], *b"frames of shard 0");
    let rounds = damaged_forms(&round.bytes, |what, at, form| {
        let found = round::verify(&round.object.key, form);
        assert!(found.is_err(), "{what} at {at} of {} was believed", round.bytes.len());
    });
    let bases = damaged_forms(&sealed.bytes, |what, at, form| {
        let found = Base::verify(key, None, form);
        assert!(found.is_err(), "{what} at {at} of {} was believed", sealed.bytes.len());
    });
    println!("{rounds} damaged rounds, {bases} damaged bases");
}

#[test]
fn a_valid_object_under_another_key_is_refused() {
    let (five, six) = (small_pack(5).0, small_pack(6).0);
    assert!(pack::verify(&five.object.key, None, &six.bytes).is_err());
    assert!(pack::verify(&six.object.key, Some(five.object.hash), &six.bytes).is_err());
    let round = small_round();
    let other = round.object.key.replace("0009", "0008");
    assert!(round::verify(&other, &round.bytes).is_err());
    let sealed = small_base().seal();
    assert!(Base::verify(&sealed.object.key.replace("0002", "0001"), None, &sealed.bytes).is_err());
    assert!(Base::verify(&round.object.key, None, &round.bytes).is_err());
    let world = World::new(4);
    let store = world.bucket.client(1);
    // Another key, and another content under the same key.
    let changed = pack_of(5, &[segment(7, 1, 5, 21, true)]).0;
    assert_eq!(changed.object.key, five.object.key);
    pack::verify(&five.object.key, None, &changed.bytes).unwrap();
    world.bucket.tamper(&five.object.key, Some(changed.bytes));
    let e = read::pack_directory(&store, &world.retry(), &five.object, read::FIRST_FETCH);
    assert!(matches!(e, Err(RemoteError::Damaged { .. })), "{e:?}");
    world.bucket.tamper(&five.object.key, Some(six.bytes));
    let e =
        read::pack_directory(&store, &world.retry(), &five.object, read::FIRST_FETCH).unwrap_err();
    assert!(matches!(e, RemoteError::Damaged { .. }), "{e}");
}

#[test]
fn a_damaged_segment_is_not_packed() {
    let world = World::new(5);
    let good = segment(7, 1, 5, 20, true);
    let mut forms = 0;
    for at in 0..good.files[0].len() {
        let mut bad = segment(7, 6, 5, 20, true);
        bad.files[0][at] ^= 4;
        let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, 5), 0);
        writer.push_segment(&world.env, &good.files()).unwrap();
        let before = writer.len();
        assert!(writer.push_segment(&world.env, &bad.files()).is_err(), "byte {at}");
        assert_eq!(writer.len(), before);
        let (object, directory) = writer.finish().unwrap();
        assert_eq!(directory.entries.len(), 1, "the pack ends before the damaged segment");
        pack::verify(&object.object.key, None, &object.bytes).unwrap();
        forms += 1;
    }
    println!("{forms} damaged segments kept out of packs");
    assert!(forms > HEADER as u64 as usize);
}

/// Damage before the part that is packed counts too: the part continues it.
#[test]
fn a_damaged_tail_is_not_packed() {
    let world = World::new(8);
    let good = segment(7, 1, 4, 20, false);
    let push = |data: &[u8]| {
        let mut writer = PackWriter::new(header(ObjectKind::Pack, 3, 5), 0);
        writer.push_deletes(1, b"d").unwrap();
        let before = writer.len();
        let pushed = writer.push_tail(&world.env, good.topic, &good.meta, (data, data.len() / 2));
        (pushed, writer.len() - before)
    };
    let len = good.meta.data_len as usize;
    assert_eq!(good.files[0].len(), len);
    let (pushed, added) = push(&good.files[0]);
    assert_eq!((pushed.is_ok(), added), (true, len - len / 2));
    for at in 0..len {
        let mut bad = good.files[0].clone();
        bad[at] ^= 4;
        let (pushed, added) = push(&bad);
        assert!(pushed.is_err() && added == 0, "byte {at}");
    }
}
