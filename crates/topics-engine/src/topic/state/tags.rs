//! Tags of the records that are not in a sealed segment.

use std::collections::BTreeMap;
use std::ops::Bound;

use topics_storage::segment::TagMatch;

/// Tag → ascending seqs. Seqs of removed records stay until a purge, so callers check that a record is
/// live.
#[derive(Debug, Default)]
pub(crate) struct Tags {
    map: BTreeMap<Box<[u8]>, Vec<u64>>,
    entries: usize,
    gone: usize,
}

impl Tags {
    /// Adds a record above all others of its tag.
    pub(crate) fn push(&mut self, tag: &[u8], seq: u64) {
        self.entries += 1;
        match self.map.get_mut(tag) {
            Some(seqs) => seqs.push(seq),
            None => drop(self.map.insert(tag.into(), vec![seq])),
        }
    }

    /// Adds records below the ones in the map.
    pub(crate) fn load(&mut self, tag: &[u8], mut below: Vec<u64>) {
        self.entries += below.len();
        let seqs = self.map.entry(tag.into()).or_default();
        below.append(seqs);
        below.sort_unstable();
        below.dedup();
        *seqs = below;
    }

    /// The ascending seqs in `from..=upto` whose tag matches.
    pub(crate) fn find(&self, want: TagMatch<'_>, from: u64, upto: u64) -> Vec<u64> {
        let within = |seqs: &[u64]| {
            let a = seqs.partition_point(|s| *s < from);
            let b = seqs.partition_point(|s| *s <= upto);
            seqs.get(a..b).unwrap_or_default().to_vec()
        };
        match want {
            TagMatch::Eq(tag) => self.map.get(tag).map(|s| within(s)).unwrap_or_default(),
            TagMatch::Prefix(prefix) => {
                let start = (Bound::Included(prefix), Bound::Unbounded);
                let mut out: Vec<u64> = self
                    .map
                    .range::<[u8], _>(start)
                    .take_while(|(tag, _)| tag.starts_with(prefix))
                    .flat_map(|(_, seqs)| within(seqs))
                    .collect();
                out.sort_unstable();
                out
            }
        }
    }

    /// Notes that `n` records of the map may be removed; drops seqs below `floor` from time to time.
    pub(crate) fn dropped(&mut self, n: usize, floor: u64) {
        self.gone += n;
        if self.gone > 64 && self.gone > self.entries / 2 {
            self.cut(floor);
        }
    }

    /// Drops the records below `floor`.
    pub(crate) fn cut(&mut self, floor: u64) {
        self.gone = 0;
        self.entries = 0;
        self.map.retain(|_, seqs| {
            let a = seqs.partition_point(|s| *s < floor);
            seqs.drain(..a);
            self.entries += seqs.len();
            !seqs.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> Tags {
        let mut t = Tags::default();
        for (tag, seq) in [("a", 1), ("b", 2), ("a", 3), ("ab", 4), ("a", 5)] {
            t.push(tag.as_bytes(), seq);
        }
        t
    }

    #[test]
    fn finds_by_tag_and_prefix() {
        let t = some();
        assert_eq!(t.find(TagMatch::Eq(b"a"), 0, 9), [1, 3, 5]);
        assert_eq!(t.find(TagMatch::Eq(b"a"), 2, 4), [3]);
        assert_eq!(t.find(TagMatch::Prefix(b"a"), 2, 9), [3, 4, 5]);
        assert_eq!(t.find(TagMatch::Prefix(b""), 0, 9), [1, 2, 3, 4, 5]);
        assert!(t.find(TagMatch::Eq(b"c"), 0, 9).is_empty());
    }

    #[test]
    fn cut_and_load() {
        let mut t = some();
        t.cut(4);
        assert_eq!(t.find(TagMatch::Prefix(b""), 0, 9), [4, 5]);
        t.load(b"a", vec![2, 3]);
        assert_eq!(t.find(TagMatch::Eq(b"a"), 0, 9), [2, 3, 5]);
    }
}
