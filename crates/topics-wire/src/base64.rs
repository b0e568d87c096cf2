//! Base64 of RFC 4648: the standard alphabet with padding for records, the URL-safe one without for
//! cursors.

const STANDARD: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
const URL: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
const BAD: u8 = 0xff;

/// The alphabet and the padding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// `+/`, padded.
    Standard,
    /// `-_`, not padded.
    Url,
}

const fn inverse(alphabet: &[u8; 64]) -> [u8; 256] {
    let mut table = [BAD; 256];
    let mut i = 0;
    while i < 64 {
        table[alphabet[i] as usize] = i as u8;
        i += 1;
    }
    table
}

static FROM_STANDARD: [u8; 256] = inverse(STANDARD);
static FROM_URL: [u8; 256] = inverse(URL);

/// Appends the text of `bytes`.
pub fn encode(kind: Kind, bytes: &[u8], out: &mut Vec<u8>) {
    let alphabet = if kind == Kind::Standard { STANDARD } else { URL };
    let digit = |bits: u32, at: u32| alphabet[(bits >> at & 63) as usize];
    out.reserve(bytes.len().div_ceil(3) * 4);
    let (triples, rest) = bytes.as_chunks::<3>();
    for t in triples {
        let bits = u32::from_be_bytes([0, t[0], t[1], t[2]]);
        out.extend_from_slice(&[digit(bits, 18), digit(bits, 12), digit(bits, 6), digit(bits, 0)]);
    }
    let padding: &[u8] = match *rest {
        [a] => {
            let bits = u32::from_be_bytes([0, a, 0, 0]);
            out.extend_from_slice(&[digit(bits, 18), digit(bits, 12)]);
            b"=="
        }
        [a, b] => {
            let bits = u32::from_be_bytes([0, a, b, 0]);
            out.extend_from_slice(&[digit(bits, 18), digit(bits, 12), digit(bits, 6)]);
            b"="
        }
        _ => b"",
    };
    if kind == Kind::Standard {
        out.extend_from_slice(padding);
    }
}

/// The bytes of a text; `None` when it is not exactly what [`encode`] writes for them.
#[must_use]
pub fn decode(kind: Kind, text: &[u8]) -> Option<Vec<u8>> {
    let (table, digits) = match kind {
        Kind::Url => (&FROM_URL, text),
        Kind::Standard if !text.len().is_multiple_of(4) => return None,
        Kind::Standard => {
            let padding = text.iter().rev().take(2).take_while(|&&b| b == b'=').count();
            (&FROM_STANDARD, &text[..text.len() - padding])
        }
    };
    let mut out = Vec::with_capacity(digits.len() / 4 * 3 + 2);
    let (fours, rest) = digits.as_chunks::<4>();
    let value = |b: u8| u32::from(table[usize::from(b)]);
    let mut bad = 0;
    for q in fours {
        let [a, b, c, d] = q.map(value);
        bad |= a | b | c | d;
        let bits = (a << 18 | b << 12 | c << 6 | d).to_be_bytes();
        out.extend_from_slice(&bits[1..]);
    }
    match *rest {
        [] => {}
        [a, b] => {
            let (a, b) = (value(a), value(b));
            // The bits that are not used are 0, so that each value has one text.
            bad |= a | b | (b & 15) << 8;
            out.push((a << 2 | b >> 4) as u8);
        }
        [a, b, c] => {
            let (a, b, c) = (value(a), value(b), value(c));
            bad |= a | b | c | (c & 3) << 8;
            out.extend_from_slice(&[(a << 2 | b >> 4) as u8, (b << 4 | c >> 2) as u8]);
        }
        _ => return None,
    }
    (bad < 64).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn vectors_of_the_rfc() {
        let rows = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        for (length, text) in rows.iter().enumerate() {
            let mut out = Vec::new();
            encode(Kind::Standard, &b"foobar"[..length], &mut out);
            assert_eq!(out, text.as_bytes());
            assert_eq!(decode(Kind::Standard, text.as_bytes()).unwrap(), &b"foobar"[..length]);
        }
    }

    #[test]
    fn what_is_no_base64_is_refused() {
        for text in
            ["A", "AA", "AAA", "====", "A===", "Zh==", "Zm9=", "Zg=", "Zm9v\n", "Zg==Zg==", "-_=="]
        {
            assert_eq!(decode(Kind::Standard, text.as_bytes()), None, "{text}");
        }
        for text in ["A", "Zg==", "Zh", "+/", "Zm9v="] {
            assert_eq!(decode(Kind::Url, text.as_bytes()), None, "{text}");
        }
    }

    proptest! {
        #[test]
        fn round_trip(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            for kind in [Kind::Standard, Kind::Url] {
                let mut text = Vec::new();
                encode(kind, &bytes, &mut text);
                prop_assert_eq!(decode(kind, &text), Some(bytes.clone()));
            }
        }

        #[test]
        fn what_decodes_encodes_back(text in "[A-Za-z0-9+/=]{0,12}") {
            if let Some(bytes) = decode(Kind::Standard, text.as_bytes()) {
                let mut again = Vec::new();
                encode(Kind::Standard, &bytes, &mut again);
                prop_assert_eq!(again, text.into_bytes());
            }
        }
    }
}
