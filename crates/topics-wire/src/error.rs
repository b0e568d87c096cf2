//! Failures as clients see them: a stable code, a message, details and the HTTP status.

use topics_engine::{Error, clipped};

use crate::json::{FieldPath, Reader, Scanner, SyntaxError, push_str, push_u64};
use crate::object::push_array_with;

/// When to read cold records again that could not be fetched.
const COLD_RETRY_MS: u64 = 5000;

/// Maximum length of a message, bytes: it may quote what a client sent.
const MAX_MESSAGE: usize = 2048;

/// Why a call failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// Stable and snake_case; for programs.
    pub code: &'static str,
    /// What is wrong and what to do; for people.
    pub message: String,
    /// A JSON object with the facts; for programs.
    pub detail: Option<String>,
}

impl Failure {
    /// A failure without details. A message that is too long is cut.
    pub fn new(code: &'static str, message: impl Into<String>) -> Self {
        let mut message = message.into();
        if message.len() > MAX_MESSAGE {
            message.truncate(clipped(&message, MAX_MESSAGE).len());
            message.push('…');
        }
        Self { code, message, detail: None }
    }

    /// An `invalid_request`.
    pub fn invalid(message: impl Into<String>) -> Self {
        Self::new("invalid_request", message)
    }

    /// The HTTP status of the code.
    #[must_use]
    pub fn status(&self) -> u16 {
        status(self.code)
    }

    /// `{"error":{"code","message","detail"?}}`.
    #[must_use]
    pub fn body(&self) -> Vec<u8> {
        self.body_as(self.code)
    }

    /// The same body with another code.
    #[must_use]
    pub fn body_as(&self, code: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(64 + self.message.len());
        out.extend_from_slice(b"{\"error\":{\"code\":");
        push_str(&mut out, code.as_bytes());
        out.extend_from_slice(b",\"message\":");
        push_str(&mut out, self.message.as_bytes());
        if let Some(detail) = &self.detail {
            out.extend_from_slice(b",\"detail\":");
            out.extend_from_slice(detail.as_bytes());
        }
        out.extend_from_slice(b"}}");
        out
    }

    /// Reads `error.detail.retry_after_ms` from a body.
    #[must_use]
    pub fn retry_after_ms(body: &[u8]) -> Option<u64> {
        fn within(
            s: &mut Scanner<'_>,
            path: &[&str],
            found: &mut Option<u64>,
        ) -> Result<(), Failure> {
            let Some((first, rest)) = path.split_first() else {
                *found = Some(s.u64(FieldPath::field("retry_after_ms"))?);
                return Ok(());
            };
            s.object(|s, key| match key.raw == *first {
                true => within(s, rest, found),
                false => Ok(s.skip()?),
            })
        }
        let mut found = None;
        let mut s = Scanner::new(body).ok()?;
        within(&mut s, &["error", "detail", "retry_after_ms"], &mut found).ok()?;
        found
    }
}

/// The status table of the HTTP contract. An unknown code is a bug, so it is 500 like `internal`.
#[must_use]
pub fn status(code: &str) -> u16 {
    match code {
        "invalid_request" | "invalid_directory" | "batch_too_large" | "record_too_large" => 400,
        "unauthorized" => 401,
        "forbidden" => 403,
        "topic_not_found" | "router_not_found" | "consumer_not_found" | "txn_not_found"
        | "not_found" => 404,
        "method_not_allowed" => 405,
        "not_acceptable" => 406,
        "request_timeout" => 408,
        "already_exists"
        | "topic_exists_incompatible"
        | "topic_not_empty"
        | "head_mismatch"
        | "idempotency_mismatch"
        | "txn_incomplete"
        | "stale_epoch"
        | "router_cycle"
        | "not_a_queue"
        | "lease_lost"
        | "consumer_busy"
        | "consumer_fenced" => 409,
        "session_gone" => 410,
        "payload_too_large" => 413,
        "unsupported_media_type" => 415,
        "topic_full" => 422,
        "throttled" => 429,
        "headers_too_large" => 431,
        "not_implemented" => 501,
        "not_ready" | "shutting_down" | "storage_unavailable" | "cold_unavailable" => 503,
        _ => 500,
    }
}

impl From<SyntaxError> for Failure {
    fn from(e: SyntaxError) -> Self {
        let detail = Some(format!("{{\"offset\":{}}}", e.at));
        Self { detail, ..Self::invalid(format!("the body is {e}")) }
    }
}

impl From<Error> for Failure {
    fn from(e: Error) -> Self {
        // The message may name files: the log and embedded callers need it.
        Self { detail: detail(&e), ..Self::new(e.code(), e.to_string()) }
    }
}

