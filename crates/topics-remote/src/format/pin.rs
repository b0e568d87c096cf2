//! Pins: what a reader of a prefix writes so that nothing that its catalog names is deleted.
//!
//! JSON: `{"version":1,"catalog":{"key":…,"len":…,"hash":…},"until_ms":…}`.

use bytes::Bytes;
use serde_json::{Value, json};

use super::sealed::ObjectRef;
use crate::{RemoteError, Result};

/// The version of a pin.
pub const VERSION: u32 = 1;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    /// The catalog: one that HEAD names, or named since less than the grace.
    pub catalog: ObjectRef,
    /// Until when, by the clock of the store, in milliseconds since the Unix epoch.
    pub until_ms: u64,
}

impl Pin {
    #[must_use]
    pub fn encode(&self) -> Bytes {
        let c = &self.catalog;
        let catalog = json!({"key": c.key, "len": c.len, "hash": format!("{:032x}", c.hash)});
        json!({"version": VERSION, "catalog": catalog, "until_ms": self.until_ms})
            .to_string()
            .into()
    }

    /// Decodes the pin `key`.
    pub fn decode(key: &str, bytes: &[u8]) -> Result<Self> {
        let damaged = || RemoteError::damaged(key, "it is not a pin");
        let value: Value = serde_json::from_slice(bytes).map_err(|_| damaged())?;
        let number = |v: &Value, name: &str| v.get(name).and_then(Value::as_u64);
        let found = number(&value, "version").ok_or_else(damaged)?;
        if found != u64::from(VERSION) {
            let (key, found) = (key.to_owned(), u32::try_from(found).unwrap_or(u32::MAX));
            return Err(RemoteError::Version { key, found, supported: VERSION });
        }
        let decoded = || {
            let catalog = value.get("catalog")?;
            let text = |name: &str| catalog.get(name).and_then(Value::as_str);
            let hash = u128::from_str_radix(text("hash")?, 16).ok()?;
            let (key, len) = (text("key")?.to_owned(), number(catalog, "len")?);
            let until_ms = number(&value, "until_ms")?;
            Some(Self { catalog: ObjectRef { key, len, hash }, until_ms })
        };
        decoded().ok_or_else(damaged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pin_is_decoded_as_it_was_encoded() {
        let catalog = ObjectRef { key: "c/1-2.cat".to_owned(), len: 7, hash: 5 << 100 };
        let pin = Pin { catalog, until_ms: 1_700_000_000_000 };
        let bytes = pin.encode();
        assert_eq!(Pin::decode("pins/a", &bytes).unwrap(), pin);
        for len in 0..bytes.len() {
            let e = Pin::decode("pins/a", &bytes[..len]).unwrap_err();
            assert!(matches!(e, RemoteError::Damaged { .. }), "{len}: {e}");
        }
        let newer = String::from_utf8(bytes.to_vec()).unwrap().replace("n\":1", "n\":2");
        let e = Pin::decode("pins/a", newer.as_bytes()).unwrap_err();
        assert!(matches!(e, RemoteError::Version { found: 2, .. }), "{e}");
    }
}
