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
/// Objects of the conformance probe.
pub const PROBES: &str = "probe/";

/// A catalog.
#[must_use]
pub fn catalog(epoch: u64, n: u64) -> String {
    format!("{CATALOGS}{epoch:016x}-{n:016x}.cat")
}

/// A round.
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

/// A bitmap of deleted records of a segment.
#[must_use]
pub fn deletes(topic: TopicKey, first_seq: u64, del_no: u64, epoch: u64) -> String {
    let folder = folder(Some(topic.topic_id), 0);
    format!("{DELETES}{folder}/{first_seq:020}.{del_no:016x}.{epoch:016x}.del")
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
    fn keys_sort_by_epoch_and_number() {
        assert!(round(1, 9) < round(1, 10) && round(1, 10) < round(2, 1));
        assert!(catalog(1, 255) < catalog(1, 256) && catalog(9, 1) < catalog(10, 0));
    }
}
