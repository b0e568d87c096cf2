//! The config of a topic in requests and answers.

use topics_engine::{ConfigPatch, Durability, TopicConfig};

use crate::error::Failure;
use crate::json::{FieldPath, Reader, Scanner, Text, push_i64, push_str, push_u64};
use crate::nearest;
use crate::routes::fields;
use crate::words::{DISCARDS, DURABILITIES, TYPES, Words};

/// Reads a config object. An unknown field is refused, so that a misspelt limit does not go unnoticed.
pub fn read(s: &mut Scanner<'_>, within: &'static str) -> Result<ConfigPatch, Failure> {
    let path = FieldPath { within, ..FieldPath::default() };
    s.expect_type(
        if within.is_empty() { FieldPath::field("config") } else { path },
        "an object",
        |b| b == b'{',
    )?;
    let mut patch = ConfigPatch::default();
    let mut durable = None;
    s.object(|s, key| field(s, key, path, &mut patch, &mut durable))?;
    // `durable` counts only without `durability`.
    let alias = |on| if on { Durability::Fsync } else { Durability::Disk };
    patch.durability = patch.durability.or(durable.map(alias));
    Ok(patch)
}

fn field<'a>(
    s: &mut Scanner<'a>,
    key: Text<'a>,
    path: FieldPath,
    patch: &mut ConfigPatch,
    durable: &mut Option<bool>,
) -> Result<(), Failure> {
    match key.decode().as_deref() {
        Some("type") => patch.kind = Some(word(s, path.at("type"), &TYPES)?),
        Some("discard") => patch.discard = Some(word(s, path.at("discard"), &DISCARDS)?),
        Some("durability") => {
            patch.durability = Some(word(s, path.at("durability"), &DURABILITIES)?);
        }
        Some("durable") => *durable = Some(s.bool(path.at("durable"))?),
        Some("priority") => patch.priority = Some(priority(s, path.at("priority"))?),
        Some("dead_letter") => {
            let path = path.at("dead_letter");
            let name = if s.null()? { None } else { Some(s.text(path)?.into_owned()) };
            patch.dead_letter = Some(name);
        }
        Some("ttl_ms") => patch.ttl_ms = Some(s.u64(path.at("ttl_ms"))?),
        Some("cap_records") => patch.cap_records = Some(s.u64(path.at("cap_records"))?),
        Some("cap_bytes") => patch.cap_bytes = Some(s.u64(path.at("cap_bytes"))?),
        Some("idempotency_window_ms") => {
            patch.idempotency_window_ms = Some(s.u64(path.at("idempotency_window_ms"))?);
        }
        Some("lease_ms") => patch.lease_ms = Some(s.u64(path.at("lease_ms"))?),
        Some("claim_jitter_ms") => {
            patch.claim_jitter_ms = Some(s.u64(path.at("claim_jitter_ms"))?);
        }
        Some("max_deliveries") => patch.max_deliveries = Some(s.u64(path.at("max_deliveries"))?),
        Some("retry_backoff_ms") => {
            patch.retry_backoff_ms = Some(s.u64(path.at("retry_backoff_ms"))?);
        }
        Some("auto_priority") => patch.auto_priority = Some(s.bool(path.at("auto_priority"))?),
        Some("auto_create") => patch.auto_create = Some(s.bool(path.at("auto_create"))?),
        Some("dedupe_node") => patch.dedupe_node = Some(s.bool(path.at("dedupe_node"))?),
        Some("paused") => patch.paused = Some(s.bool(path.at("paused"))?),
        Some("leases_durable") => patch.leases_durable = Some(s.bool(path.at("leases_durable"))?),
        name => return Err(unknown(path, name)),
    }
    Ok(())
}

/// What other systems call a field. Such a name is refused with a hint.
pub const SYNONYMS: [(&str, &str); 19] = [
    ("retention", "ttl_ms"),
    ("retention_ms", "ttl_ms"),
    ("max_age", "ttl_ms"),
    ("max_age_ms", "ttl_ms"),
    ("expire", "ttl_ms"),
    ("retention_bytes", "cap_bytes"),
    ("max_bytes", "cap_bytes"),
    ("max_size", "cap_bytes"),
    ("maxlen", "cap_records"),
    ("max_len", "cap_records"),
    ("max_records", "cap_records"),
    ("max_messages", "cap_records"),
    ("visibility_timeout", "lease_ms"),
    ("ack_timeout", "lease_ms"),
    ("max_attempts", "max_deliveries"),
    ("max_retries", "max_deliveries"),
    ("retry_delay", "retry_backoff_ms"),
    ("dlq", "dead_letter"),
    ("dedup_window", "idempotency_window_ms"),
];

fn known() -> Vec<&'static str> {
    fields::CONFIG.iter().map(|field| field.name).collect()
}

