//! Compares the files with bytes that are built only from the text of FORMAT.md.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::*;
use crate::snapshot;

fn put(out: &mut Vec<u8>, words: &[u64]) {
    words.iter().for_each(|w| out.extend_from_slice(&w.to_le_bytes()));
}

fn seal(out: &mut Vec<u8>, from: usize, seed: u64) {
    let sum = xxh3_64_with_seed(&out[from..], seed);
    put(out, &[sum]);
}

fn side(magic: &[u8; 4], salt: u64, number: u64) -> Vec<u8> {
    let mut out = [&magic[..], &1u32.to_le_bytes()].concat();
    put(&mut out, &[salt, number]);
    seal(&mut out, 0, 0);
    out
}

/// A record with tag, attributes, meta and data, a hole, and a record with data only.
#[test]
fn the_bytes_match_the_document() {
    let world = World::new(SegmentOptions::default());
    let mut rich = Rec::new(70, "payload").tag("t").expires(99);
    rich.node = b"nn".to_vec();
    rich.meta = b"{}".to_vec();
    let recs = [rich, Rec::hole(), Rec::new(71, "x")];
    let meta = world.append(None, 5, &recs, true).unwrap();
    let mut round = Round::new(&world.segs);
    let _ = round.write_del(&world.segment(&meta), &[2].into_iter().collect()).unwrap();
    round.sync().unwrap();
    let image = world.fs.kill_image();
    let read = |file: &str| image.read(&format!("/d/topics/7/{file}")).unwrap();
    let (no, del) = ("0000000100000001", "0000000100000002");
    let data = read(&format!("seg-00000000000000000005.{no}.data"));
    let salt = u64::from_le_bytes(data[48..56].try_into().unwrap());
    let number = u64::from_str_radix(no, 16).unwrap();

    let mut want = [&b"TSEG"[..], &[1, 0, 0, 0], &STORE[..8]].concat();
    put(&mut want, &[7, 3, 5, number, salt]);
    seal(&mut want, 0, 0);
    let mut frame = |flags: u8, seq: u64, ts: u64, node: u16, tag: u16, rest: u32, body: &[u8]| {
        let len = (25 + body.len() + 8) as u32;
        let mut head = vec![flags];
        put(&mut head, &[seq, ts]);
        head.extend_from_slice(&node.to_le_bytes());
        head.extend_from_slice(&tag.to_le_bytes());
        head.extend_from_slice(&rest.to_le_bytes());
        want.extend_from_slice(&len.to_le_bytes());
        want.extend_from_slice(&head);
        want.extend_from_slice(body);
        put(&mut head, &[xxh3_64(body)]);
        let place = seq.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let seed = salt ^ place ^ u64::from(len).rotate_left(40);
        put(&mut want, &[xxh3_64_with_seed(&head, seed)]);
    };
    let mut body = b"nnt".to_vec();
    body.extend_from_slice(&[10, 0, 2, 8, 99, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0]);
    body.extend_from_slice(b"{}payload");
    frame(1 | 2 | 16 | 64, 5, 70, 2, 1, 25, &body);
    frame(0, 7, 71, 0, 0, 1, b"x");
    assert_eq!(data, want);

    let first = (37 + body.len()) as u32;
    let mut want = side(b"TIDX", salt, number);
    for (offset, len, ts, flags) in
        [(64, first, 70u64, 83), (64 + first, 0, 70, 0), (64 + first, 38, 71, 0)]
    {
        want.extend_from_slice(&u32::to_le_bytes(offset));
        want.extend_from_slice(&u32::to_le_bytes(len));
        put(&mut want, &[ts]);
        want.extend_from_slice(&[flags, 0, 0, 0]);
    }
    let whole = xxh3_64_with_seed(&want, salt);
    let footer = want.len();
    want.extend_from_slice(b"TIXF\x01\0\0\0");
    put(&mut want, &[5, 7, 3, data.len() as u64, 70, 71, whole]);
    seal(&mut want, footer, salt);
    assert_eq!(read(&format!("seg-00000000000000000005.{no}.idx")), want);

    let mut want = side(b"TDEL", salt, u64::from_str_radix(del, 16).unwrap());
    let dead: roaring::RoaringBitmap = [2].into_iter().collect();
    put(&mut want, &[5, 1, dead.serialized_size() as u64]);
    dead.serialize_into(&mut want).unwrap();
    seal(&mut want, 0, salt);
    assert_eq!(read(&format!("seg-00000000000000000005.{del}.del")), want);

    let mut want = side(b"TTAG", salt, number);
    want.extend_from_slice(b"\x01\0t\x01\0\0\0\0\0\0\0");
    seal(&mut want, 32, salt.wrapping_add(32));
    let index = want.len();
    put(&mut want, &[32]);
    want.extend_from_slice(b"\x13\0\0\0\x01\0t");
    let (len, sum) = (want.len() - index, xxh3_64_with_seed(&want[index..], salt));
    let footer = want.len();
    want.extend_from_slice(b"TTGF\x01\0\0\0");
    put(&mut want, &[index as u64, len as u64, 5, sum]);
    seal(&mut want, footer, salt);
    assert_eq!(read(&format!("seg-00000000000000000005.{no}.tags")), want);

    let mut want = side(b"TATR", salt, number);
    put(&mut want, &[5, 1]);
    want.extend_from_slice(&[0, 0, 0, 0, 5, 0, 0, 0]);
    put(&mut want, &[0, 99, 0]);
    want.extend_from_slice(&[0; 16]);
    seal(&mut want, 0, salt);
    assert_eq!(read(&format!("seg-00000000000000000005.{no}.attrs")), want);
}

#[test]
fn a_snapshot_matches_the_document() {
    let body = snapshot::SnapshotBody {
        store_id: STORE,
        generation: 2,
        layout: 1,
        next_topic_id: 8,
        topics: vec![snapshot::TopicSnap {
            topic_id: 7,
            name: "ab".into(),
            gaps: vec![snapshot::GapSnap { from: 3, to: 4, reason: 9 }],
            segments: vec![SegmentMeta { first_seq: 1, sealed: true, ..SegmentMeta::default() }],
            ..snapshot::TopicSnap::default()
        }],
        ..snapshot::SnapshotBody::default()
    };
    let mut want = STORE.to_vec();
    put(&mut want, &[2, 1, 0, 0, 8, 0, 0, 0, 1, 7, 0, 2]);
    want.extend_from_slice(b"ab");
    // config, replay, head … evict_floor, evict_reason, delete_below
    put(&mut want, &[0, 0, 0, 0, 0, 0, 0]);
    want.push(0);
    put(&mut want, &[0, 1, 3, 4]);
    want.push(9);
    // last_ts … live_bytes, segments
    put(&mut want, &[0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    want.extend_from_slice(&[1, 0, 0, 0]);
    // idempotency, sections, sections of the body
    put(&mut want, &[0, 0, 0]);
    let mut file = b"TSNP\x01\0\0\0".to_vec();
    put(&mut file, &[6, want.len() as u64]);
    let sum = xxh3_64(&[&file[..], &want].concat());
    put(&mut file, &[sum]);
    file.extend_from_slice(&want);
    assert_eq!(snapshot::encode(6, &body).unwrap(), file);
}