/// The facts of an error as a JSON object.
fn detail(e: &Error) -> Option<String> {
    let mut d = DetailBuilder::default();
    match e {
        Error::BatchTooLarge { got, max, unit } => d.int(unit, *got).int("max", *max),
        Error::RecordTooLarge { index, what, got, max } => {
            d.int("index", *index as u64).text("what", what).int("got", *got).int("max", *max)
        }
        Error::WriteOverCap { topic, what, got, max, .. } => {
            d.text("topic", topic).text("limit", what).int("got", *got).int("max", *max)
        }
        Error::TopicNotFound(topic) | Error::AlreadyExists(topic) | Error::NotAQueue(topic) => {
            d.text("topic", topic)
        }
        Error::TopicExistsIncompatible { topic, field, actual, wanted } => d
            .text("topic", topic)
            .text("field", field)
            .text("actual", actual)
            .text("wanted", wanted),
        Error::TopicNotEmpty { topic, count } => d.text("topic", topic).int("count", *count),
        Error::HeadMismatch { topic, expected, actual } => {
            d.text("topic", topic).int("expected", *expected).int("head_seq", *actual)
        }
        Error::RouterNotFound(router) => d.text("router", router),
        Error::RouterCycle { router, path } => d.text("router", router).texts("cycle", path),
        Error::RouterConflict { router, reason, existing_source, existing_dest } => d
            .text("router", router)
            .text("reason", reason)
            .text("existing_source", existing_source)
            .text("existing_dest", existing_dest),
        Error::TxnIncomplete { writer, stage, .. } => d.text("writer", writer).text("stage", stage),
        Error::StaleEpoch { writer, epoch, last } => {
            d.text("writer", writer).int("epoch", *epoch).int("last_epoch", *last)
        }
        Error::EpochOfOtherQuery { writer, epoch, last, committed_by, query } => d
            .text("writer", writer)
            .int("epoch", *epoch)
            .int("last_epoch", *last)
            .text("committed_by", committed_by)
            .text("query", query),
        Error::TxnNotFound(writer) => d.text("writer", writer),
        Error::LeaseLost { queue, seq, reason } => {
            d.text("queue", queue).int("seq", *seq).text("reason", reason.as_str())
        }
        Error::ConsumerFenced { topic, consumer, taken_at } => {
            d.text("topic", topic).text("consumer", consumer).int("taken_at", *taken_at)
        }
        Error::IdempotencyMismatch { topic } => d.text("topic", topic),
        Error::TopicFull { topic, what, max } => {
            d.text("topic", topic).text("limit", what).int("max", *max)
        }
        Error::Throttled { limit, max, retry_after_ms } => {
            d.text("limit", limit).int("max", *max).int("retry_after_ms", *retry_after_ms)
        }
        Error::StorageUnavailable { reason, .. } => d.text("reason", reason),
        Error::ColdPending(_) | Error::ColdUnavailable { .. } => {
            d.int("retry_after_ms", COLD_RETRY_MS)
        }
        Error::DataLoss { topic, from, to, .. } => {
            d.text("topic", topic).int("gap_from", *from).int("gap_to", *to).text("reason", "crash")
        }
        Error::Corrupt { file, offset, .. } => d.text("file", file).int("offset", *offset),
        Error::Locked { dir, pid, url } => {
            d.text("dir", dir).int("pid", u64::from(*pid));
            url.iter().fold(&mut d, |d, url| d.text("url", url))
        }
        Error::Directory { dir, .. } => d.text("dir", dir),
        Error::Version { what, found, supported } => d
            .text("what", what)
            .int("found", u64::from(*found))
            .int("supported", u64::from(*supported)),
        _ => return None,
    };
    Some(d.finish())
}

/// Builds a JSON object of strings, numbers and arrays of strings.
#[derive(Default)]
pub(crate) struct DetailBuilder(Vec<u8>);

impl DetailBuilder {
    fn key(&mut self, key: &str) {
        self.0.push(if self.0.is_empty() { b'{' } else { b',' });
        push_str(&mut self.0, key.as_bytes());
        self.0.push(b':');
    }

    pub(crate) fn text(&mut self, key: &str, value: &str) -> &mut Self {
        self.key(key);
        push_str(&mut self.0, value.as_bytes());
        self
    }

    fn texts(&mut self, key: &str, values: &[String]) -> &mut Self {
        self.key(key);
        push_array_with(&mut self.0, values, |out, value| push_str(out, value.as_bytes()));
        self
    }

    pub(crate) fn int(&mut self, key: &str, value: u64) -> &mut Self {
        self.key(key);
        push_u64(&mut self.0, value);
        self
    }

