//! JSON objects, assembled as text.

use std::ops::RangeInclusive;

use topics_engine::Appended;

use crate::json::{push_ms, push_str, push_u64};

/// Builds a JSON object. Keys are constants of this crate, or names that need no escapes.
pub struct Object(Vec<u8>);

impl Object {
    /// Begins an object; `capacity` is the expected number of bytes.
    #[must_use]
    pub fn new(capacity: usize) -> Self {
        let mut out = Vec::with_capacity(capacity);
        out.push(b'{');
        Self(out)
    }

    /// Reopens a finished object to add fields.
    #[must_use]
    pub fn reopen(mut object: Vec<u8>) -> Self {
        object.pop();
        Self(object)
    }

    /// Begins a field; the caller appends its value to the returned buffer.
    pub fn key(&mut self, key: &str) -> &mut Vec<u8> {
        if self.0.last() != Some(&b'{') {
            self.0.push(b',');
        }
        self.0.push(b'"');
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(b"\":");
        &mut self.0
    }

    /// A field with an integer.
    pub fn int(&mut self, key: &str, value: u64) -> &mut Self {
        push_u64(self.key(key), value);
        self
    }

    /// A field with an integer or `null`.
    pub fn maybe(&mut self, key: &str, value: Option<u64>) -> &mut Self {
        match value {
            Some(value) => self.int(key, value),
            None => self.raw(key, b"null"),
        }
    }

    /// A field with an array of the integers of a range.
    pub fn ints(&mut self, key: &str, values: RangeInclusive<u64>) -> &mut Self {
        push_array_with(self.key(key), values, push_u64);
        self
    }

    /// A field with a boolean.
    pub fn flag(&mut self, key: &str, value: bool) -> &mut Self {
        self.raw(key, if value { b"true" } else { b"false" })
    }

    /// A field with a string.
    pub fn name(&mut self, key: &str, value: &str) -> &mut Self {
        push_str(self.key(key), value.as_bytes());
        self
    }

    /// A field whose value is JSON text.
    pub fn raw(&mut self, key: &str, json: &[u8]) -> &mut Self {
        self.key(key).extend_from_slice(json);
        self
    }

    /// A field with an array of strings.
    pub fn names(&mut self, key: &str, values: &[String]) -> &mut Self {
        push_array_with(self.key(key), values, |out, value| push_str(out, value.as_bytes()));
        self
    }

    /// The field `performance`.
    pub fn performance(&mut self, p: &Performance) -> &mut Self {
        let out = self.key("performance");
        out.extend_from_slice(b"{\"server_total_ms\":");
        push_ms(out, p.server_total_ns);
        if let Some(ns) = p.wal_append_ns {
            out.extend_from_slice(b",\"wal_append_ms\":");
            push_ms(out, ns);
        }
        if let Some(ns) = p.fsync_ns {
            out.extend_from_slice(b",\"fsync_ms\":");
            push_ms(out, ns);
        }
        if let Some(ns) = p.throttle_wait_ns {
            out.extend_from_slice(b",\"throttle_wait_ms\":");
            push_ms(out, ns);
        }
        if let Some(records) = p.records_scanned {
            out.extend_from_slice(b",\"records_scanned\":");
            push_u64(out, records);
        }
        if p.cold_segments_read > 0 {
            out.extend_from_slice(b",\"cold_segments_read\":");
            push_u64(out, u64::from(p.cold_segments_read));
        }
        out.push(b'}');
        self
    }

    /// The finished text.
    #[must_use]
    pub fn finish(mut self) -> Vec<u8> {
        self.0.push(b'}');
        self.0
    }
}

/// The cost of a verb, as its answer reports it.
#[derive(Clone, Copy, Debug, Default)]
pub struct Performance {
    /// From the call to the answer.
    pub server_total_ns: u64,
    /// From staging to the end of the write to the log.
    pub wal_append_ns: Option<u64>,
    /// The share of a sync; 0 unless the class needs one.
    pub fsync_ns: Option<u64>,
    /// The wait for a staging permit.
    pub throttle_wait_ns: Option<u64>,
    /// Records that a filter scanned.
    pub records_scanned: Option<u64>,
    /// Reads of cold segments; absent without one.
    pub cold_segments_read: u32,
}

impl Performance {
    /// The cost of a write.
    #[must_use]
    pub fn of_write(a: &Appended, server_total_ns: u64) -> Self {
        Self {
            server_total_ns,
            wal_append_ns: Some(a.wal_append_ns),
            fsync_ns: Some(a.fsync_ns),
            throttle_wait_ns: Some(a.throttle_ns),
            ..Self::default()
        }
    }

    /// The cost of a verb that scanned records.
    #[must_use]
    pub fn of_scan(records: u64, server_total_ns: u64) -> Self {
        Self { server_total_ns, records_scanned: Some(records), ..Self::default() }
    }
}

/// Appends an array of values that are JSON text.
pub(crate) fn push_array(out: &mut Vec<u8>, items: impl Iterator<Item = Vec<u8>>) {
    push_array_with(out, items, |out, item| out.extend_from_slice(&item));
}

/// Appends an array; `push` appends one element.
pub(crate) fn push_array_with<T>(
    out: &mut Vec<u8>,
    items: impl IntoIterator<Item = T>,
    mut push: impl FnMut(&mut Vec<u8>, T),
) {
    out.push(b'[');
    for (i, item) in items.into_iter().enumerate() {
        if i > 0 {
            out.push(b',');
        }
        push(out, item);
    }
    out.push(b']');
}
