//! Tests of the payloads of records.

use topics_tests::realfs::payload::*;

#[test]
fn a_payload_names_its_record_and_no_other_bytes_do() {
    let origin = Origin { op: 1 << 40, index: 3 };
    for len in [0, MIN_BYTES, 5000] {
        let bytes = make(origin, len);
        assert_eq!(parse(&bytes), Some(origin));
        for at in [12, bytes.len() - 1] {
            let mut other = bytes.clone();
            other[at] ^= 1;
            assert_ne!(parse(&other), Some(origin), "byte {at} of {len}");
        }
        assert_eq!(parse(&bytes[..bytes.len() - 1]), None);
    }
}
