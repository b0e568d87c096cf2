use proptest::prelude::*;

use super::*;
use crate::format::frame::{Frame, FrameType, parse, seal, verify};

fn round_trip<B: Body + PartialEq + std::fmt::Debug>(body: &B) {
    let mut bytes = Vec::new();
    body.encode_frame(&mut bytes, 3, 4, 5);
    let (f, _) = parse(&bytes).unwrap();
    assert_eq!((f.kind, f.topic_id, f.seq, f.ts), (B::KIND, 3, 4, 5));
    assert_eq!(&<B as Body>::decode(&f).unwrap(), body);
    let mut newer = f.data.to_vec();
    newer[0] = VERSION + 1;
    let newer = crate::format::frame::Frame { data: &newer, ..f };
    assert!(
        matches!(<B as Body>::decode(&newer), Err(StorageError::Version { .. })),
        "another version is refused"
    );
    let mut longer = f.data.to_vec();
    longer.push(0);
    let longer = crate::format::frame::Frame { data: &longer, ..f };
    assert!(
        matches!(<B as Body>::decode(&longer), Err(StorageError::Corrupt { .. })),
        "extra bytes are refused"
    );
}

#[test]
fn every_family_round_trips() {
    round_trip(&CleanClose {});
    round_trip(&CheckpointMark { snapshot: 9 });
    round_trip(&Gap { from: 1, to: u64::MAX, reason: 3 });
    round_trip(&TopicCreate { name: "a".into(), epoch: 2, config: vec![1, 2], reserved_to: 1024 });
    round_trip(&TopicDelete { epoch: 2 });
    round_trip(&ConfigUpdate { config: vec![] });
    round_trip(&EvictWatermark { evict_floor: 3, reason: 1 });
    round_trip(&HeadWatermark { reserved_to: 7, lowered: true });
    round_trip(&RouterCreate { name: "r".into(), router_id: 1, epoch: 1, options: vec![0] });
    round_trip(&RouterDelete { router_id: 1, epoch: 1 });
    let jobs = vec![(1, 2, 3)];
    for (event, error) in [(LeaseEvent::Extend, ""), (LeaseEvent::Nack, "disk\0full\0")] {
        let (jobs, error) = (jobs.clone(), error.into());
        round_trip(&Lease { event, node: b"w".to_vec(), lease_ms: 5, jobs, error });
    }
    round_trip(&Consumer { name: "c".into(), mode: 1, cursor: None });
    round_trip(&TxnPart { writer: "w".into(), epoch: 4 });
    for (owner, forgets) in [("", false), ("key", false), ("", true)] {
        let (writer, owner) = ("w".into(), owner.into());
        round_trip(&TxnDone {
            query: String::new(),
            writer,
            epoch: 4,
            topics: vec![(1, "t".into(), 2, 9)],
            owner,
            forgets,
        });
    }
    round_trip(&Forward {
        router_id: 1,
        source_id: 2,
        source_epoch: 2,
        source_from: 5,
        source_to: 9,
        forwarded: vec![0b1011],
        first_seq: 77,
        options: 3,
    });
    round_trip(&TxnCommit {
        writer: "w".into(),
        epoch: 4,
        files: vec![TxnFile { name: "f".into(), len: 9, checksum: 1 }],
        topics: vec![TxnTopic { topic_id: 1, epoch: 1, rows: 3 }],
        commits: vec![(1, "c".into(), 9)],
        acks: vec![(2, vec![1, 2])],
        owner: "key".into(),
        query: "q".into(),
    });
}

#[test]
fn the_bytes_of_a_delete_and_of_a_lease() {
    let encoded = |body: &dyn Fn(&mut Vec<u8>)| {
        let mut bytes = Vec::new();
        body(&mut bytes);
        parse(&bytes).unwrap().0.data.to_vec()
    };
    // Version, before_seq none, match none, one range, bound, why.
    let delete = Delete { seqs: vec![(3, 4)], bound: 9, why: 2, ..Delete::default() };
    let bytes = [1, 0, 0, 1, 3, 4, 9, 2];
    assert_eq!(encoded(&|out| delete.encode_frame(out, 3, 4, 5)), bytes);
    let shorter = Frame::control(FrameType::Delete, 3, 4, 5, &bytes[..7]);
    assert!(<Delete as Body>::decode(&shorter).is_err());
    // Version, nack, node, 5 ms, one job, error.
    let lease = Lease {
        event: LeaseEvent::Nack,
        node: b"w".to_vec(),
        lease_ms: 5,
        jobs: vec![(7, 8, 2)],
        error: "no".into(),
    };
    let bytes = [1, 1, 1, b'w', 5, 1, 7, 8, 2, 2, b'n', b'o'];
    assert_eq!(encoded(&|out| lease.encode_frame(out, 3, 4, 5)), bytes);
}

#[test]
fn group_and_start_have_fixed_layouts() {
    let group = Group { lsn: 77, frames: 3, bytes: 1 << 40, synced_lsn: 70 };
    let mut bytes = Vec::new();
    group.encode_frame(&mut bytes);
    assert_eq!(bytes.len(), Group::FRAME_LEN);
    assert_eq!(bytes[..5], Group::PATTERN);
    seal(&mut bytes, 1, 77);
    assert_eq!(Group::of(&verify(&bytes, 1, 77).unwrap().0), Some(group));
    let mut bytes = Vec::new();
    Start { first_lsn: 5 }.encode_frame(&mut bytes);
    assert_eq!(bytes.len(), Start::FRAME_LEN);
    assert_eq!(Start::of(&parse(&bytes).unwrap().0), Some(Start { first_lsn: 5 }));
}

proptest! {
    #[test]
    fn deletes_and_keys(
        before in any::<Option<u64>>(), glob in any::<bool>(), tag in any::<Vec<u8>>(),
        seqs in any::<Vec<(u64, u64)>>(), bound in any::<u64>(), key in any::<u128>(),
        why in 0u8..4,
    ) {
        let kind = if glob { MatchKind::Glob } else { MatchKind::Eq };
        round_trip(&Delete { before_seq: before, matching: Some((kind, tag)), seqs, bound, why });
        round_trip(&Idempotency { key, request: bound, first_seq: 1, last_seq: 2, expires_at: 3 });
    }
}
