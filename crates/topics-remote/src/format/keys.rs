//! Keys of objects, below the prefix. They contain no names of topics.

use super::sealed::ObjectKind;

/// The only object that is replaced.
pub const HEAD: &str = "HEAD";
/// Objects of the conformance probe.
pub const PROBES: &str = "probe/";

/// The epoch and the number of an object, which identify it among those of its kind. A later object of a
/// prefix has a higher one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Serial {
    /// The epoch of its writer.
    pub epoch: u64,
    /// Counted from 1 in each epoch.
    pub number: u64,
}

#[must_use]
pub fn object(kind: ObjectKind, serial: Serial) -> String {
    let letter = match kind {
        ObjectKind::Pack => 'p',
        ObjectKind::Base => 'b',
        ObjectKind::Round => 'r',
    };
    format!("{:016x}/{letter}{:016x}", serial.epoch, serial.number)
}

#[must_use]
pub fn pack(serial: Serial) -> String {
    object(ObjectKind::Pack, serial)
}

#[must_use]
pub fn base(serial: Serial) -> String {
    object(ObjectKind::Base, serial)
}

#[must_use]
pub fn round(epoch: u64, number: u64) -> String {
    object(ObjectKind::Round, Serial { epoch, number })
}

#[cfg(test)]
mod tests {
    use topics_env::objects::is_valid_key;

    use super::*;

    #[test]
    fn every_key_is_valid_and_has_a_fixed_width() {
        let most = Serial { epoch: u64::MAX, number: u64::MAX };
        for kind in [ObjectKind::Pack, ObjectKind::Base, ObjectKind::Round] {
            let (least, most) = (object(kind, Serial::default()), object(kind, most));
            assert!(is_valid_key(&least) && is_valid_key(&most), "{least} {most}");
            assert_eq!(least.len(), most.len(), "{least} {most}");
        }
    }

    #[test]
    fn keys_sort_as_their_serials() {
        let serials = [(1, 1), (1, 2), (1, 16), (2, 1), (u64::MAX, 0)];
        let keys = serials.map(|(epoch, number)| base(Serial { epoch, number }));
        assert!(keys.is_sorted(), "{keys:?}");
    }
}
