//! Reads return exactly the written records.

use proptest::prelude::*;
use roaring::RoaringBitmap;

use super::*;

fn rec() -> impl Strategy<Value = Rec> {
    let bytes = |max| prop::collection::vec(any::<u8>(), 0..max);
    let tag = prop::option::of("[a-c]{1,3}");
    let attrs = prop::option::of((0u64..100, 0u8..10, "[xy]"));
    (0u64..3, bytes(9), tag, attrs, bytes(20), bytes(400), 0u8..6).prop_map(
        |(ts, node, tag, attrs, meta, data, hole)| {
            if hole == 0 {
                return Rec::hole();
            }
            let mut rec =
                Rec { ts, node, meta, data, tag: tag.map(String::into_bytes), ..Rec::default() };
            if let Some((due, lane, group)) = attrs {
                rec.attrs.extend_from_slice(&[1, 8]);
                rec.attrs.extend_from_slice(&due.to_le_bytes());
                rec.attrs.extend_from_slice(&[4, 1, lane, 200, 2, 9, 9]);
                rec.attrs.extend_from_slice(&[3, group.len() as u8]);
                rec.attrs.extend_from_slice(group.as_bytes());
            }
            rec
        },
    )
}

/// Makes the times ascend.
fn in_order(mut recs: Vec<Rec>) -> Vec<Rec> {
    let mut ts = 10;
    for rec in recs.iter_mut().filter(|r| !r.hole) {
        ts += rec.ts;
        rec.ts = ts;
    }
    recs
}

fn check_lookups(segment: &Segment, recs: &[Rec]) {
    let first = segment.meta().first_seq;
    let seqs = |f: &dyn Fn(&Rec) -> bool| -> Vec<u64> {
        let all = recs.iter().zip(first..).filter(|(r, _)| !r.hole && f(r));
        all.map(|(_, s)| s).collect()
    };
    for tag in ["", "a", "ab", "b", "bca", "c", "zz"] {
        let t = tag.as_bytes();
        let eq = segment.tag_seqs(TagMatch::Eq(t), u64::MAX).unwrap();
        assert_eq!(eq, seqs(&|r| r.tag.as_deref() == Some(t)));
        let glob = segment.tag_seqs(TagMatch::Prefix(t), first + 20).unwrap();
        let mut all = seqs(&|r| r.tag.as_ref().is_some_and(|have| have.starts_with(t)));
        all.retain(|&s| s <= first + 20);
        assert_eq!(glob, all);
    }
    let table = segment.attrs().unwrap();
    let rows: Vec<_> = recs
        .iter()
        .zip(first..)
        .filter(|(r, _)| !r.attrs.is_empty())
        .map(|(r, s)| AttrRow::parse(s, &r.attrs))
        .collect();
    assert_eq!(table.rows(), rows);
    let mut due: Vec<_> = rows.iter().map(|r| (r.visible_at, r.seq)).collect();
    due.sort_unstable();
    let found: Vec<_> = table.ordered(AttrOrder::Due).map(|r| (r.visible_at, r.seq)).collect();
    assert_eq!(found, due);
    for lane in 0..10 {
        let found: Vec<_> = table.lane(lane).map(|r| r.seq).collect();
        let all: Vec<_> = rows.iter().filter(|r| r.lane == lane).map(|r| r.seq).collect();
        assert_eq!(found, all);
    }
    let x = AttrRow::group_hash(b"x");
    let all: Vec<_> = rows.iter().filter(|r| r.group == x).map(|r| r.seq).collect();
    assert_eq!(table.group(x).map(|r| r.seq).collect::<Vec<_>>(), all);
    for ts in [0, 10, 11, 15, 30, 1000] {
        let at = segment.seek_ts(ts).unwrap().0;
        let (mut last, mut exp) = (0, first + recs.len() as u64);
        for (r, s) in recs.iter().zip(first..) {
            last = if r.hole { last } else { r.ts };
            if last >= ts {
                exp = s;
                break;
            }
        }
        assert_eq!(at, exp, "seek to {ts}");
    }
}

