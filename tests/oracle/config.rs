//! The result of applying a patch to a config: stated here independently of the engine.

use topics_engine::{ConfigPatch, Discard, TopicConfig, TopicType};

/// The config after setting the given fields; base `None`: the topic is created.
pub fn apply_patch(base: Option<&TopicConfig>, p: &ConfigPatch) -> TopicConfig {
    let mut c = base.cloned().unwrap_or_else(|| {
        let mut c = TopicConfig::default();
        if p.kind == Some(TopicType::Queue) {
            c.discard = Discard::Reject;
        }
        c
    });
    macro_rules! set {
        ($($field:ident),*) => { $(if let Some(v) = p.$field.clone() { c.$field = v; })* };
    }
    set!(kind, ttl_ms, cap_records, cap_bytes, discard, durability, priority, auto_priority);
    set!(auto_create, idempotency_window_ms, dedupe_node, lease_ms, claim_jitter_ms);
    set!(max_deliveries, dead_letter, retry_backoff_ms, paused, leases_durable);
    c
}
