//! Requests of watches: a body, a query, or a WebSocket message.

use topics_engine::{ReadFrom, WatchOptions, WatchRequest, WatchStart, watch_names};

use crate::error::Failure;
use crate::filter::Filter;
use crate::grant::Grant;
use crate::json::{FieldPath, Fields, Reader, Scanner, read_body};
use crate::limits::{EVENT_LIMIT, HEARTBEAT_MS, Limits, QUERY_TOPICS};
use crate::query::Query;
use crate::read::{Start, from_seq};
use crate::routes::{bodies, fields};

/// Maximum payload bytes of an event.
const MAX_FRAME: usize = 8 << 20;

/// A parsed request of a watch.
#[derive(Clone, Debug, Default)]
pub struct WatchSpec {
    /// The engine request.
    pub watch: WatchRequest,
    /// The `request_id` of a message.
    pub request_id: Option<String>,
}

const OPTIONS: Fields = Fields::of(&[fields::FRAMES, fields::SHOWN, fields::FILTER]);

/// The body of a new session.
pub fn session(
    bytes: &[u8],
    lenient: bool,
    l: &Limits,
    grant: &Grant,
) -> Result<WatchSpec, Failure> {
    let mut a = begin(lenient);
    let mut named = Vec::new();
    read_body(bytes, Fields::of(bodies::WATCH_CREATE), |s, key| {
        match key {
            "topics" => topics(s, &mut named, l)?,
            "patterns" => patterns(s, &mut a.watch.patterns, l)?,
            _ => option(s, key, &mut a)?,
        }
        Ok(())
    })?;
    a.watch.topics = resolve_all(named, Start::default())?;
    check(a, l, grant)
}

/// A subscribe message: one `topic`, or `topics` as in a session. `from_seq` and `tail` are the start
/// of all that have none of their own.
pub fn subscribe(bytes: &[u8], l: &Limits, grant: &Grant) -> Result<WatchSpec, Failure> {
    let fields = OPTIONS.and(&["op", "request_id", "topic", "topics", "from_seq", "tail"]);
    let mut a = begin(false);
    let mut start = Start::default();
    let mut named = Vec::new();
    read_body(bytes, fields, |s, key| {
        match key {
            "topic" => {
                let name = s.text(FieldPath::field("topic"))?.into_owned();
                named.push((name, NamedStart::Unset));
            }
            "topics" => topics(s, &mut named, l)?,
            // Read with the head of the message.
            "op" => s.skip()?,
            "from_seq" => start.from = Some(from_seq(s)?),
            "tail" => start.tail = tail(s, FieldPath::field("tail"))?,
            "request_id" => {
                a.request_id = Some(s.text(FieldPath::field("request_id"))?.into_owned())
            }
            _ => option(s, key, &mut a)?,
        }
        Ok(())
    })?;
    a.watch.topics = resolve_all(named, start)?;
    check(a, l, grant)
}

/// `?topic=a&topic=b&from_seq=…`: a stream without a session.
pub fn query(q: &Query<'_>, l: &Limits, grant: &Grant) -> Result<WatchSpec, Failure> {
    let mut a = begin(q.flag("lenient")?.unwrap_or(false));
    let w = &mut a.watch;
    let start = Start {
        from: match q.get("from_seq")?.as_deref() {
            None => None,
            Some("earliest") => Some(ReadFrom::Earliest),
            Some(_) => q.u64("from_seq")?.map(ReadFrom::After),
        },
        tail: match q.get("tail")?.as_deref() {
            Some("" | "true") => Some(0),
            Some("false") => None,
            _ => q.u64("tail")?,
        },
        before: None,
    };
    let start = WatchStart { from: start.resolve(HEAD)?, topic_id: None };
    w.topics = q.all("topic")?.into_iter().map(|t| (t.into_owned(), start)).collect();
    if w.topics.is_empty() {
        return Err(Failure::invalid("the query names no topic; add ?topic=a&topic=b"));
    }
    if w.topics.len() > QUERY_TOPICS {
        let message = format!(
            "a stream without a session has at most {QUERY_TOPICS} topics; use POST /v0/watch for more"
        );
        return Err(Failure::invalid(message));
    }
    filter_of(&mut w.options).query(q)?;
    set_size(q.u64("limit")?, &mut w.options.limit, EVENT_LIMIT);
    set_size(q.u64("max_batch_bytes")?, &mut w.options.max_batch_bytes, MAX_FRAME);
    if let Some(ms) = q.u64("heartbeat_ms")? {
        w.heartbeat_ms = Some(ms.clamp(1000, 60_000));
    }
    let flags = [
        ("include_tags", &mut w.options.include_tags),
        ("include_meta", &mut w.options.include_meta),
        ("include_data", &mut w.options.include_data),
    ];
    for (name, to) in flags {
        *to = q.flag(name)?.unwrap_or(*to);
    }
    check(a, l, grant)
}

