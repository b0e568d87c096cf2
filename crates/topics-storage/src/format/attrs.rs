//! The attribute list of a record: a sequence of `id u8, len u8, value`. Decoding keeps unknown
//! ids.

/// When the record becomes visible to claims; u64 milliseconds.
pub const VISIBLE_AT: u8 = 1;
/// When the record expires; u64 milliseconds.
pub const EXPIRES_AT: u8 = 2;
/// The group of a job; at most 128 bytes.
pub const GROUP: u8 = 3;
/// The lane of a job; one byte, 0…9.
pub const LANE: u8 = 4;

/// The known attributes of a record.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attrs<'a> {
    /// When the record becomes visible to claims.
    pub visible_at: Option<u64>,
    /// When the record expires.
    pub expires_at: Option<u64>,
    /// The group of a job.
    pub group: Option<&'a [u8]>,
    /// The lane of a job.
    pub lane: Option<u8>,
}

impl<'a> Attrs<'a> {
    /// Appends the encoded list. A value above 255 bytes is a bug of the caller, which limits
    /// groups.
    pub fn encode(&self, out: &mut Vec<u8>) {
        if let Some(at) = self.visible_at {
            put(out, VISIBLE_AT, &at.to_le_bytes());
        }
        if let Some(at) = self.expires_at {
            put(out, EXPIRES_AT, &at.to_le_bytes());
        }
        if let Some(group) = self.group {
            put(out, GROUP, group);
        }
        if let Some(lane) = self.lane {
            put(out, LANE, &[lane]);
        }
    }

    /// Reads a list; `None` if it is malformed. The last value of a repeated id counts.
    pub fn decode(list: &'a [u8]) -> Option<Self> {
        let mut out = Self::default();
        for entry in Entries(list) {
            let (id, value) = entry?;
            match id {
                VISIBLE_AT => out.visible_at = Some(u64::from_le_bytes(value.try_into().ok()?)),
                EXPIRES_AT => out.expires_at = Some(u64::from_le_bytes(value.try_into().ok()?)),
                GROUP => out.group = Some(value),
                LANE => out.lane = Some(*value.first().filter(|_| value.len() == 1)?),
                _ => {}
            }
        }
        Some(out)
    }
}

fn put(out: &mut Vec<u8>, id: u8, value: &[u8]) {
    assert!(value.len() <= usize::from(u8::MAX), "an attribute is above its cap");
    out.push(id);
    out.push(value.len() as u8);
    out.extend_from_slice(value);
}

/// The entries of an encoded list. A malformed rest yields one `None`, then the iterator ends.
#[derive(Clone, Debug)]
pub struct Entries<'a>(pub &'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Option<(u8, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.0.split_first_chunk::<2>().and_then(|(&[id, len], rest)| {
            let (value, rest) = rest.split_at_checked(len.into())?;
            Some((id, value, rest))
        });
        let Some((id, value, rest)) = entry else {
            self.0 = &[];
            return Some(None);
        };
        self.0 = rest;
        Some(Some((id, value)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn a_list_reads_back(
            visible_at: Option<u64>,
            expires_at: Option<u64>,
            group in proptest::option::of(proptest::collection::vec(any::<u8>(), 0..=128)),
            lane: Option<u8>,
        ) {
            let attrs = Attrs { visible_at, expires_at, group: group.as_deref(), lane };
            let mut bytes = Vec::new();
            attrs.encode(&mut bytes);
            prop_assert_eq!(Attrs::decode(&bytes), Some(attrs));
        }

        #[test]
        fn any_bytes_decode_or_fail(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            let whole = Entries(&bytes).all(|e| e.is_some());
            if Attrs::decode(&bytes).is_some() {
                prop_assert!(whole);
            }
        }
    }

    #[test]
    fn unknown_ids_are_skipped() {
        let mut bytes = vec![200, 3, 1, 2, 3];
        Attrs { lane: Some(4), ..Attrs::default() }.encode(&mut bytes);
        assert_eq!(Attrs::decode(&bytes).unwrap().lane, Some(4));
        assert_eq!(Attrs::decode(&[1, 8, 0]), None);
        assert_eq!(Attrs::decode(&[4]), None);
        assert_eq!(Attrs::decode(&[1, 1, 0]), None, "a known id of the wrong size");
    }
}
