use proptest::prelude::*;

use super::*;

fn sealed(f: &Frame<'_>, salt: u64, lsn: u64) -> Vec<u8> {
    let mut out = Vec::new();
    encode(&mut out, f);
    seal(&mut out, salt, lsn);
    out
}

fn sample() -> Frame<'static> {
    Frame {
        kind: FrameType::Append,
        flags: Flags(Flags::BINARY),
        topic_id: 7,
        seq: 9,
        ts: 1_700_000_000_000,
        node: b"n1",
        tag: b"eu:7",
        attrs: &[2, 1, 9],
        meta: b"{\"a\":\"b\"}",
        data: b"payload",
    }
}

#[test]
fn i12_every_flipped_bit_is_refused() {
    let good = sealed(&sample(), 42, 5);
    assert!(verify(&good, 42, 5).is_ok());
    for bit in 0..good.len() * 8 {
        let mut bad = good.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(verify(&bad, 42, 5).is_err(), "bit {bit}");
    }
}

#[test]
fn a_frame_is_valid_at_one_position_only() {
    let good = sealed(&sample(), 42, 5);
    assert_eq!(verify(&good, 42, 6), Err(FrameError::Checksum));
    assert_eq!(verify(&good, 43, 5), Err(FrameError::Checksum));
    for cut in 0..good.len() {
        assert!(
            matches!(verify(&good[..cut], 42, 5), Err(FrameError::Short(_))),
            "truncated at {cut}"
        );
    }
}

#[test]
fn lengths_are_capped_before_anything_is_read() {
    for len in [1u32, 40, MAX_FRAME_LEN + 1, u32::MAX] {
        let mut b = vec![0u8; 64];
        b[..4].copy_from_slice(&len.to_le_bytes());
        assert_eq!(parse(&b), Err(FrameError::Length(len)));
    }
    assert_eq!(parse(&[0; 64]), Err(FrameError::Zero));
}

proptest! {
    #[test]
    fn round_trip(
        node in proptest::collection::vec(any::<u8>(), 0..130),
        tag in proptest::collection::vec(any::<u8>(), 0..260),
        attrs in proptest::collection::vec(any::<u8>(), 0..40),
        meta in proptest::collection::vec(any::<u8>(), 0..300),
        data in proptest::collection::vec(any::<u8>(), 0..3000),
        ids in any::<(u64, u64, u64, u64, u64)>(),
        binary in any::<bool>(),
    ) {
        let (topic_id, seq, ts, salt, lsn) = ids;
        let flags = Flags(if binary { Flags::BINARY } else { 0 });
        let f = Frame {
            kind: FrameType::Append, flags, topic_id, seq, ts,
            node: &node, tag: &tag, attrs: &attrs, meta: &meta, data: &data,
        };
        let mut bytes = Vec::new();
        encode(&mut bytes, &Frame { topic_id: 0, seq: 0, ts: 0, ..f });
        prop_assert_eq!(bytes.len(), f.encoded_len());
        prop_assert_eq!(inner_hash(&bytes), u64_at(&bytes, bytes.len() - 8));
        patch(&mut bytes, topic_id, seq, ts);
        set_batch_more(&mut bytes, true);
        set_batch_more(&mut bytes, false);
        seal(&mut bytes, salt, lsn);
        let (back, len) = verify(&bytes, salt, lsn).unwrap();
        prop_assert_eq!(len, bytes.len());
        prop_assert_eq!(Frame { flags: f.flags, ..back }, f);
        prop_assert_eq!(back.flags.has(Flags::BINARY), binary);
        prop_assert_eq!(parse(&bytes).unwrap().0, back);
    }

    #[test]
    fn garbage_never_panics(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let _ = parse(&bytes);
        let _ = verify(&bytes, 1, 1);
    }
}