fn begin(lenient: bool) -> WatchSpec {
    let mut a = WatchSpec::default();
    a.watch.lenient = lenient;
    a.watch.heartbeat_ms = Some(HEARTBEAT_MS);
    a.watch.paced = true;
    a
}

fn check(mut a: WatchSpec, l: &Limits, grant: &Grant) -> Result<WatchSpec, Failure> {
    let w = &mut a.watch;
    let named = w.topics.len() + w.patterns.len();
    if named == 0 {
        return Err(Failure::invalid("a watch needs topics, patterns or both"));
    }
    check_count(named.saturating_sub(1), l)?;
    w.topics.iter().try_for_each(|(name, _)| grant.check(name))?;
    let prefix = |p: &str| p.strip_suffix('*').unwrap_or(p).to_owned();
    w.patterns.iter().try_for_each(|(pattern, _)| grant.check(&prefix(pattern)))?;
    let most = if l.limit == 0 { EVENT_LIMIT } else { l.limit };
    w.options.limit = w.options.limit.min(most);
    // A name that is repeated counts once, at its first start.
    let mut seen = std::collections::HashSet::new();
    w.topics.retain(|(name, _)| seen.insert(name.clone()));
    Ok(a)
}

fn filter_of(o: &mut WatchOptions) -> Filter<'_> {
    Filter { skip_nodes: &mut o.skip_nodes, matching: &mut o.matching, strong: &mut o.strong }
}

fn option(s: &mut Scanner<'_>, key: &str, a: &mut WatchSpec) -> Result<(), Failure> {
    let w = &mut a.watch;
    let o = &mut w.options;
    if filter_of(o).field(s, key)? {
        return Ok(());
    }
    match key {
        "limit" => set_size(Some(s.u64(FieldPath::field("limit"))?), &mut o.limit, EVENT_LIMIT),
        "max_batch_bytes" => {
            let n = s.u64(FieldPath::field("max_batch_bytes"))?;
            set_size(Some(n), &mut o.max_batch_bytes, MAX_FRAME);
        }
        "heartbeat_ms" => {
            let ms = s.u64(FieldPath::field("heartbeat_ms"))?;
            w.heartbeat_ms = Some(ms.clamp(1000, 60_000));
        }
        "include_tags" => o.include_tags = s.bool(FieldPath::field("include_tags"))?,
        "include_meta" => o.include_meta = s.bool(FieldPath::field("include_meta"))?,
        "include_data" => o.include_data = s.bool(FieldPath::field("include_data"))?,
        _ => s.skip()?,
    }
    Ok(())
}

/// Sets a size; absent and 0 mean the default.
fn set_size(given: Option<u64>, to: &mut usize, most: usize) {
    if let Some(n) = given.filter(|n| *n > 0) {
        *to = usize::try_from(n).unwrap_or(usize::MAX).min(most);
    }
}

const HEAD: ReadFrom = ReadFrom::Tail(0);

/// Where a topic of a request starts.
enum NamedStart {
    /// The request has only the topic's name: the start of the request, else the head.
    Unset,
    /// The request has an object for the topic: its fields, else the start of the request, else 0.
    Fields(Start, Option<u64>),
}

/// Resolves the start of each topic; `shared` is the start of those that have none of their own.
fn resolve_all(
    named: Vec<(String, NamedStart)>,
    shared: Start,
) -> Result<Vec<(String, WatchStart)>, Failure> {
    let resolved = named.into_iter().map(|(name, start)| {
        let start = match start {
            NamedStart::Unset => WatchStart { from: shared.resolve(HEAD)?, topic_id: None },
            NamedStart::Fields(own, topic_id) => {
                let unset = own.from.is_none() && own.tail.is_none();
                let start = if unset { shared } else { own };
                WatchStart { from: start.resolve(ReadFrom::After(0))?, topic_id }
            }
        };
        Ok((name, start))
    });
    resolved.collect()
}

/// Parses `tail`: a number of records before the head; `true` is 0, `false` is absent.
fn tail(s: &mut Scanner<'_>, path: FieldPath) -> Result<Option<u64>, Failure> {
    if matches!(s.peek(), Some(b't' | b'f')) {
        return Ok(s.bool(path)?.then_some(0));
    }
    let wanted = "an integer of at least 0, true or false";
    s.expect_type(path, wanted, |b| b.is_ascii_digit())?;
    s.u64(path).map(Some)
}

type Named = Vec<(String, NamedStart)>;
type Starts = Vec<(String, WatchStart)>;

