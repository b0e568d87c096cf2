//! HEAD: who owns a prefix, and its newest base. JSON, so that a person can read it.

use bytes::Bytes;
use serde_json::{Map, Value, json};
use topics_env::objects::ObjectBytes;
use xxhash_rust::xxh3::xxh3_64;

use super::keys::HEAD;
use super::sealed::ObjectRef;
use crate::{RemoteError, Result};

/// The version of HEAD.
pub const VERSION: u32 = 1;
/// The most bytes of HEAD.
pub const MAX_BYTES: usize = 4096;
/// The most bytes of a holder's description.
const MAX_HOLDER: usize = 256;
/// What precedes the checksum at the end of HEAD.
const SUM: &str = ",\"sum\":\"";

/// The content of HEAD.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the prefix: random, chosen by its first owner.
    pub prefix_id: [u8; 16],
    /// Raised by every open.
    pub epoch: u64,
    /// The owner, described for a person.
    pub holder: String,
    /// Random, new at each write: no two contents of HEAD are the same.
    pub nonce: [u8; 16],
    /// The newest base.
    pub base: Option<ObjectRef>,
    /// The last round of the epoch, 0: none, if the owner closed it and has nothing left to ship.
    pub closed: Option<u64>,
}

impl Head {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let holder: String = self.holder.chars().take(MAX_HOLDER / 4).collect();
        let object =
            |o: &ObjectRef| json!({"key": o.key, "len": o.len, "hash": format!("{:032x}", o.hash)});
        let base = self.base.as_ref().map(object);
        let fields = json!({
            "version": VERSION,
            "prefix_id": hex(&self.prefix_id),
            "epoch": self.epoch,
            "holder": holder,
            "nonce": hex(&self.nonce),
            "base": base,
            "closed": self.closed,
        });
        let mut text = fields.to_string();
        text.pop();
        let sum = xxh3_64(text.as_bytes());
        text.push_str(&format!("{SUM}{sum:016x}\"}}"));
        text.into()
    }

    /// Decodes HEAD.
    pub fn decode(bytes: &[u8]) -> Result<Self> {
        let damaged = |detail: &str| RemoteError::damaged(HEAD, detail);
        if bytes.len() > MAX_BYTES {
            return Err(damaged("it is longer than 4096 bytes"));
        }
        let text = std::str::from_utf8(bytes).map_err(|_| damaged("it is not text"))?;
        let (body, sum) = text.rsplit_once(SUM).ok_or_else(|| damaged("it has no checksum"))?;
        if format!("{:016x}\"}}", xxh3_64(body.as_bytes())) != sum {
            return Err(damaged("its checksum does not match"));
        }
        let value = serde_json::from_slice(bytes).map_err(|e| damaged(&e.to_string()))?;
        let Value::Object(fields) = value else { return Err(damaged("it is not an object")) };
        let version = number(&fields, "version");
        if version != Some(u64::from(VERSION)) {
            let found = version.and_then(|v| u32::try_from(v).ok()).unwrap_or(u32::MAX);
            let key = HEAD.to_owned();
            return Err(RemoteError::Version { key, found, supported: VERSION });
        }
        Self::from_fields(&fields).ok_or_else(|| damaged("a field is missing or of another type"))
    }

    fn from_fields(fields: &Map<String, Value>) -> Option<Self> {
        let base = match fields.get("base")? {
            Value::Null => None,
            Value::Object(base) => Some(ObjectRef {
                key: base.get("key")?.as_str()?.to_owned(),
                len: number(base, "len")?,
                hash: u128::from_be_bytes(unhex(base.get("hash")?)?),
            }),
            _ => return None,
        };
        Some(Self {
            prefix_id: unhex(fields.get("prefix_id")?)?,
            epoch: number(fields, "epoch")?,
            holder: fields.get("holder")?.as_str()?.to_owned(),
            nonce: unhex(fields.get("nonce")?)?,
            base,
            closed: match fields.get("closed")? {
                Value::Null => None,
                round => Some(round.as_u64()?),
            },
        })
    }

    /// Whether this is an undamaged HEAD.
    #[must_use]
    pub fn is_valid(found: &ObjectBytes) -> bool {
        // A newer version is undamaged too.
        !matches!(Self::decode(&found.bytes), Err(RemoteError::Damaged { .. }))
    }
}

fn number(fields: &Map<String, Value>, name: &str) -> Option<u64> {
    fields.get(name)?.as_u64()
}

fn hex(bytes: &[u8; 16]) -> String {
    format!("{:032x}", u128::from_be_bytes(*bytes))
}

fn unhex(value: &Value) -> Option<[u8; 16]> {
    let text = value.as_str().filter(|t| t.len() == 32)?;
    u128::from_str_radix(text, 16).ok().map(u128::to_be_bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head() -> Head {
        let hash = 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef;
        Head {
            prefix_id: [2; 16],
            epoch: u64::MAX,
            holder: "host \"a\", process 7: \u{e9}".to_owned(),
            nonce: [3; 16],
            base: Some(ObjectRef { key: "1/b2".to_owned(), len: 77, hash }),
            closed: None,
        }
    }

    #[test]
    fn head_is_read_as_it_was_written() {
        for h in [head(), Head { base: None, closed: Some(9), ..head() }] {
            assert_eq!(Head::decode(&h.encode()).unwrap(), h);
        }
    }

    #[test]
    fn a_long_head_is_cut_and_fits() {
        let holder = "\u{1}\u{10ffff}".repeat(5000);
        let long = Head { holder, ..head() }.encode();
        assert!(long.len() <= MAX_BYTES, "{}", long.len());
        let kept = Head::decode(&long).unwrap();
        assert_eq!(
            Head { holder: String::new(), ..kept },
            Head { holder: String::new(), ..head() }
        );
    }

    #[test]
    fn no_damage_is_believed() {
        let bytes = head().encode();
        for at in 0..bytes.len() {
            for bit in 0..8 {
                let mut wrong = bytes.to_vec();
                wrong[at] ^= 1 << bit;
                assert!(matches!(Head::decode(&wrong), Err(RemoteError::Damaged { .. })));
            }
            assert!(Head::decode(&bytes[..at]).is_err());
        }
    }

    #[test]
    fn a_newer_version_is_named() {
        let text = String::from_utf8(head().encode().to_vec()).unwrap();
        let body = text.rsplit_once(SUM).unwrap().0.replace("\"version\":1", "\"version\":2");
        let newer = format!("{body}{SUM}{:016x}\"}}", xxh3_64(body.as_bytes()));
        let e = Head::decode(newer.as_bytes()).unwrap_err();
        assert!(matches!(e, RemoteError::Version { found: 2, .. }), "{e}");
    }
}
