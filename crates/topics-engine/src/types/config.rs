//! A topic's configuration: defaults, updates, and the bytes that the log carries.

use super::api::Durability;
use super::error::{Error, Result};
use super::name;

/// The type of a topic; immutable after creation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopicType {
    /// An append-only log.
    #[default]
    Log,
    /// A leased job queue.
    Queue,
}

/// The behaviour at a cap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Discard {
    /// The oldest live records are evicted.
    #[default]
    Old,
    /// The write is refused before a seq is assigned.
    Reject,
}

/// The full configuration of a topic. Durations are milliseconds; 0 switches a limit off.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TopicConfig {
    /// `log` or `queue`.
    pub kind: TopicType,
    /// Time to live: a record has expired when `now - ts > ttl_ms`.
    pub ttl_ms: u64,
    /// Maximum number of live records.
    pub cap_records: u64,
    /// Maximum live payload bytes.
    pub cap_bytes: u64,
    /// The behaviour at a cap.
    pub discard: Discard,
    /// The durability class of its writes.
    pub durability: Durability,
    /// Manual priority within ±1000; `None`: automatic.
    pub priority: Option<i32>,
    /// Whether the priority follows the recency of reads when there is no manual one.
    pub auto_priority: bool,
    /// Whether routers and dead letters create their destination again after it was deleted.
    pub auto_create: bool,
    /// Time that an idempotency key is remembered, ms.
    pub idempotency_window_ms: u64,
    /// Whether node filtering applies to reads.
    pub dedupe_node: bool,
    /// Queue: default lease, 100…86 400 000 ms.
    pub lease_ms: u64,
    /// Queue: coalescing window of a claim, 0…5000 ms.
    pub claim_jitter_ms: u64,
    /// Queue: deliveries after which a job becomes a dead letter; 0: no limit.
    pub max_deliveries: u64,
    /// Queue: the topic that gets dead letters.
    pub dead_letter: Option<String>,
    /// Queue: delay of a nack that names none, ms.
    pub retry_backoff_ms: u64,
    /// Queue: whether claims get no jobs.
    pub paused: bool,
    /// Queue: whether lease events are logged.
    pub leases_durable: bool,
}

impl Default for TopicConfig {
    fn default() -> Self {
        Self {
            kind: TopicType::Log,
            ttl_ms: 0,
            cap_records: 0,
            cap_bytes: 0,
            discard: Discard::Old,
            durability: Durability::Disk,
            priority: None,
            auto_priority: true,
            auto_create: true,
            idempotency_window_ms: 120_000,
            dedupe_node: true,
            lease_ms: 30_000,
            claim_jitter_ms: 0,
            max_deliveries: 0,
            dead_letter: None,
            retry_backoff_ms: 1000,
            paused: false,
            leases_durable: false,
        }
    }
}

/// The fields that a request names; the others stay as they are (or default at creation).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConfigPatch {
    /// See [`TopicConfig::kind`].
    pub kind: Option<TopicType>,
    /// See [`TopicConfig::ttl_ms`].
    pub ttl_ms: Option<u64>,
    /// See [`TopicConfig::cap_records`].
    pub cap_records: Option<u64>,
    /// See [`TopicConfig::cap_bytes`].
    pub cap_bytes: Option<u64>,
    /// See [`TopicConfig::discard`]; a queue's default is `Reject`.
    pub discard: Option<Discard>,
    /// See [`TopicConfig::durability`].
    pub durability: Option<Durability>,
    /// See [`TopicConfig::priority`]; `Some(None)` sets automatic.
    pub priority: Option<Option<i32>>,
    /// See [`TopicConfig::auto_priority`].
    pub auto_priority: Option<bool>,
    /// See [`TopicConfig::auto_create`].
    pub auto_create: Option<bool>,
    /// See [`TopicConfig::idempotency_window_ms`].
    pub idempotency_window_ms: Option<u64>,
    /// See [`TopicConfig::dedupe_node`].
    pub dedupe_node: Option<bool>,
    /// See [`TopicConfig::lease_ms`].
    pub lease_ms: Option<u64>,
    /// See [`TopicConfig::claim_jitter_ms`].
    pub claim_jitter_ms: Option<u64>,
    /// See [`TopicConfig::max_deliveries`].
    pub max_deliveries: Option<u64>,
    /// See [`TopicConfig::dead_letter`]; `Some(None)` removes it.
    pub dead_letter: Option<Option<String>>,
    /// See [`TopicConfig::retry_backoff_ms`].
    pub retry_backoff_ms: Option<u64>,
    /// See [`TopicConfig::paused`].
    pub paused: Option<bool>,
    /// See [`TopicConfig::leases_durable`].
    pub leases_durable: Option<bool>,
}

