//! The subset of HTTP/1.1 (RFC 9112) of hot requests: parsing their heads, and response heads.
//!
//! Hot requests are a subset of what the ASGI application serves. Any other request is left to the
//! complete parser, so nothing is refused here.

use std::io::Write;

use crate::write::Body;

/// Maximum bytes of a hot head; the complete parser handles longer ones.
pub const MAX_HEAD: usize = 4096;

/// The verbs by the suffix after the topic's name in the path.
const VERBS: [(&[u8], &str); 8] = [
    (b"", "write"),
    (b"/diff", "diff"),
    (b"/scan", "scan"),
    (b"/claim", "claim"),
    (b"/ack", "ack"),
    (b"/nack", "nack"),
    (b"/release", "release"),
    (b"/extend", "extend"),
];

/// The longest request id that is repeated.
const MAX_REQUEST_ID: usize = 128;

const PREFIX: &[u8] = b"POST /v0/topics/";
const VERSION: &[u8] = b" HTTP/1.1";

/// The formats of a body by their media types; only a write takes others than JSON.
const BODIES: [(&[u8], Body); 4] = [
    (b"application/json", Body::Json),
    (b"application/x-ndjson", Body::Ndjson),
    (b"application/octet-stream", Body::Binary),
    (ARROW, Body::Arrow),
];

/// The media type of answers with columns.
const ARROW: &[u8] = b"application/vnd.apache.arrow.stream";

/// The head of a hot request: `POST /v0/topics/NAME[/VERB][?QUERY]` with a body of known length, an
/// answer of JSON or Arrow, and keep-alive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head<'a> {
    /// The verb's name.
    pub verb: &'static str,
    /// The topic; it has no percent-encoded byte.
    pub name: &'a str,
    /// The query string.
    pub query: &'a [u8],
    /// The `Host` header.
    pub host: &'a [u8],
    /// The `Idempotency-Key` header.
    pub key: &'a [u8],
    /// The `Authorization` header.
    pub authorization: Option<&'a [u8]>,
    /// The `X-Request-Id` header, which the answer repeats.
    pub request_id: Option<&'a [u8]>,
    /// The `traceparent` header.
    pub traceparent: Option<&'a [u8]>,
    /// The `tracestate` header.
    pub tracestate: Option<&'a [u8]>,
    /// The format of the body.
    pub body: Body,
    /// Whether the answer is an Arrow stream.
    pub arrow: bool,
    /// Bytes of the head, including its empty line.
    pub size: usize,
    /// Bytes of the body, at least 1.
    pub length: usize,
}

/// The names of the verbs that a hot request may have.
pub fn verbs() -> impl Iterator<Item = &'static str> {
    VERBS.iter().map(|(_, verb)| *verb)
}

/// Parses the head at the start of `bytes`; `None` when it is incomplete or not hot.
#[must_use]
pub fn head(bytes: &[u8]) -> Option<Head<'_>> {
    let bytes = &bytes[..bytes.len().min(MAX_HEAD)];
    let mut rest = bytes.strip_prefix(PREFIX)?;
    let line = take_line(&mut rest)?;
    let target = line.strip_suffix(VERSION)?;
    let (path, query) = match target.iter().position(|&b| b == b'?') {
        Some(at) => (&target[..at], &target[at + 1..]),
        None => (target, &b""[..]),
    };
    if !query.iter().all(|&b| b.is_ascii_graphic() && b != b'#') {
        return None;
    }
    let end = path.iter().position(|&b| !in_name(b)).unwrap_or(path.len());
    let (name, suffix) = path.split_at(end);
    let (_, verb) = VERBS.iter().find(|(known, _)| *known == suffix)?;
    let name = std::str::from_utf8(name).ok().filter(|n| !n.is_empty())?;
    let mut found = HeaderFields::default();
    loop {
        let line = take_line(&mut rest)?;
        if line.is_empty() {
            break;
        }
        found.take(line)?;
    }
    let size = bytes.len() - rest.len();
    let (host, length, body) = (found.host?, found.length?, found.body?);
    if body != Body::Json && *verb != "write" {
        return None;
    }
    let arrow = match (*verb, found.accept.unwrap_or(Accept::Any)) {
        ("diff", Accept::Arrow) | ("scan", Accept::Arrow | Accept::Any) => true,
        (_, Accept::Arrow) | ("scan", Accept::Json) => return None,
        _ => false,
    };
    // The application compresses any answer but that of a write, and no stream.
    if found.accepts_gzip && *verb != "write" && !arrow {
        return None;
    }
    Some(Head {
        verb,
        name,
        query,
        host,
        key: found.key.unwrap_or(b""),
        authorization: found.authorization,
        request_id: found.request_id,
        traceparent: found.traceparent,
        tracestate: found.tracestate,
        body,
        arrow,
        size,
        length,
    })
}