fn check_count(len: usize, l: &Limits) -> Result<(), Failure> {
    let full = l.watch_topics != 0 && len >= l.watch_topics;
    if full { Err(Failure::invalid(watch_names(l.watch_topics))) } else { Ok(()) }
}

const START: Fields = Fields::of(fields::START);

/// `{topic: {from_seq?, tail?, topic_id?}}`, or an array of names.
fn topics(s: &mut Scanner<'_>, out: &mut Named, l: &Limits) -> Result<(), Failure> {
    if s.peek() == Some(b'[') {
        return names(s, out, l);
    }
    let path = FieldPath::field("topics");
    s.expect_type(path, "an object of starts, or an array of names", |b| b == b'{')?;
    s.object(|s, key| {
        check_count(out.len(), l)?;
        let name = key
            .decode()
            .ok_or_else(|| path.invalid("has a key with an unpaired surrogate escape"))?;
        let at = FieldPath { within: "topics", ..FieldPath::default() };
        s.expect_type(path, "an object of objects", |b| b == b'{')?;
        let (mut start, mut topic_id) = (Start::default(), None);
        START.read(s, at, |s, key| {
            match key {
                "from_seq" => start.from = Some(from_seq(s)?),
                "tail" => start.tail = tail(s, at.at("tail"))?,
                "topic_id" => topic_id = Some(s.u64(at.at("topic_id"))?),
                _ => s.skip()?,
            }
            Ok(())
        })?;
        out.push((name.into_owned(), NamedStart::Fields(start, topic_id)));
        Ok(())
    })
}

fn names(s: &mut Scanner<'_>, out: &mut Named, l: &Limits) -> Result<(), Failure> {
    s.expect_type(FieldPath::field("topics"), "an array of names", |b| b == b'[')?;
    s.array(|s, index| {
        check_count(out.len(), l)?;
        let path = FieldPath { within: "topics", index: Some(index), field: "" };
        out.push((s.text(path)?.into_owned(), NamedStart::Unset));
        Ok(())
    })
}

