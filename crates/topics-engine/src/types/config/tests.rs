//! Config: defaults, merging, clamping, bytes.

use proptest::prelude::*;

use super::*;

fn any_config() -> impl Strategy<Value = TopicConfig> {
    (
        (any::<bool>(), any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>(), 0u8..4),
        (any::<Option<i32>>(), any::<bool>(), any::<bool>(), any::<u64>(), any::<bool>()),
        (any::<u64>(), any::<u64>(), any::<u64>(), any::<bool>(), any::<u64>(), any::<bool>()),
    )
        .prop_map(|(a, b, c)| TopicConfig {
            kind: if a.0 { TopicType::Queue } else { TopicType::Log },
            ttl_ms: a.1,
            cap_records: a.2,
            cap_bytes: a.3,
            discard: if a.4 { Discard::Reject } else { Discard::Old },
            durability: [
                Durability::Ephemeral,
                Durability::Memory,
                Durability::Disk,
                Durability::Fsync,
            ][usize::from(a.5)],
            priority: b.0,
            auto_priority: b.1,
            auto_create: b.2,
            idempotency_window_ms: b.3,
            dedupe_node: b.4,
            lease_ms: c.0,
            claim_jitter_ms: c.1,
            max_deliveries: c.2,
            dead_letter: c.3.then(|| "jobs.dead".to_owned()),
            retry_backoff_ms: c.4,
            paused: c.5,
            leases_durable: !c.5,
        })
}

proptest! {
    #[test]
    fn bytes_round_trip(config in any_config()) {
        let bytes = config.encode();
        prop_assert_eq!(TopicConfig::decode(&bytes).unwrap(), config);
    }

    #[test]
    fn other_bytes_are_an_error(config in any_config(), cut in 1usize..20, byte in any::<u8>()) {
        let mut bytes = config.encode();
        bytes.push(byte);
        prop_assert!(TopicConfig::decode(&bytes).is_err());
        bytes.truncate(bytes.len() - 1 - cut);
        prop_assert!(TopicConfig::decode(&bytes).is_err());
    }
}

#[test]
fn unknown_version_names_both() {
    let mut bytes = TopicConfig::default().encode();
    bytes[0] = 9;
    let Err(Error::Version { found: 9, supported: 1, .. }) = TopicConfig::decode(&bytes) else {
        panic!("expected a version error");
    };
}

#[test]
fn a_bad_enum_is_an_error() {
    let bytes = TopicConfig::default().encode();
    for (at, value) in [(1, 2), (26, 2), (27, 4), (28, 2)] {
        let mut b = bytes.clone();
        b[at] = value;
        assert!(TopicConfig::decode(&b).is_err(), "byte {at}");
    }
}

#[test]
fn queues_reject_unless_asked() {
    let queue = ConfigPatch { kind: Some(TopicType::Queue), ..ConfigPatch::default() };
    let created = |patch: &ConfigPatch| TopicConfig::created(patch, Durability::Disk);
    assert_eq!(created(&queue).discard, Discard::Reject);
    let old = ConfigPatch { discard: Some(Discard::Old), ..queue };
    assert_eq!(created(&old).discard, Discard::Old);
    assert_eq!(created(&ConfigPatch::default()), TopicConfig::default());
}

#[test]
fn values_are_clamped() {
    let p = ConfigPatch {
        priority: Some(Some(5000)),
        lease_ms: Some(1),
        claim_jitter_ms: Some(9000),
        ..ConfigPatch::default()
    };
    let p = p.checked("t").unwrap();
    assert_eq!(
        (p.priority, p.lease_ms, p.claim_jitter_ms),
        (Some(Some(1000)), Some(100), Some(5000))
    );
    let p = ConfigPatch { lease_ms: Some(u64::MAX), ..ConfigPatch::default() };
    assert_eq!(p.checked("t").unwrap().lease_ms, Some(86_400_000));
}

#[test]
fn dead_letter_is_another_valid_topic() {
    let to = |s: &str| ConfigPatch { dead_letter: Some(Some(s.into())), ..ConfigPatch::default() };
    assert!(to("t").checked("t").is_err());
    assert!(to("a/b").checked("t").is_err());
    assert!(to("t.dead").checked("t").is_ok());
}

#[test]
fn only_the_type_and_the_class_conflict() {
    let config = TopicConfig { cap_records: 5, ..TopicConfig::default() };
    let other = ConfigPatch {
        cap_records: Some(6),
        durability: Some(Durability::Disk),
        ..ConfigPatch::default()
    };
    assert_eq!(other.conflict(&config), None);
    let class = ConfigPatch { durability: Some(Durability::Fsync), ..other };
    assert_eq!(class.conflict(&config), Some(("durability", "disk", "fsync")));
    let kind = ConfigPatch { kind: Some(TopicType::Queue), ..class };
    assert_eq!(kind.conflict(&config), Some(("type", "log", "queue")));
}