fn unknown(path: FieldPath, name: Option<&str>) -> Failure {
    let name = name.unwrap_or("\u{fffd}");
    let meant = SYNONYMS.iter().find(|(other, _)| *other == name).map(|(_, field)| *field);
    let known = known();
    let meant = meant.or_else(|| nearest::nearest(name, &known));
    nearest::refusal("config field", path.within, None, name, &known, meant)
}

/// An integer or null. The engine clamps it.
fn priority(s: &mut Scanner<'_>, path: FieldPath) -> Result<Option<i32>, Failure> {
    if s.null()? {
        return Ok(None);
    }
    s.i32(path).map(Some)
}

fn word<T: Copy>(s: &mut Scanner<'_>, path: FieldPath, words: &Words<T>) -> Result<T, Failure> {
    path.choose(&s.text(path)?, words)
}

/// Appends the whole config.
pub fn push(out: &mut Vec<u8>, c: &TopicConfig) {
    let text = |out: &mut Vec<u8>, key: &str, value: Option<&str>| {
        out.extend_from_slice(key.as_bytes());
        match value {
            Some(value) => push_str(out, value.as_bytes()),
            None => out.extend_from_slice(b"null"),
        }
    };
    let int = |out: &mut Vec<u8>, key: &str, value: u64| {
        out.extend_from_slice(key.as_bytes());
        push_u64(out, value);
    };
    let flag = |out: &mut Vec<u8>, key: &str, value: bool| {
        out.extend_from_slice(key.as_bytes());
        out.extend_from_slice(if value { b"true" } else { b"false" });
    };
    text(out, "{\"type\":", Some(c.kind.as_str()));
    int(out, ",\"ttl_ms\":", c.ttl_ms);
    int(out, ",\"cap_records\":", c.cap_records);
    int(out, ",\"cap_bytes\":", c.cap_bytes);
    text(out, ",\"discard\":", Some(c.discard.as_str()));
    text(out, ",\"durability\":", Some(c.durability.as_str()));
    flag(out, ",\"durable\":", c.durability == Durability::Fsync);
    out.extend_from_slice(b",\"priority\":");
    match c.priority {
        Some(p) => push_i64(out, i64::from(p)),
        None => out.extend_from_slice(b"null"),
    }
    flag(out, ",\"auto_priority\":", c.auto_priority);
    flag(out, ",\"auto_create\":", c.auto_create);
    int(out, ",\"idempotency_window_ms\":", c.idempotency_window_ms);
    flag(out, ",\"dedupe_node\":", c.dedupe_node);
    int(out, ",\"lease_ms\":", c.lease_ms);
    int(out, ",\"claim_jitter_ms\":", c.claim_jitter_ms);
    int(out, ",\"max_deliveries\":", c.max_deliveries);
    text(out, ",\"dead_letter\":", c.dead_letter.as_deref());
    int(out, ",\"retry_backoff_ms\":", c.retry_backoff_ms);
    flag(out, ",\"paused\":", c.paused);
    flag(out, ",\"leases_durable\":", c.leases_durable);
    out.push(b'}');
}