fn patterns(s: &mut Scanner<'_>, out: &mut Starts, l: &Limits) -> Result<(), Failure> {
    s.expect_type(FieldPath::field("patterns"), "an array of patterns", |b| b == b'[')?;
    s.array(|s, index| {
        check_count(out.len(), l)?;
        let path = FieldPath { within: "patterns", index: Some(index), field: "" };
        out.push((s.text(path)?.into_owned(), WatchStart::default()));
        Ok(())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const L: fn() -> Limits = Limits::default;

    fn refused(body: &str) -> String {
        let failure = session(body.as_bytes(), false, &L(), <&Grant>::default()).unwrap_err();
        assert_eq!(failure.code, "invalid_request");
        failure.message
    }

    #[test]
    fn sessions() {
        let body = br#"{"topics":{"a":{"from_seq":7,"topic_id":3},"b":{"tail":5},"c":{}},
            "patterns":["d.*"],"node":"n","match":"x","limit":5000,"max_batch_bytes":1,
            "heartbeat_ms":1,"include_tags":false,"include_data":false,"consistency":"strong"}"#;
        let w = session(body, true, &L(), <&Grant>::default()).unwrap().watch;
        let starts: Vec<_> = w.topics.iter().map(|(n, s)| (n.as_str(), s.from)).collect();
        let wanted =
            [("a", ReadFrom::After(7)), ("b", ReadFrom::Tail(5)), ("c", ReadFrom::After(0))];
        assert_eq!(starts, wanted);
        assert_eq!((w.topics[0].1.topic_id, w.patterns.len()), (Some(3), 1));
        assert_eq!((w.options.limit, w.options.max_batch_bytes), (1000, 1));
        for (limit, asked, expected) in
            [(4, "1", 1), (4, "9", 4), (4, "0", 4), (0, "50000", 10_000)]
        {
            let l = Limits { limit, ..L() };
            let body = format!(r#"{{"topics":["a"],"limit":{asked}}}"#);
            let s = session(body.as_bytes(), false, &l, <&Grant>::default()).unwrap();
            assert_eq!(s.watch.options.limit, expected, "{asked} of {limit}");
        }
        assert_eq!((w.heartbeat_ms, w.stall_ms, w.lenient), (Some(1000), None, true));
        assert!(w.options.strong && !w.options.include_tags && !w.options.include_data);
        assert!(refused("{}").contains("needs topics"));
        assert!(
            refused(r#"{"topics":{"a":{"from_seq":1,"tail":1}}}"#).contains("cannot be combined")
        );
        assert!(refused(r#"{"topics":{"a":5}}"#).contains("object of objects"));
        assert!(refused(r#"{"topics":5}"#).contains("topics must be"));
        let many: Vec<_> = (0..257).map(|i| format!("t{i}")).collect();
        assert!(refused(&format!(r#"{{"topics":{many:?}}}"#)).contains("at most 256"));
    }

    #[test]
    fn starts() {
        let of_session = |topics: &str| {
            let body = format!(r#"{{"topics":{topics}}}"#);
            session(body.as_bytes(), false, &L(), <&Grant>::default()).unwrap().watch.topics[0]
                .1
                .from
        };
        let of_message = |fields: &str| {
            let text = format!(r#"{{"op":"subscribe",{fields}}}"#);
            subscribe(text.as_bytes(), &L(), <&Grant>::default()).unwrap().watch.topics[0].1.from
        };
        let of_query = |raw: &'static [u8]| {
            query(&Query::new(raw), &L(), <&Grant>::default()).unwrap().watch.topics[0].1.from
        };
        let (zero, head) = (ReadFrom::After(0), HEAD);
        assert_eq!(of_session(r#"{"a":{}}"#), zero);
        assert_eq!(of_session(r#"{"a":{"from_seq":null,"tail":null}}"#), zero);
        assert_eq!(of_session(r#"{"a":{"tail":false}}"#), zero);
        assert_eq!(of_session(r#"{"a":{"tail":true}}"#), head);
        assert_eq!(of_session(r#"{"a":{"tail":3}}"#), ReadFrom::Tail(3));
        assert_eq!(of_session(r#"{"a":{"tail":false,"from_seq":9}}"#), ReadFrom::After(9));
        assert_eq!(of_session(r#"["a"]"#), head);
        assert_eq!(of_message(r#""topic":"a""#), head);
        assert_eq!(of_message(r#""topics":["a"]"#), head);
        assert_eq!(of_message(r#""topics":{"a":{}}"#), zero);
        assert_eq!(of_message(r#""topics":{"a":{}},"tail":true"#), head);
        assert_eq!(of_message(r#""topics":{"a":{"from_seq":4}},"tail":2"#), ReadFrom::After(4));
        assert_eq!(of_message(r#""topics":["a"],"from_seq":6"#), ReadFrom::After(6));
        assert_eq!(of_query(b"topic=a"), head);
        assert_eq!(of_query(b"topic=a&tail=true"), head);
        assert_eq!(of_query(b"topic=a&tail=false&from_seq=2"), ReadFrom::After(2));
        for (value, found) in [("1.5", "1.5"), (r#""1""#, "a string"), ("-1", "-1")] {
            let message = refused(&format!(r#"{{"topics":{{"a":{{"tail":{value}}}}}}}"#));
            let wanted = "topics.tail must be an integer of at least 0";
            assert!(message.starts_with(wanted) && message.ends_with(found), "{message}");
        }
    }

    #[test]
    fn queries_and_messages() {
        let raw = b"topic=a&topic=b&from_seq=9&node=n&match=x*&limit=3&include_tags=false&topic=a";
        let w = query(&Query::new(raw), &L(), <&Grant>::default()).unwrap().watch;
        assert_eq!(w.topics.len(), 2);
        assert_eq!((w.topics[0].1.from, w.options.limit), (ReadFrom::After(9), 3));
        assert!(w.options.matching.is_some() && !w.options.include_tags);
        let w = query(&Query::new(b"topic=a&tail"), &L(), <&Grant>::default()).unwrap().watch;
        assert_eq!(w.topics[0].1.from, ReadFrom::Tail(0));
        for bad in [
            &b""[..],
            b"topic=a&tail=x",
            b"topic=a&from_seq=x",
            b"topic=a&tail=1&from_seq=1",
            b"topic=a&consistency=x",
            b"topic=a&tail=yes",
            b"topic=a&match=x*y*",
        ] {
            assert!(query(&Query::new(bad), &L(), <&Grant>::default()).is_err());
        }
        let m = subscribe(br#"{"topic":"a","tail":2,"request_id":"r"}"#, &L(), <&Grant>::default());
        let m = m.unwrap();
        assert_eq!(m.request_id.as_deref(), Some("r"));
        assert_eq!(m.watch.topics[0].1.from, ReadFrom::Tail(2));
    }

    #[test]
    fn names_of_others() {
        let grant = Grant { owner: "k".into(), prefixes: vec!["a.".into()], admin: false };
        let ask = |body: &str| session(body.as_bytes(), false, &L(), &grant).map(drop);
        assert!(ask(r#"{"topics":["a.b"],"patterns":["a.*","a.c*"]}"#).is_ok());
        for bad in [r#"{"topics":["b"]}"#, r#"{"patterns":["*"]}"#, r#"{"patterns":["a*"]}"#] {
            assert_eq!(ask(bad).unwrap_err().code, "forbidden", "{bad}");
        }
    }
}