/// The version of [`TopicConfig::encode`].
const VERSION: u8 = 1;

impl TopicConfig {
    /// The config that a creation with these fields makes; `class` is that of a patch without one.
    pub(crate) fn created(patch: &ConfigPatch, class: Durability) -> Self {
        let mut config = Self { durability: class, ..Self::default() };
        if patch.kind == Some(TopicType::Queue) {
            config.kind = TopicType::Queue;
            config.discard = Discard::Reject;
        }
        config.merge(patch);
        config
    }

    /// Sets the named fields, except the type. The patch must have been [`ConfigPatch::checked`].
    pub(crate) fn merge(&mut self, patch: &ConfigPatch) {
        fn set<T: Clone>(to: &mut T, from: &Option<T>) {
            if let Some(v) = from {
                *to = v.clone();
            }
        }
        set(&mut self.ttl_ms, &patch.ttl_ms);
        set(&mut self.cap_records, &patch.cap_records);
        set(&mut self.cap_bytes, &patch.cap_bytes);
        set(&mut self.discard, &patch.discard);
        set(&mut self.durability, &patch.durability);
        set(&mut self.priority, &patch.priority);
        set(&mut self.auto_priority, &patch.auto_priority);
        set(&mut self.auto_create, &patch.auto_create);
        set(&mut self.idempotency_window_ms, &patch.idempotency_window_ms);
        set(&mut self.dedupe_node, &patch.dedupe_node);
        set(&mut self.lease_ms, &patch.lease_ms);
        set(&mut self.claim_jitter_ms, &patch.claim_jitter_ms);
        set(&mut self.max_deliveries, &patch.max_deliveries);
        set(&mut self.dead_letter, &patch.dead_letter);
        set(&mut self.retry_backoff_ms, &patch.retry_backoff_ms);
        set(&mut self.paused, &patch.paused);
        set(&mut self.leases_durable, &patch.leases_durable);
    }

    /// The bytes of TopicCreate and ConfigUpdate: a version byte, then the fields in order.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut w = Writer(vec![VERSION]);
        w.byte(u8::from(self.kind == TopicType::Queue));
        w.long(self.ttl_ms);
        w.long(self.cap_records);
        w.long(self.cap_bytes);
        w.byte(u8::from(self.discard == Discard::Reject));
        w.byte(self.durability as u8);
        w.byte(u8::from(self.priority.is_some()));
        w.int(self.priority.unwrap_or(0));
        w.byte(u8::from(self.auto_priority));
        w.byte(u8::from(self.auto_create));
        w.long(self.idempotency_window_ms);
        w.byte(u8::from(self.dedupe_node));
        w.long(self.lease_ms);
        w.long(self.claim_jitter_ms);
        w.long(self.max_deliveries);
        w.text(self.dead_letter.as_deref().unwrap_or(""));
        w.long(self.retry_backoff_ms);
        w.byte(u8::from(self.paused));
        w.byte(u8::from(self.leases_durable));
        w.0
    }

    /// Decodes bytes of [`Self::encode`]. Anything else is an error, never a default.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self> {
        let mut r = Reader(bytes);
        match r.byte() {
            Some(VERSION) => {}
            Some(v) => {
                return Err(Error::Version {
                    what: "a topic's config".into(),
                    found: u32::from(v),
                    supported: u32::from(VERSION),
                });
            }
            None => return Err(damaged()),
        }
        let config = r.fields().ok_or_else(damaged)?;
        if r.0.is_empty() { Ok(config) } else { Err(damaged()) }
    }
}