/// Splits off a line that ends with CR LF and has only printable ASCII.
fn take_line<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let at = rest.iter().position(|b| !(b' '..=b'~').contains(b))?;
    let line = &rest[..at];
    *rest = rest[at..].strip_prefix(b"\r\n")?;
    Some(line)
}

fn in_name(b: u8) -> bool {
    b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b':' | b'-')
}

#[derive(Default)]
struct HeaderFields<'a> {
    host: Option<&'a [u8]>,
    key: Option<&'a [u8]>,
    authorization: Option<&'a [u8]>,
    request_id: Option<&'a [u8]>,
    traceparent: Option<&'a [u8]>,
    tracestate: Option<&'a [u8]>,
    length: Option<usize>,
    body: Option<Body>,
    accept: Option<Accept>,
    /// Whether the client accepts gzip.
    accepts_gzip: bool,
}

impl<'a> HeaderFields<'a> {
    /// Parses a header line. `None` for a field or a value that is not hot, and for a second
    /// occurrence of a field that matters.
    fn take(&mut self, line: &'a [u8]) -> Option<()> {
        let colon = line.iter().position(|&b| b == b':')?;
        let (name, value) = (&line[..colon], line[colon + 1..].trim_ascii_start());
        if value.ends_with(b" ") {
            return None;
        }
        let is = |known: &str| name.eq_ignore_ascii_case(known.as_bytes());
        match name.len() {
            4 if is("host") => set_once(&mut self.host, value),
            6 if is("accept") => set_once(&mut self.accept, Accept::parse(value)?),
            10 if is("user-agent") => Some(()),
            10 if is("connection") => value.eq_ignore_ascii_case(b"keep-alive").then_some(()),
            12 if is("content-type") => {
                let (_, body) = BODIES.iter().find(|(kind, _)| *kind == value)?;
                set_once(&mut self.body, *body)
            }
            13 if is("authorization") => set_once(&mut self.authorization, value),
            14 if is("content-length") => set_once(&mut self.length, decimal(value)?),
            15 if is("accept-encoding") => {
                self.accepts_gzip |= value.windows(4).any(|w| w.eq_ignore_ascii_case(b"gzip"));
                Some(())
            }
            // Errors have one language.
            15 if is("accept-language") => Some(()),
            15 if is("idempotency-key") => set_once(&mut self.key, value),
            11 if is("traceparent") => set_once(&mut self.traceparent, value),
            // The application joins the lines of a list.
            10 if is("tracestate") => set_once(&mut self.tracestate, value),
            // The application ignores any other value.
            12 if is("x-request-id") => {
                is_request_id(value).then(|| set_once(&mut self.request_id, value))?
            }
            _ => None,
        }
    }
}

/// Whether an answer repeats this request id.
fn is_request_id(value: &[u8]) -> bool {
    let fits = (1..=MAX_REQUEST_ID).contains(&value.len());
    fits && value.iter().all(|b| b.is_ascii_alphanumeric() || b"-._:/+=".contains(b))
}

fn set_once<T>(slot: &mut Option<T>, value: T) -> Option<()> {
    slot.replace(value).is_none().then_some(())
}

/// The values of `Accept` that are hot.
#[derive(Clone, Copy)]
enum Accept {
    Any,
    Json,
    Arrow,
}

impl Accept {
    fn parse(value: &[u8]) -> Option<Self> {
        match value {
            b"*/*" => Some(Self::Any),
            b"application/json" => Some(Self::Json),
            ARROW => Some(Self::Arrow),
            _ => None,
        }
    }
}

/// 1 to 10 digits, not 0: a request with an empty body is not hot.
fn decimal(digits: &[u8]) -> Option<usize> {
    if digits.is_empty() || digits.len() > 10 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let n = digits.iter().fold(0u64, |n, d| n * 10 + u64::from(d - b'0'));
    usize::try_from(n).ok().filter(|&n| n > 0)
}