    pub(crate) fn finish(&mut self) -> String {
        self.0.push(b'}');
        String::from_utf8_lossy(&self.0).into_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_is_json_with_the_facts() {
        let e = Error::HeadMismatch { topic: "a".into(), expected: 3, actual: 5 };
        let failure = Failure::from(e);
        assert_eq!(failure.status(), 409);
        let body: serde_json::Value = serde_json::from_slice(&failure.body()).unwrap();
        assert_eq!(body["error"]["code"], "head_mismatch");
        assert_eq!(body["error"]["detail"]["head_seq"], 5);
        assert_eq!(body["error"]["detail"]["expected"], 3);
    }

    #[test]
    fn a_message_that_quotes_too_much_is_cut() {
        let failure = Failure::invalid(format!("no topic named x{}", "ö".repeat(1 << 20)));
        assert!((2000..2100).contains(&failure.message.len()) && failure.message.ends_with('…'));
        let short = "ö".repeat(MAX_MESSAGE / 2);
        assert_eq!(Failure::invalid(short.clone()).message, short);
    }

    #[test]
    fn facts_of_routers() {
        let detail = |e: Error| -> serde_json::Value {
            serde_json::from_str(&Failure::from(e).detail.unwrap()).unwrap()
        };
        let path = ["a", "b", "a"].map(String::from).to_vec();
        assert_eq!(
            detail(Error::RouterCycle { router: "r".into(), path }),
            serde_json::json!({"router": "r", "cycle": ["a", "b", "a"]})
        );
        let conflict = Error::RouterConflict {
            router: "r".into(),
            reason: "router_dest_fan_in",
            existing_source: "s".into(),
            existing_dest: "d".into(),
        };
        assert_eq!(Failure::from(conflict.clone()).status(), 409);
        assert_eq!(
            detail(conflict),
            serde_json::json!({"router": "r", "reason": "router_dest_fan_in",
                "existing_source": "s", "existing_dest": "d"})
        );
    }

    #[test]
    fn when_to_come_back() {
        let e = Error::Throttled { limit: "staging", max: 5, retry_after_ms: 1500 };
        assert_eq!(Failure::retry_after_ms(&Failure::from(e).body()), Some(1500));
        assert_eq!(Failure::retry_after_ms(&Failure::from(Error::Closed).body()), None);
        assert_eq!(Failure::retry_after_ms(b"{"), None);
    }

    #[test]
    fn long_messages_are_cut_between_characters() {
        let topic = "ü".repeat(MAX_MESSAGE);
        let message = Failure::from(Error::TopicNotFound(topic)).message;
        assert!(message.ends_with("ü…"), "{message}");
        assert!(message.len() <= MAX_MESSAGE + "…".len());
    }

    #[test]
    fn messages_are_escaped() {
        let failure = Failure::invalid("a \"b\"\n\u{1}\\ ü");
        let body: serde_json::Value = serde_json::from_slice(&failure.body()).unwrap();
        assert_eq!(body["error"]["message"], "a \"b\"\n\u{1}\\ ü");
        assert!(body["error"].get("detail").is_none());
    }

    #[test]
    fn every_engine_error_has_a_row_in_the_status_table() {
        let text = || "x".to_owned();
        let rows = [
            (Error::InvalidRequest(text()), 400),
            (Error::BatchTooLarge { got: 2, max: 1, unit: "records" }, 400),
            (Error::RecordTooLarge { index: 0, what: "tag", got: 2, max: 1 }, 400),
            (Error::TopicNotFound(text()), 404),
            (Error::AlreadyExists(text()), 409),
            (Error::TopicNotEmpty { topic: text(), count: 1 }, 409),
            (Error::IdempotencyMismatch { topic: text() }, 409),
            (Error::NotAQueue(text()), 409),
            (Error::TopicFull { topic: text(), what: "cap_bytes", max: 1 }, 422),
            (
                Error::WriteOverCap {
                    topic: text(),
                    what: "cap_records",
                    unit: "records",
                    got: 2,
                    max: 1,
                },
                400,
            ),
            (Error::Throttled { limit: "staging", max: 1, retry_after_ms: 5 }, 429),
            (Error::StorageUnavailable { reason: "no_space", detail: text() }, 503),
            (Error::StorageUnavailable { reason: "no_descriptors", detail: text() }, 503),
            (Error::DataLoss { topic: text(), from: 1, to: 2, detail: text() }, 500),
            (Error::Corrupt { file: text(), offset: 1, detail: text() }, 500),
            (Error::Locked { dir: text(), pid: 1, url: Some(text()) }, 500),
            (Error::Version { what: text(), found: 2, supported: 1 }, 500),
            (Error::Directory { dir: text(), detail: text() }, 400),
            (Error::Closed, 503),
            (Error::Internal(text()), 500),
        ];
        for (error, status) in rows {
            let failure = Failure::from(error);
            assert_eq!(failure.status(), status, "{failure:?}");
            let body: serde_json::Value = serde_json::from_slice(&failure.body()).unwrap();
            assert_eq!(body["error"]["code"], failure.code);
        }
    }
}
