//! A record's attributes: a list of `id u8, len u8, value`. Unknown ids are kept.

/// When the record becomes visible to claims, ms (`u64`, little-endian).
pub const VISIBLE_AT: u8 = 1;
/// When the record expires, ms (`u64`, little-endian).
pub const EXPIRES_AT: u8 = 2;
/// The job's group, up to 128 bytes.
pub const GROUP: u8 = 3;
/// The job's lane, one byte.
pub const LANE: u8 = 4;

/// Appends one attribute; a value over 255 bytes is cut by the caller's limits before it gets here.
pub fn push(out: &mut Vec<u8>, id: u8, value: &[u8]) {
    let len = value.len().min(255);
    out.push(id);
    out.push(len as u8);
    out.extend_from_slice(&value[..len]);
}

/// The value of an attribute.
#[must_use]
pub fn get(mut attrs: &[u8], id: u8) -> Option<&[u8]> {
    while let [this, len, rest @ ..] = attrs {
        let (value, after) = rest.split_at_checked(usize::from(*len))?;
        if *this == id {
            return Some(value);
        }
        attrs = after;
    }
    None
}

/// The value of an attribute that is a `u64`.
#[must_use]
pub fn get_u64(attrs: &[u8], id: u8) -> Option<u64> {
    Some(u64::from_le_bytes(get(attrs, id)?.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_each_and_keeps_unknown() {
        let mut a = Vec::new();
        push(&mut a, 99, b"later");
        push(&mut a, EXPIRES_AT, &7u64.to_le_bytes());
        push(&mut a, GROUP, b"g");
        assert_eq!(get_u64(&a, EXPIRES_AT), Some(7));
        assert_eq!(get(&a, GROUP), Some(&b"g"[..]));
        assert_eq!(get(&a, 99), Some(&b"later"[..]));
        assert_eq!(get(&a, LANE), None);
        assert_eq!(get(&a[..a.len() - 1], GROUP), None, "a cut value is absent, never read past");
    }
}