fn damaged() -> Error {
    Error::Corrupt {
        file: "a topic's config".into(),
        offset: 0,
        detail: "it cannot be parsed: run verify".into(),
    }
}

struct Writer(Vec<u8>);

impl Writer {
    fn byte(&mut self, v: u8) {
        self.0.push(v);
    }
    fn int(&mut self, v: i32) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    fn long(&mut self, v: u64) {
        self.0.extend_from_slice(&v.to_le_bytes());
    }
    /// Appends a name: at most 255 bytes, empty for none.
    fn text(&mut self, v: &str) {
        self.byte(v.len() as u8);
        self.0.extend_from_slice(v.as_bytes());
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }
    fn byte(&mut self) -> Option<u8> {
        self.take().map(|[b]| b)
    }
    fn flag(&mut self) -> Option<bool> {
        match self.byte()? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
    fn int(&mut self) -> Option<i32> {
        self.take().map(i32::from_le_bytes)
    }
    fn long(&mut self) -> Option<u64> {
        self.take().map(u64::from_le_bytes)
    }
    fn text(&mut self) -> Option<String> {
        let len = usize::from(self.byte()?);
        let (head, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        String::from_utf8(head.to_vec()).ok()
    }
    fn fields(&mut self) -> Option<TopicConfig> {
        Some(TopicConfig {
            kind: if self.flag()? { TopicType::Queue } else { TopicType::Log },
            ttl_ms: self.long()?,
            cap_records: self.long()?,
            cap_bytes: self.long()?,
            discard: if self.flag()? { Discard::Reject } else { Discard::Old },
            durability: match self.byte()? {
                0 => Durability::Ephemeral,
                1 => Durability::Memory,
                2 => Durability::Disk,
                3 => Durability::Fsync,
                _ => return None,
            },
            priority: {
                let set = self.flag()?;
                let value = self.int()?;
                set.then_some(value)
            },
            auto_priority: self.flag()?,
            auto_create: self.flag()?,
            idempotency_window_ms: self.long()?,
            dedupe_node: self.flag()?,
            lease_ms: self.long()?,
            claim_jitter_ms: self.long()?,
            max_deliveries: self.long()?,
            dead_letter: Some(self.text()?).filter(|s| !s.is_empty()),
            retry_backoff_ms: self.long()?,
            paused: self.flag()?,
            leases_durable: self.flag()?,
        })
    }
}

impl ConfigPatch {
    /// The patch with values clamped to their ranges; an error if a field is invalid.
    pub(crate) fn checked(&self, topic: &str) -> Result<Self> {
        let mut p = self.clone();
        p.priority = p.priority.map(|v| v.map(|n| n.clamp(-1000, 1000)));
        p.lease_ms = p.lease_ms.map(|v| v.clamp(100, 86_400_000));
        p.claim_jitter_ms = p.claim_jitter_ms.map(|v| v.min(5000));
        if let Some(Some(dest)) = &p.dead_letter {
            name::check(dest)?;
            if dest == topic {
                return Err(Error::InvalidRequest(format!(
                    "dead_letter of {topic:?} must be another topic"
                )));
            }
        }
        Ok(p)
    }

    /// Of the type and the durability class, which a write never changes: the first that is named and
    /// differs from `config`, as its name, its value there and its value here.
    pub(crate) fn conflict(
        &self,
        config: &TopicConfig,
    ) -> Option<(&'static str, &'static str, &'static str)> {
        if let Some(kind) = self.kind.filter(|kind| *kind != config.kind) {
            return Some(("type", config.kind.as_str(), kind.as_str()));
        }
        let class = self.durability.filter(|class| *class != config.durability)?;
        Some(("durability", config.durability.as_str(), class.as_str()))
    }
}

impl TopicType {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Queue => "queue",
        }
    }
}

impl Discard {
    /// The word on the wire.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Old => "old",
            Self::Reject => "reject",
        }
    }
}

#[cfg(test)]
mod tests;
