//! The definition of a router, and its encoding.

use std::sync::Arc;

use crate::types::api::TopicMatch;
use crate::types::error::{Error, Result};

/// The version of the options in a RouterCreate frame, and of the routers in a snapshot.
const VERSION: u8 = 1;

/// The delivery guarantee of a destination.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Guarantee {
    /// Every record is copied at least once.
    #[default]
    AtLeastOnce,
    /// Every record is copied exactly once; the copy names its origin in `meta._topics_router`.
    ExactlyOnce,
}

impl Guarantee {
    /// The word in requests and answers.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::AtLeastOnce => "at_least_once",
            Self::ExactlyOnce => "exactly_once",
        }
    }
}

/// The requested definition of a router.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouterRequest {
    /// The topic whose records are copied.
    pub source: String,
    /// The topic that gets the copies.
    pub dest: String,
    /// Copies keep their node.
    pub preserve_node: bool,
    /// Copies keep their tag.
    pub preserve_tag: bool,
    /// Only records with these tags.
    pub filter: Option<TopicMatch>,
    /// Creates the destination when it is missing.
    pub create_dest: bool,
    /// Allows a directed cycle; a copy then ends after [`MAX_HOPS`] of such routers.
    pub allow_cycle: bool,
    /// The delivery guarantee.
    pub guarantee: Guarantee,
}

/// Maximum number of routers with `allow_cycle` that copy a record in turn.
pub(crate) const MAX_HOPS: u32 = 16;

impl Default for RouterRequest {
    fn default() -> Self {
        Self {
            source: String::new(),
            dest: String::new(),
            preserve_node: true,
            preserve_tag: true,
            filter: None,
            create_dest: true,
            allow_cycle: false,
            guarantee: Guarantee::AtLeastOnce,
        }
    }
}

/// The state of a router.
#[derive(Clone, Debug)]
pub struct RouterInfo {
    /// Its name.
    pub router: String,
    /// Its definition.
    pub request: RouterRequest,
    /// Copies made since the engine opened.
    pub forwarded_total: u64,
    /// Source records that it has not processed.
    pub lag: u64,
    /// The error of its last attempt, after which it retries.
    pub stopped_by: Option<Error>,
}

/// A topic that a router names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub topic_id: u64,
    pub epoch: u64,
}