fn check(segment: &Segment, recs: &[Rec]) {
    let m = *segment.meta();
    assert_eq!(m.span(), recs.len() as u64);
    assert_eq!(read_all(segment).unwrap(), want(m.first_seq, recs));
    let entries = segment.entries(0, u64::MAX).unwrap();
    assert_eq!(entries.len(), recs.len());
    for (e, (r, s)) in entries.iter().zip(recs.iter().zip(m.first_seq..)) {
        assert_eq!(e.is_hole(), r.hole);
        let bytes = if r.hole { 0 } else { r.frame(s).payload_bytes() };
        assert_eq!(e.payload_bytes(), bytes);
    }
    let live = recs.iter().filter(|r| !r.hole);
    assert_eq!(m.live_count, live.clone().count() as u64);
    assert_eq!(m.live_bytes, live.map(|r| r.frame(1).payload_bytes()).sum::<u64>());
    check_lookups(segment, recs);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn reads_return_the_written_records(
        rounds in prop::collection::vec((prop::collection::vec(rec(), 0..40), any::<bool>()), 1..5),
        first in 1u64..1000,
    ) {
        let recs = in_order(rounds.iter().flat_map(|(r, _)| r.clone()).collect());
        let mut world = World::new(SegmentOptions::default());
        let (mut meta, mut from) = (None, 0);
        for (n, (round, restart)) in rounds.iter().enumerate() {
            let part = &recs[from..from + round.len()];
            let last = n + 1 == rounds.len();
            meta = Some(world.append(meta.as_ref(), first, part, last).unwrap());
            from += round.len();
            if *restart {
                world = world.restart(n as u64 + 2);
            }
            let segment = world.segment(meta.as_ref().unwrap());
            world.segs.check_named(TOPIC, &[*segment.meta()], true).unwrap();
            check(&segment, &recs[..from]);
        }
        prop_assert_eq!(world.segs.damage_counts(), (0, 0));
    }

    #[test]
    fn reads_stop_at_their_limits(
        recs in prop::collection::vec(rec(), 1..60),
        dead in prop::collection::vec(0u32..60, 0..30),
        from in 0u64..70, len in 0u64..70, max in 0usize..3000,
    ) {
        let recs = in_order(recs);
        let world = World::new(SegmentOptions::default());
        let segment = world.segment(&world.sealed(&recs));
        let dead: RoaringBitmap = dead.into_iter().collect();
        let mut block = Block::new();
        let to = from + len;
        let is_dead = |s: u64| dead.contains((s - 1) as u32);
        let next = segment.read(from, to, max, &is_dead, &mut block).unwrap();
        let found: Vec<_> = block.items().map(|i| got(&i)).collect();
        let all: Vec<_> = want(1, &recs)
            .into_iter()
            .filter(|g| matches!(g, Got::Rec(s, _) if (from..=to).contains(s) && !is_dead(*s)))
            .collect();
        prop_assert_eq!(&found[..], &all[..found.len()]);
        let size = |g: &Got| match g {
            Got::Rec(s, r) => super::super::layout::frame_len(&r.frame(*s)),
            Got::Corrupt(_) => 0,
        };
        let bytes: usize = found.iter().map(size).sum();
        prop_assert!(found.len() <= 1 || bytes <= max);
        if let Some(left) = all.get(found.len()) {
            // It stopped because of the budget: at the first record that does not fit, or
            // immediately after the record that used it up.
            prop_assert!(bytes + size(left) > max && !found.is_empty());
            prop_assert!(matches!(left, Got::Rec(s, _) if *s >= next));
        } else {
            prop_assert!(next >= to.min(recs.len() as u64) || bytes >= max);
        }
        let seqs: Vec<u64> = (0..recs.len() as u64 + 5).filter(|s| s % 3 == 0).collect();
        block.clear();
        let done = segment.read_seqs(&seqs, usize::MAX, &mut block).unwrap();
        prop_assert_eq!(done, seqs.len());
        let picked: Vec<_> = block.items().map(|i| got(&i)).collect();
        let all: Vec<_> = want(1, &recs)
            .into_iter()
            .filter(|g| matches!(g, Got::Rec(s, _) if s % 3 == 0))
            .collect();
        prop_assert_eq!(picked, all);
    }
}

#[test]
fn deletes_are_read_back_under_their_number() {
    let world = World::new(SegmentOptions::default());
    let mut meta = world.sealed(&sample(30));
    assert!(world.segment(&meta).deleted().unwrap().is_empty());
    let mut numbers = Vec::new();
    for dead in [vec![1, 2, 3], vec![1, 2, 3, 9], (0..30).collect()] {
        let dead: RoaringBitmap = dead.into_iter().collect();
        let mut round = Round::new(&world.segs);
        meta.del_no = round.write_del(&world.segment(&meta), &dead).unwrap();
        round.sync().unwrap();
        numbers.push((meta.del_no, dead.clone()));
        assert_eq!(*world.segment(&meta).deleted().unwrap(), dead);
    }
    for (del_no, dead) in numbers {
        let old = SegmentMeta { del_no, ..meta };
        assert_eq!(*world.restart(2).segment(&old).deleted().unwrap(), dead);
    }
}

#[test]
fn large_tag_files_are_read_in_blocks() {
    let world = World::new(SegmentOptions::default());
    let recs: Vec<Rec> =
        (0..5000).map(|i| Rec::new(1, "x").tag(&format!("user:{:05}", i % 2500))).collect();
    let meta = world.sealed(&recs);
    let segment = world.segment(&meta);
    let file = meta.name(TOPIC.topic_id).file(FileKind::Tags);
    let size = world.fs.kill_image().read(&format!("/d/topics/7/{file}")).unwrap().len();
    assert!(size > 10 * 4096);
    for n in [0, 1, 77, 1249, 2498, 2499] {
        let tag = format!("user:{n:05}");
        let found = segment.tag_seqs(TagMatch::Eq(tag.as_bytes()), u64::MAX).unwrap();
        assert_eq!(found, [n + 1, n + 2501]);
        let prefix = &tag[..tag.len() - 1];
        let found = segment.tag_seqs(TagMatch::Prefix(prefix.as_bytes()), u64::MAX).unwrap();
        let all: Vec<u64> = (1..=5000).filter(|s| (s - 1) % 2500 / 10 == n / 10).collect();
        assert_eq!(found, all);
    }
    assert!(segment.tag_seqs(TagMatch::Eq(b"user:99999"), u64::MAX).unwrap().is_empty());
    assert_eq!(segment.tag_seqs(TagMatch::Prefix(b"user:"), u64::MAX).unwrap().len(), 5000);
}

#[test]
fn settings_do_not_affect_existing_segments() {
    let world = World::new(SegmentOptions { max_events: 10, ..SegmentOptions::default() });
    let mut writer = SegmentWriter::create(&world.segs, TOPIC, 1).unwrap();
    fill(&mut writer, &sample(9)).unwrap();
    assert!(!writer.should_seal());
    fill(&mut writer, &sample(1)).unwrap();
    assert!(writer.should_seal());
    drop(writer);
    let meta = world.sealed(&sample(100));
    let other = World::on(
        Arc::new(SimFs::from_image(&world.fs.kill_image())),
        SegmentOptions { max_events: 3, max_bytes: 100, max_open: 1, ..SegmentOptions::default() },
        2,
    );
    assert_eq!(read_all(&other.segment(&meta)).unwrap(), want(1, &sample(100)));
}
