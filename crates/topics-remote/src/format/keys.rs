//! Keys of objects, below the prefix. They contain no names of topics.

use topics_storage::segment::TopicKey;
use xxhash_rust::xxh3::xxh3_64;

/// The only object that is replaced.
pub const HEAD: &str = "HEAD";
/// Rounds.
pub const ROUNDS: &str = "w/";
/// Catalogs.
pub const CATALOGS: &str = "c/";
/// Packs.
pub const PACKS: &str = "p/";
/// Bitmaps of deleted records.
pub const DELETES: &str = "d/";
/// Staged rows of transactions.
pub const STAGES: &str = "x/";
/// Pins of readers.
pub const PINS: &str = "pins/";
/// Objects of the conformance probe.
pub const PROBES: &str = "probe/";

#[must_use]
pub fn catalog(epoch: u64, n: u64) -> String {
    format!("{CATALOGS}{epoch:016x}-{n:016x}.cat")
}

#[must_use]
pub fn round(epoch: u64, n: u64) -> String {
    format!("{ROUNDS}{epoch:016x}/{n:016x}.round")
}

/// The folder of a topic's objects, or of packs of several topics, with two digits of a hash before
/// it that spread the prefixes.
fn folder(topic_id: Option<u64>, file_no: u64) -> String {
    match topic_id {
        Some(id) => format!("{:02x}/{id:016x}", xxh3_64(&id.to_le_bytes()) as u8),
        None => format!("{:02x}/mix", xxh3_64(&file_no.to_le_bytes()) as u8),
    }
}

/// A pack: of one topic, or of several (`None`).
#[must_use]
pub fn pack(topic_id: Option<u64>, first_seq: u64, file_no: u64, epoch: u64) -> String {
    let folder = folder(topic_id, file_no);
    format!("{PACKS}{folder}/{first_seq:020}.{file_no:016x}.{epoch:016x}.pack")
}

/// A file of staged rows, by its name in the data directory.
#[must_use]
pub fn stage(name: &str) -> String {
    format!("{STAGES}{name}")
}

/// A bitmap of deleted records of a segment.
#[must_use]
pub fn deletes(topic: TopicKey, first_seq: u64, del_no: u64, epoch: u64) -> String {
    let folder = folder(Some(topic.topic_id), 0);
    format!("{DELETES}{folder}/{first_seq:020}.{del_no:016x}.{epoch:016x}.del")
}

/// The kind of an object, by its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyKind {
    Catalog,
    Round,
    Pack,
    /// A bitmap of deleted records.
    Deletes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeyNumbers {
    /// The kind of the object.
    pub kind: KeyKind,
    /// The epoch of its writer.
    pub epoch: u64,
    /// Its number: of a pack and a bitmap their file number.
    pub number: u64,
}

/// The numbers in a key that this module makes; `None` for every other key.
#[must_use]
pub fn parse(key: &str) -> Option<KeyNumbers> {
    let hex = |text: &str| {
        let is_lower = text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        (text.len() == 16 && is_lower).then(|| u64::from_str_radix(text, 16).ok())?
    };
    let (epoch, number, kind) = if let Some(rest) = key.strip_prefix(CATALOGS) {
        let (epoch, n) = rest.strip_suffix(".cat")?.split_once('-')?;
        (hex(epoch)?, hex(n)?, KeyKind::Catalog)
    } else if let Some(rest) = key.strip_prefix(ROUNDS) {
        let (epoch, n) = rest.strip_suffix(".round")?.split_once('/')?;
        (hex(epoch)?, hex(n)?, KeyKind::Round)
    } else {
        let (rest, ending, kind) = match key.strip_prefix(PACKS) {
            Some(rest) => (rest, ".pack", KeyKind::Pack),
            None => (key.strip_prefix(DELETES)?, ".del", KeyKind::Deletes),
        };
        let name = rest.strip_suffix(ending)?.splitn(3, '/').nth(2)?;
        let mut parts = name.split('.');
        let (seq, number, epoch) = (parts.next()?, parts.next()?, parts.next()?);
        let is_seq = seq.len() == 20 && seq.bytes().all(|b| b.is_ascii_digit());
        if !is_seq || parts.next().is_some() {
            return None;
        }
        (hex(epoch)?, hex(number)?, kind)
    };
    Some(KeyNumbers { kind, epoch, number })
}

#[cfg(test)]
mod tests {
    use topics_env::objects::is_valid_key;

    use super::*;

    #[test]
    fn every_key_is_valid_and_has_a_fixed_width() {
        let topic = TopicKey { topic_id: u64::MAX, epoch: 1 };
        let small = TopicKey { topic_id: 1, epoch: 1 };
        let pairs = [
            (catalog(0, 0), catalog(u64::MAX, u64::MAX)),
            (round(0, 0), round(u64::MAX, u64::MAX)),
            (pack(Some(1), 1, 1, 1), pack(Some(u64::MAX), u64::MAX, u64::MAX, u64::MAX)),
            (pack(None, 1, 1, 1), pack(None, u64::MAX, u64::MAX, u64::MAX)),
            (deletes(small, 1, 1, 1), deletes(topic, u64::MAX, u64::MAX, u64::MAX)),
        ];
        for (least, most) in pairs {
            assert!(is_valid_key(&least) && is_valid_key(&most), "{least} {most}");
            assert_eq!(least.len(), most.len(), "{least} {most}");
        }
    }

    #[test]
    fn the_numbers_of_a_key_are_those_that_it_was_made_of() {
        let topic = TopicKey { topic_id: 7, epoch: 1 };
        for (key, kind) in [
            (catalog(3, 5), KeyKind::Catalog),
            (round(3, 5), KeyKind::Round),
            (pack(Some(7), 99, 5, 3), KeyKind::Pack),
            (pack(None, 99, 5, 3), KeyKind::Pack),
            (deletes(topic, 99, 5, 3), KeyKind::Deletes),
        ] {
            assert_eq!(parse(&key), Some(KeyNumbers { kind, epoch: 3, number: 5 }), "{key}");
            for at in 1..key.len() {
                assert_eq!(parse(&key[at..]), None, "{}", &key[at..]);
                assert_eq!(parse(&key[..at]), None, "{}", &key[..at]);
            }
            assert_eq!(parse(&key.to_uppercase()), None);
        }
        assert_eq!(parse(HEAD), None);
        assert_eq!(parse("pins/a"), None);
    }

    #[test]
    fn keys_sort_by_epoch_and_number() {
        assert!(round(1, 9) < round(1, 10) && round(1, 10) < round(2, 1));
        assert!(catalog(1, 255) < catalog(1, 256) && catalog(9, 1) < catalog(10, 0));
    }
}