/// A router's definition, as it is logged.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Definition {
    pub name: Arc<str>,
    pub id: u64,
    pub source: End,
    pub dest: End,
    pub request: RouterRequest,
    /// The source's head when the router was created.
    pub start: u64,
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    long(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn long(out: &mut Vec<u8>, v: u64) {
    out.extend_from_slice(&v.to_le_bytes());
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn byte(&mut self) -> Option<u8> {
        let (b, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*b)
    }
    fn long(&mut self) -> Option<u64> {
        let (b, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(u64::from_le_bytes(*b))
    }
    fn bytes(&mut self) -> Option<&'a [u8]> {
        let len = usize::try_from(self.long()?).ok()?;
        let (b, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(b)
    }
    fn text(&mut self) -> Option<String> {
        String::from_utf8(self.bytes()?.to_vec()).ok()
    }
}

fn damaged(what: &str) -> Error {
    Error::Internal(format!("{what} do not decode"))
}

fn version(what: &str, found: Option<u8>) -> Result<()> {
    match found {
        Some(VERSION) => Ok(()),
        Some(found) => Err(Error::Version {
            what: what.into(),
            found: u32::from(found),
            supported: u32::from(VERSION),
        }),
        None => Err(damaged(what)),
    }
}

impl Definition {
    /// The options of its frame.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let r = &self.request;
        let mut out = vec![VERSION];
        for end in [self.source, self.dest] {
            long(&mut out, end.topic_id);
            long(&mut out, end.epoch);
        }
        put(&mut out, r.source.as_bytes());
        put(&mut out, r.dest.as_bytes());
        let flags = u8::from(r.preserve_node)
            | u8::from(r.preserve_tag) << 1
            | u8::from(r.create_dest) << 2
            | u8::from(r.allow_cycle) << 3
            | u8::from(r.guarantee == Guarantee::ExactlyOnce) << 4;
        out.push(flags);
        let (kind, pattern) = match &r.filter {
            None => (0, &[][..]),
            Some(TopicMatch::Eq(tag)) => (1, &tag[..]),
            Some(TopicMatch::Glob(prefix)) => (2, &prefix[..]),
        };
        out.push(kind);
        put(&mut out, pattern);
        long(&mut out, self.start);
        out
    }

    /// Decodes the output of [`Self::encode`]. All other bytes are an error.
    pub(crate) fn decode(name: &str, id: u64, options: &[u8]) -> Result<Self> {
        let what = "a router's options";
        let mut r = Reader(options);
        version(what, r.byte())?;
        let found = Self::fields(&mut r, name, id).filter(|_| r.0.is_empty());
        found.ok_or_else(|| damaged(what))
    }

    fn fields(r: &mut Reader<'_>, name: &str, id: u64) -> Option<Self> {
        let mut end = || Some(End { topic_id: r.long()?, epoch: r.long()? });
        let (from, to) = (end()?, end()?);
        let (source, dest) = (r.text()?, r.text()?);
        let flags = r.byte().filter(|f| *f < 32)?;
        let (kind, pattern) = (r.byte()?, r.bytes()?.to_vec());
        let filter = match kind {
            0 if pattern.is_empty() => None,
            1 => Some(TopicMatch::Eq(pattern)),
            2 => Some(TopicMatch::Glob(pattern)),
            _ => return None,
        };
        let on = |bit: u8| flags & (1 << bit) != 0;
        let request = RouterRequest {
            source,
            dest,
            preserve_node: on(0),
            preserve_tag: on(1),
            filter,
            create_dest: on(2),
            allow_cycle: on(3),
            guarantee: if on(4) { Guarantee::ExactlyOnce } else { Guarantee::AtLeastOnce },
        };
        let start = r.long()?;
        Some(Self { name: name.into(), id, source: from, dest: to, request, start })
    }
}

/// Encodes the routers of a snapshot: each definition with its cursor.
pub(crate) fn encode_all(all: &[(Arc<Definition>, u64)]) -> Vec<u8> {
    let mut out = vec![VERSION];
    long(&mut out, all.len() as u64);
    for (d, cursor) in all {
        put(&mut out, d.name.as_bytes());
        long(&mut out, d.id);
        put(&mut out, &d.encode());
        long(&mut out, *cursor);
    }
    out
}

/// Decodes the output of [`encode_all`].
pub(crate) fn decode_all(bytes: &[u8]) -> Result<Vec<(Definition, u64)>> {
    let what = "the routers of a snapshot";
    let mut r = Reader(bytes);
    version(what, r.byte())?;
    let mut out = Vec::new();
    for _ in 0..r.long().ok_or_else(|| damaged(what))? {
        let parts = (|| Some((r.text()?, r.long()?, r.bytes()?, r.long()?)))();
        let (name, id, options, cursor) = parts.ok_or_else(|| damaged(what))?;
        out.push((Definition::decode(&name, id, options)?, cursor));
    }
    if r.0.is_empty() { Ok(out) } else { Err(damaged(what)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn round_trips_and_refuses_everything_else() {
        let filters =
            [None, Some(TopicMatch::Eq(b"x".to_vec())), Some(TopicMatch::Glob(b"".to_vec()))];
        for (i, filter) in filters.into_iter().enumerate() {
            let d = Definition {
                name: "r".into(),
                id: 7,
                source: End { topic_id: 1, epoch: 2 },
                dest: End { topic_id: 3, epoch: 4 },
                request: RouterRequest {
                    source: "s".into(),
                    dest: "d".into(),
                    filter,
                    allow_cycle: i == 1,
                    preserve_tag: i == 2,
                    ..RouterRequest::default()
                },
                start: 99,
            };
            let bytes = d.encode();
            assert_eq!(Definition::decode("r", 7, &bytes).unwrap(), d);
            for cut in 0..bytes.len() {
                assert!(Definition::decode("r", 7, &bytes[..cut]).is_err());
            }
            let mut newer = bytes.clone();
            newer[0] = 2;
            assert_eq!(Definition::decode("r", 7, &newer).unwrap_err().code(), "version");
            let all = encode_all(&[(Arc::new(d.clone()), 5)]);
            assert_eq!(decode_all(&all).unwrap(), [(d, 5)]);
            assert!(decode_all(&all[..all.len() - 1]).is_err());
        }
    }
}