/// Optional header fields of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraHeaders<'a> {
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// `Connection: close`.
    pub close: bool,
    /// `X-Request-Id`.
    pub request_id: Option<&'a [u8]>,
}

/// The header lines of every response with data: no cache stores it, and no browser takes it for a
/// page.
const PRIVATE: &[u8] = b"cache-control: no-store\r\nx-content-type-options: nosniff\r\n";

/// What follows the head of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResponseBody {
    /// JSON of this many bytes.
    Json(usize),
    /// An Arrow stream as one chunk of this many bytes, and [`LAST_CHUNK`].
    Arrow(usize),
}

/// The end of a chunk, and the empty chunk that ends a body.
pub const LAST_CHUNK: &[u8] = b"\r\n0\r\n\r\n";

/// The head of a response, and of its chunk. `status` is the status line and `common` the header lines of
/// every response, each with CR LF.
#[must_use]
pub fn response_head(
    status: &[u8],
    common: &[u8],
    extra: ExtraHeaders<'_>,
    body: ResponseBody,
) -> Vec<u8> {
    let mut out = Vec::with_capacity(status.len() + common.len() + 256);
    out.extend_from_slice(status);
    out.extend_from_slice(common);
    out.extend_from_slice(b"content-type: ");
    // Writing to a vector cannot fail.
    let _ = match body {
        ResponseBody::Json(length) => {
            write!(out, "application/json\r\ncontent-length: {length}\r\n")
        }
        ResponseBody::Arrow(_) => out.write_all(ARROW).and_then(|()| out.write_all(b"\r\n")),
    };
    out.extend_from_slice(PRIVATE);
    if let Some(seconds) = extra.retry_after {
        let _ = write!(out, "retry-after: {seconds}\r\n");
    }
    if extra.close {
        out.extend_from_slice(b"connection: close\r\n");
    }
    if let Some(id) = extra.request_id {
        for part in [b"x-request-id: ", id, b"\r\n"] {
            out.extend_from_slice(part);
        }
    }
    if let ResponseBody::Arrow(length) = body {
        let _ = write!(out, "transfer-encoding: chunked\r\n\r\n{length:x}\r\n");
    } else {
        out.extend_from_slice(b"\r\n");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::routes::{ROUTES, Route};

    const PLAIN: &str = "POST /v0/topics/a.b:c/diff?x=1 HTTP/1.1\r\nHost: localhost:1\r\n\
        content-type: application/json\r\nContent-Length: 12\r\nIdempotency-Key:  k\r\n\
        Accept: */*\r\n\r\n";

    #[test]
    fn the_verbs_are_those_of_the_table_of_routes() {
        for (suffix, verb) in VERBS {
            let suffix = std::str::from_utf8(suffix).unwrap();
            let paths = [":t", ":q"].map(|name| format!("/v0/topics/{name}{suffix}"));
            let is_it = |route: &&Route| paths.iter().any(|path| path == route.path);
            let mut posts = ROUTES.iter().filter(|route| route.method == "POST");
            assert_eq!(posts.find(is_it).unwrap().verb, verb);
        }
        assert_eq!(PREFIX, b"POST /v0/topics/");
    }

    #[test]
    fn writes_take_the_bodies_of_their_route_and_other_verbs_json() {
        let route = ROUTES.iter().find(|route| route.verb == "write").unwrap();
        assert_eq!(route.takes.len(), BODIES.len());
        for (kind, body) in BODIES {
            let kind = std::str::from_utf8(kind).unwrap();
            assert!(route.takes.contains(&kind), "{kind}");
            let read = PLAIN.replacen("application/json", kind, 1);
            let write = read.replacen("/diff?x=1", "", 1);
            assert_eq!(head(write.as_bytes()).unwrap().body, body);
            assert_eq!(head(read.as_bytes()).is_some(), body == Body::Json, "{kind}");
            let twice = write.replacen("Accept: */*", &format!("Content-Type: {kind}"), 1);
            let other = write.replacen(kind, &format!("{kind}; charset=utf-8"), 1);
            let capital = write.replacen(kind, &kind.to_uppercase(), 1);
            for text in [twice, other, capital] {
                assert_eq!(head(text.as_bytes()), None, "{text}");
            }
        }
    }

    #[test]
    fn a_request_id_is_repeated_or_not_hot() {
        let with = |id: &str| PLAIN.replacen("Accept: */*", &format!("X-Request-Id: {id}"), 1);
        let long = "x".repeat(128);
        for id in ["a-1", "00-ab:c/d+e=.", &long] {
            assert_eq!(head(with(id).as_bytes()).unwrap().request_id, Some(id.as_bytes()));
        }
        for id in ["", "a b", "a\"b", "a,b", &format!("{long}x")] {
            assert_eq!(head(with(id).as_bytes()), None, "{id}");
        }
        let extra = ExtraHeaders { request_id: Some(b"a-1"), ..ExtraHeaders::default() };
        let out = response_head(b"HTTP/1.1 200 OK\r\n", b"", extra, ResponseBody::Json(2));
        assert!(out.ends_with(b"nosniff\r\nx-request-id: a-1\r\n\r\n"));
    }

    #[test]
    fn a_hot_head() {
        let bytes = format!("{PLAIN}{{body}}");
        let h = head(bytes.as_bytes()).unwrap();
        assert_eq!((h.verb, h.name, h.query), ("diff", "a.b:c", &b"x=1"[..]));
        assert_eq!((h.host, h.key), (&b"localhost:1"[..], &b"k"[..]));
        assert_eq!((h.size, h.length, h.authorization), (PLAIN.len(), 12, None));
        let with = PLAIN.replacen("Accept: */*", "authorization:  Bearer k", 1);
        assert_eq!(head(with.as_bytes()).unwrap().authorization, Some(&b"Bearer k"[..]));
    }

    #[test]
    fn the_trace_context_is_part_of_a_hot_head() {
        let plain = head(PLAIN.as_bytes()).unwrap();
        assert_eq!((plain.traceparent, plain.tracestate), (None, None));
        let with = PLAIN.replacen("Accept: */*", "Traceparent: 00-a\r\nTRACESTATE: b=1,c=2", 1);
        let h = head(with.as_bytes()).unwrap();
        assert_eq!((h.traceparent, h.tracestate), (Some(&b"00-a"[..]), Some(&b"b=1,c=2"[..])));
    }

    #[test]
    fn reads_and_scans_are_answered_as_arrow() {
        let arrow = std::str::from_utf8(ARROW).unwrap();
        let with = |verb: &str, accept: &str| {
            let verb = PLAIN.replacen("/diff", verb, 1);
            let text = verb.replacen("Accept: */*\r\n", accept, 1);
            head(text.as_bytes()).map(|head| head.arrow)
        };
        let accept = |kind: &str| format!("Accept: {kind}\r\n");
        for (verb, any, json, columns) in [
            ("/diff", Some(false), Some(false), Some(true)),
            ("/scan", Some(true), None, Some(true)),
            ("", Some(false), Some(false), None),
            ("/claim", Some(false), Some(false), None),
        ] {
            assert_eq!(with(verb, ""), any, "{verb}");
            assert_eq!(with(verb, &accept("*/*")), any, "{verb}");
            assert_eq!(with(verb, &accept("application/json")), json, "{verb}");
            assert_eq!(with(verb, &accept(arrow)), columns, "{verb}");
            assert_eq!(with(verb, &accept("*/*").repeat(2)), None, "{verb}");
        }
        // A stream is not compressed.
        let gzip = format!("{}Accept-Encoding: gzip\r\n", accept(arrow));
        assert_eq!(with("/diff", &gzip), Some(true));
    }

    #[test]
    fn only_writes_are_hot_for_a_client_that_accepts_gzip() {
        let taking = |from: &str, to: &str, encoding: &str| {
            let with = format!("Accept-Encoding: {encoding}\r\nAccept: */*");
            PLAIN.replacen(from, to, 1).replacen("Accept: */*", &with, 1)
        };
        let write = taking("/diff?x=1", "", "deflate, GZip;q=1");
        assert_eq!(head(write.as_bytes()).unwrap().verb, "write");
        let with_query = taking("/diff?x=1", "?return_seqs=false", "gzip");
        assert_eq!(head(with_query.as_bytes()).unwrap().query, b"return_seqs=false");
        for to in ["/diff", "/claim"] {
            assert_eq!(head(taking("/diff?x=1", to, "gzip").as_bytes()), None);
            assert!(head(taking("/diff?x=1", to, "identity").as_bytes()).is_some());
        }
    }

    #[test]
    fn every_prefix_is_incomplete() {
        for end in 0..PLAIN.len() {
            assert_eq!(head(&PLAIN.as_bytes()[..end]), None, "{end}");
        }
    }

    /// Requests that differ from a hot one in one respect.
    #[test]
    fn anything_else_is_left_alone() {
        let changed = |from: &str, to: &str| PLAIN.replacen(from, to, 1);
        let cases = [
            changed("POST", "PUT"),
            changed("POST ", "POST  "),
            changed("/v0/", "/v1/"),
            changed("a.b:c", ""),
            changed("a.b:c", "a%2Eb"),
            changed("/diff", "/dif"),
            changed("/diff", "/"),
            changed("?x=1", "?x=\u{e9}"),
            changed("?x=1", "#x"),
            changed("Accept:", "Accept-Encoding: br, GZIP\r\nAccept:"),
            changed("HTTP/1.1", "HTTP/1.0"),
            changed("HTTP/1.1\r\n", "HTTP/1.1\n"),
            changed("Host: localhost:1\r\n", ""),
            changed("Host:", "Host :"),
            changed("Host: localhost:1", "Host: localhost:1\r\nHost: b"),
            changed("Host: localhost:1\r\n", "Host: a\r\n b\r\n"),
            changed("application/json", "application/json; charset=utf-8"),
            changed("application/json", "application/x-ndjson"),
            changed("content-type: application/json\r\n", ""),
            changed("Length: 12", "Length: 0"),
            changed("Length: 12", "Length: +12"),
            changed("Length: 12", "Length: 12345678901"),
            changed("Length: 12", "Length: 12\r\nContent-Length: 12"),
            changed("Content-Length: 12", "Transfer-Encoding: chunked"),
            changed("*/*", "text/html"),
            changed("Accept: */*", "Expect: 100-continue"),
            changed("Accept: */*", "Upgrade: websocket"),
            changed("Accept: */*", "Connection: close"),
            changed("Accept: */*", "Content-Encoding: gzip"),
            changed("Accept: */*", "Authorization: a\r\nAuthorization: b"),
            changed("Accept: */*", "Origin: http://x"),
            changed("Accept: */*", "traceparent: 00-a\r\nTraceparent: 00-b"),
            changed("Accept: */*", "tracestate: a=1\r\ntracestate: b=2"),
            changed(" k\r", " k\x00\r"),
            changed(" k\r", " k \r"),
            changed(" k\r", " k\r\nIdempotency-Key: l\r"),
            changed("*/*", &format!("*/*\r\nUser-Agent: {}", "x".repeat(MAX_HEAD))),
        ];
        for case in &cases {
            assert_ne!(case, PLAIN);
            assert_eq!(head(case.as_bytes()), None, "{case}");
        }
    }

    #[test]
    fn responses() {
        let ok: &[u8] = b"HTTP/1.1 200 OK\r\n";
        let none = ExtraHeaders::default();
        let plain = response_head(ok, b"date: d\r\n", none, ResponseBody::Json(2));
        assert_eq!(
            String::from_utf8(plain).unwrap(),
            "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-type: application/json\r\n\
             content-length: 2\r\ncache-control: no-store\r\n\
             x-content-type-options: nosniff\r\n\r\n"
        );
        let extra = ExtraHeaders { retry_after: Some(3), close: true, request_id: None };
        let refused = response_head(b"HTTP/1.1 429 X\r\n", b"", extra, ResponseBody::Json(0));
        assert_eq!(
            String::from_utf8(refused).unwrap(),
            "HTTP/1.1 429 X\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\
             cache-control: no-store\r\nx-content-type-options: nosniff\r\n\
             retry-after: 3\r\nconnection: close\r\n\r\n"
        );
        let extra = ExtraHeaders { request_id: Some(b"a"), ..none };
        assert_eq!(
            String::from_utf8(response_head(ok, b"", extra, ResponseBody::Arrow(255))).unwrap(),
            "HTTP/1.1 200 OK\r\ncontent-type: application/vnd.apache.arrow.stream\r\n\
             cache-control: no-store\r\nx-content-type-options: nosniff\r\n\
             x-request-id: a\r\ntransfer-encoding: chunked\r\n\r\nff\r\n"
        );
    }
}
