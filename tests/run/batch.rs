//! The writes of a script.

use topics_engine::ConfigPatch;

use crate::oracle::{Rec, tag_of};

/// The shape of one write; its payloads are derived from the attempt's number.
#[derive(Clone, Debug)]
pub struct Batch {
    pub n: usize,
    pub size: usize,
    pub tags: &'static [&'static str],
    pub node: &'static str,
    pub meta: bool,
    pub binary: bool,
    pub ttl_ms: u64,
    pub key: Option<String>,
    pub expect: Option<Expect>,
    pub sync: bool,
    pub config: Option<ConfigPatch>,
}

/// A condition on the head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    Right,
    Wrong,
}

/// A batch of `n` small JSON records.
pub fn batch(n: usize) -> Batch {
    Batch {
        n,
        size: 24,
        tags: &[],
        node: "",
        meta: false,
        binary: false,
        ttl_ms: 0,
        key: None,
        expect: None,
        sync: false,
        config: None,
    }
}

impl Batch {
    /// Payloads of about this many bytes.
    pub fn size(self, size: usize) -> Self {
        Self { size, ..self }
    }

    /// Tags, assigned in turn.
    pub fn tags(self, tags: &'static [&'static str]) -> Self {
        Self { tags, ..self }
    }

    pub fn node(self, node: &'static str) -> Self {
        Self { node, ..self }
    }

    pub fn meta(self) -> Self {
        Self { meta: true, ..self }
    }

    pub fn binary(self) -> Self {
        Self { binary: true, ..self }
    }

    pub fn ttl(self, ttl_ms: u64) -> Self {
        Self { ttl_ms, ..self }
    }

    pub fn key(self, key: impl Into<String>) -> Self {
        Self { key: Some(key.into()), ..self }
    }

    pub fn if_head(self) -> Self {
        Self { expect: Some(Expect::Right), ..self }
    }

    pub fn if_wrong_head(self) -> Self {
        Self { expect: Some(Expect::Wrong), ..self }
    }

    pub fn sync(self) -> Self {
        Self { sync: true, ..self }
    }

    pub fn config(self, config: ConfigPatch) -> Self {
        Self { config: Some(config), ..self }
    }

    /// The records of the attempt with this number.
    pub fn records(&self, attempt: usize) -> Vec<Rec> {
        (0..self.n)
            .map(|i| {
                let mut text = tag_of(attempt, i);
                while text.len() < self.size {
                    text.push((b'a' + (text.len() % 26) as u8) as char);
                }
                let data = if self.binary { text } else { format!("\"{text}\"") };
                let tag = if self.tags.is_empty() { "" } else { self.tags[i % self.tags.len()] };
                let meta = if self.meta { format!("{{\"i\":\"{i}\"}}") } else { String::new() };
                Rec {
                    data: data.into_bytes(),
                    binary: self.binary,
                    tag: tag.as_bytes().to_vec(),
                    node: self.node.as_bytes().to_vec(),
                    meta: meta.into_bytes(),
                    ttl_ms: self.ttl_ms,
                }
            })
            .collect()
    }
}
