//! The rule for names of topics, routers, consumers and transaction writers.

use super::error::{Error, Result};

/// The longest name, in bytes.
pub const MAX_NAME: usize = 255;

/// Whether `name` matches `^[A-Za-z0-9][A-Za-z0-9._:-]{0,254}$`.
#[must_use]
pub fn valid(name: &str) -> bool {
    let bytes = name.as_bytes();
    let Some((first, rest)) = bytes.split_first() else { return false };
    bytes.len() <= MAX_NAME
        && first.is_ascii_alphanumeric()
        && rest.iter().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-'))
}

/// Refuses a name that is not [`valid`], saying what is.
pub fn check(name: &str) -> Result<()> {
    if valid(name) {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(Error::InvalidRequest(format!(
        "{shown:?} is no valid name: 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ : -, the first \
         a letter or digit"
    )))
}

/// Refuses a name of a router that is not [`valid`]; it may also hold `>`, as in `orders->audit`.
pub fn check_router(name: &str) -> Result<()> {
    let plain = |b: u8| if b == b'>' { b'-' } else { b };
    let bytes: Vec<u8> = name.bytes().map(plain).collect();
    if std::str::from_utf8(&bytes).is_ok_and(valid) && !name.starts_with('>') {
        return Ok(());
    }
    let shown: String = name.chars().take(64).collect();
    Err(Error::InvalidRequest(format!(
        "{shown:?} is not a valid router name: use 1 to {MAX_NAME} characters of A-Z a-z 0-9 . _ : - >, \
         the first a letter or digit"
    )))
}

/// Whether `name` matches `pattern`: the name itself, or a prefix followed by one `*`.
#[must_use]
pub fn matches_pattern(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(prefix) => name.starts_with(prefix),
        None => name == pattern,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "0", "orders", "a.b_c:d-e", &"x".repeat(255)] {
            assert!(valid(good), "{good}");
            assert!(check(good).is_ok());
        }
        for bad in ["", ".a", "-a", "_a", ":a", "a b", "a/b", "ä", "a\0", "a*", &"x".repeat(256)] {
            assert!(!valid(bad), "{bad}");
            assert_eq!(check(bad).unwrap_err().code(), "invalid_request");
        }
    }

    #[test]
    fn names_of_routers() {
        for good in ["orders->audit", "a>b", "a->", "a", &"x>".repeat(127)] {
            assert!(check_router(good).is_ok(), "{good}");
        }
        for bad in ["", ">", ">a", "->a", "a<b", "a b", "a>é", &"x>".repeat(128)] {
            assert_eq!(check_router(bad).unwrap_err().code(), "invalid_request", "{bad}");
        }
    }

    #[test]
    fn patterns() {
        assert!(matches_pattern("a*", "a.b"));
        assert!(matches_pattern("*", "a.b"));
        assert!(matches_pattern("a.b", "a.b"));
        assert!(!matches_pattern("a.b", "a.bc"));
        assert!(!matches_pattern("b*", "a.b"));
    }
}