/// Parses a config from a JSON text.
pub fn parse(text: &[u8]) -> Result<ConfigPatch, Failure> {
    let mut s = Scanner::new(text)?;
    let patch = read(&mut s, "")?;
    s.end()?;
    Ok(patch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_is_read_and_reported() {
        let text = r#"{"type":"queue","ttl_ms":1,"cap_records":2,"cap_bytes":3,"discard":"reject",
            "durability":"memory","durable":true,"priority":-5,"auto_priority":false,
            "auto_create":false,"idempotency_window_ms":6,"dedupe_node":false,"lease_ms":700,
            "claim_jitter_ms":8,"max_deliveries":9,"dead_letter":"dl","retry_backoff_ms":10,
            "paused":true,"leases_durable":true}"#;
        let p = parse(text.as_bytes()).unwrap();
        let config = TopicConfig {
            kind: p.kind.unwrap(),
            ttl_ms: p.ttl_ms.unwrap(),
            cap_records: p.cap_records.unwrap(),
            cap_bytes: p.cap_bytes.unwrap(),
            discard: p.discard.unwrap(),
            durability: p.durability.unwrap(),
            priority: p.priority.unwrap(),
            auto_priority: p.auto_priority.unwrap(),
            auto_create: p.auto_create.unwrap(),
            idempotency_window_ms: p.idempotency_window_ms.unwrap(),
            dedupe_node: p.dedupe_node.unwrap(),
            lease_ms: p.lease_ms.unwrap(),
            claim_jitter_ms: p.claim_jitter_ms.unwrap(),
            max_deliveries: p.max_deliveries.unwrap(),
            dead_letter: p.dead_letter.unwrap(),
            retry_backoff_ms: p.retry_backoff_ms.unwrap(),
            paused: p.paused.unwrap(),
            leases_durable: p.leases_durable.unwrap(),
        };
        let mut out = Vec::new();
        push(&mut out, &config);
        let mut sent: serde_json::Value = serde_json::from_str(text).unwrap();
        // The answer derives `durable` from `durability`.
        sent["durable"] = false.into();
        let reported: serde_json::Value = serde_json::from_slice(&out).unwrap();
        assert_eq!(reported, sent);
    }

    #[test]
    fn every_field_is_known_by_its_name() {
        for name in known() {
            let failure = parse(format!(r#"{{"{name}":[]}}"#).as_bytes()).unwrap_err();
            assert!(failure.message.starts_with(&format!("{name} must be")), "{failure:?}");
        }
    }

    #[test]
    fn every_field_takes_what_the_table_says_and_nothing_else() {
        let samples = ["true", "7", "-7", "null", r#""log""#, r#""disk""#, r#""old""#, r#""jobs""#];
        for field in fields::CONFIG {
            let (name, words) = (field.name, field.words);
            for sample in samples {
                let fits = match field.kind {
                    _ if sample == "null" => field.or_null,
                    "boolean" => sample == "true",
                    "integer" => sample == "7" || (sample == "-7" && field.or_null),
                    _ if words.is_empty() => sample.starts_with('"'),
                    _ => words.contains(&sample.trim_matches('"')),
                };
                let taken = parse(format!(r#"{{"{name}":{sample}}}"#).as_bytes());
                assert_eq!(taken.is_ok(), fits, "{name}: {sample}");
            }
            for word in words {
                assert!(parse(format!(r#"{{"{name}":"{word}"}}"#).as_bytes()).is_ok());
            }
        }
    }

    #[test]
    fn names_of_other_systems_are_refused_with_the_field() {
        for (other, field) in SYNONYMS {
            assert!(known().contains(&field) && !known().contains(&other), "{other}");
            let failure = parse(format!(r#"{{"{other}":1}}"#).as_bytes()).unwrap_err();
            let wanted = format!("unknown config field `{other}`; did you mean `{field}`?");
            assert_eq!(failure.message, wanted);
        }
    }

    #[test]
    fn the_alias() {
        let class = |text: &str| parse(text.as_bytes()).unwrap().durability;
        assert_eq!(class(r#"{"durable":true}"#), Some(Durability::Fsync));
        assert_eq!(class(r#"{"durable":false}"#), Some(Durability::Disk));
        assert_eq!(class("{}"), None);
    }

    #[test]
    fn nulls_that_mean_something() {
        let p = parse(br#"{"priority":null,"dead_letter":null}"#).unwrap();
        assert_eq!((p.priority, p.dead_letter), (Some(None), Some(None)));
    }

    #[test]
    fn an_unknown_field_is_refused_by_name() {
        let rows = [
            ("durabilty", "`durabilty`; did you mean `durability`?", "durabilty"),
            (r#"a\"b\n"#, "`a\"b\n`; expected one of auto_create, auto_priority,", "a\"b\n"),
            ("", "``; expected one of", ""),
            (r"\ud800", "`\u{fffd}`; expected one of", "\u{fffd}"),
        ];
        for (key, message, field) in rows {
            let text = format!(r#"{{"ttl_ms":1,"{key}":[{{"x":null}}]}}"#);
            let failure = parse(text.as_bytes()).unwrap_err();
            assert_eq!(failure.code, "invalid_request");
            let wanted = format!("unknown config field {message}");
            assert!(failure.message.starts_with(&wanted), "{}", failure.message);
            let detail: serde_json::Value = serde_json::from_str(&failure.detail.unwrap()).unwrap();
            assert_eq!(detail["field"], field);
        }
        let mut s = Scanner::new(br#"{"nope":1}"#).unwrap();
        let failure = read(&mut s, "config").unwrap_err();
        assert!(failure.message.starts_with("unknown config field `config.nope`; "));
    }

    #[test]
    fn wrong_types_name_the_field() {
        let rows = [
            (r#"{"ttl_ms":"1"}"#, "ttl_ms must be an integer of at least 0, not a string"),
            (r#"{"ttl_ms":-1}"#, "ttl_ms must be an integer of at least 0, not -1"),
            (r#"{"ttl_ms":1.5}"#, "ttl_ms must be an integer of at least 0, not 1.5"),
            (r#"{"ttl_ms":null}"#, "ttl_ms must be an integer of at least 0, not null"),
            (r#"{"paused":1}"#, "paused must be true or false, not 1"),
            (r#"{"type":"stream"}"#, "type must be one of log, queue, not \"stream\""),
            (r#"{"type":{}}"#, "type must be a string, not an object"),
            (r#"{"priority":1.0}"#, "priority must be an integer of 32 bits, not 1.0"),
            ("[]", "config must be an object, not an array"),
        ];
        for (text, message) in rows {
            let failure = parse(text.as_bytes()).unwrap_err();
            assert_eq!((failure.code, failure.message.as_str()), ("invalid_request", message));
        }
        assert!(parse(b"{} x").is_err() && parse(b"").is_err() && parse(b"{\"a\":}").is_err());
    }
}
