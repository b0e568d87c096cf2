//! Rewrites and merges.

use roaring::RoaringBitmap;

use super::*;

#[test]
fn a_rewrite_keeps_survivors_byte_for_byte() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(60);
    let meta = world.sealed(&recs);
    let then: RoaringBitmap = (0..60).filter(|i| i % 3 != 0).collect();
    let mut round = Round::new(&world.segs);
    let mut new = round.rewrite(&world.segment(&meta), &then).unwrap();
    // Deleted during the rewrite.
    let now: RoaringBitmap = &then | &(0..6).collect::<RoaringBitmap>();
    let carried = &now - &then;
    new.del_no = round.write_del(&world.segment(&new), &carried).unwrap();
    round.sync().unwrap();
    assert!(new.file_no != meta.file_no && new.data_len < meta.data_len);
    assert_eq!((new.first_seq, new.last_seq), (meta.first_seq, meta.last_seq));
    let world = world.restart(2);
    let kept: Vec<Rec> = (0u32..)
        .zip(&recs)
        .map(|(i, r)| if then.contains(i) { Rec::hole() } else { r.clone() })
        .collect();
    let segment = world.segment(&new);
    assert_eq!(read_all(&segment).unwrap(), want(1, &kept));
    assert_eq!(*segment.deleted().unwrap(), carried);
    assert_eq!(carried.iter().collect::<Vec<_>>(), [0, 3]);
    assert_eq!(new.live_count, kept.iter().filter(|r| !r.hole).count() as u64);
    // A hole keeps the time of its record, so a seek has the same result as before.
    for ts in 1000..1031 {
        let (old, new) = (world.segment(&meta).seek_ts(ts), segment.seek_ts(ts));
        assert_eq!(old.unwrap(), new.unwrap());
    }
    assert_eq!(read_all(&world.segment(&meta)).unwrap(), want(1, &recs), "the old files stay");
}

#[test]
fn a_rewrite_keeps_damage_reported() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(10);
    let meta = world.sealed(&recs);
    let at = world.segment(&meta).entries(4, 4).unwrap()[0].offset as usize + 40;
    let mut image = world.fs.kill_image();
    let file = format!("/d/topics/7/{}", meta.name(7).file(FileKind::Data));
    let mut bytes = image.read(&file).unwrap();
    bytes[at] ^= 1;
    image.put(&file, &bytes);
    let world = World::next(&image, 2);
    let mut round = Round::new(&world.segs);
    let new = round.rewrite(&world.segment(&meta), &[0].into_iter().collect()).unwrap();
    round.sync().unwrap();
    let mut kept = want(1, &recs);
    kept.remove(0);
    kept[2] = Got::Corrupt(4);
    assert_eq!(read_all(&world.segment(&new)).unwrap(), kept);
}

#[test]
fn adjacent_segments_are_merged() {
    let world = World::new(SegmentOptions::default());
    let recs = sample(45);
    let metas: Vec<_> = [0, 15, 30]
        .iter()
        .map(|&i| world.append(None, i as u64 + 1, &recs[i..i + 15], true).unwrap())
        .collect();
    let dead = Arc::new(RoaringBitmap::from_iter([0u32, 14]));
    let parts: Vec<_> = metas.iter().map(|m| (world.segment(m), dead.clone())).collect();
    let mut round = Round::new(&world.segs);
    let meta = round.merge(&parts).unwrap();
    assert!(round.merge(&[parts[0].clone(), parts[2].clone()]).is_err(), "not adjacent");
    round.sync().unwrap();
    let kept: Vec<Rec> = (0..)
        .zip(&recs)
        .map(|(i, r)| if matches!(i % 15, 0 | 14) { Rec::hole() } else { r.clone() })
        .collect();
    let segment = world.segment(&meta);
    assert_eq!(read_all(&segment).unwrap(), want(1, &kept));
    let late: Vec<u64> = want(1, &kept)
        .iter()
        .filter_map(|g| match g {
            Got::Rec(s, r) if r.tag.as_deref() == Some(b"late") => Some(*s),
            _ => None,
        })
        .collect();
    assert_eq!(segment.tag_seqs(TagMatch::Eq(b"late"), 99).unwrap(), late);
}

#[test]
fn times_ascend_across_holes() {
    let world = World::new(SegmentOptions::default());
    let first = world.append(None, 1, &[Rec::new(50, "a"), Rec::hole()], true).unwrap();
    let mut writer = SegmentWriter::create(&world.segs, TOPIC, 3).unwrap();
    fill(&mut writer, &[Rec::hole(), Rec::hole(), Rec::new(60, "b")]).unwrap();
    writer.hole_at(70).unwrap();
    writer.seal().unwrap();
    let mut round = Round::new(&world.segs);
    let second = round.add(writer).unwrap();
    let none = Arc::new(RoaringBitmap::new());
    let parts = [(world.segment(&first), none.clone()), (world.segment(&second), none)];
    let meta = round.merge(&parts).unwrap();
    round.sync().unwrap();
    let segment = world.segment(&meta);
    let times: Vec<u64> = segment.entries(1, 6).unwrap().iter().map(|e| e.ts).collect();
    assert_eq!(times, [50, 50, 50, 50, 60, 70]);
    for (ts, seq) in [(50, 1), (51, 5), (60, 5), (61, 6), (70, 6), (71, 7)] {
        assert_eq!(segment.seek_ts(ts).unwrap().0, seq);
    }
    assert_eq!(world.segs.damage_counts(), (0, 0));
}
