//! The one table of routes: the parsers of bodies and queries, the router, the clients, the
//! documentation, the OpenAPI document and the tests are made from it.

pub mod bodies;
pub mod fields;
mod table;

pub use self::table::ROUTES;

/// A field of a body, or a parameter of a query.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    pub name: &'static str,
    /// The JSON type, in words.
    pub kind: &'static str,
    pub summary: &'static str,
    pub required: bool,
    /// Whether `null` is a value. In any other field it means that the field is absent; a config
    /// refuses it.
    pub or_null: bool,
    /// The values of a string that is one of some words.
    pub words: &'static [&'static str],
    /// The fields of nested objects.
    pub of: &'static [&'static [Self]],
}

impl Field {
    const fn new(name: &'static str, kind: &'static str, summary: &'static str) -> Self {
        Self { name, kind, summary, required: false, or_null: false, words: &[], of: &[] }
    }

    const fn required(self) -> Self {
        Self { required: true, ..self }
    }

    const fn or_null(self) -> Self {
        Self { or_null: true, ..self }
    }

    const fn words(self, words: &'static [&'static str]) -> Self {
        Self { words, ..self }
    }

    const fn with(self, of: &'static [&'static [Self]]) -> Self {
        Self { of, ..self }
    }
}

/// One row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    pub method: &'static str,
    /// Parts that begin with `:` stand for a name: `t`, `q` and `r` for a topic, a queue, a router.
    pub path: &'static str,
    pub verb: &'static str,
    /// Scopes that a key must have; none if the route is open, or for the socket, where each message
    /// needs its own.
    pub needs: &'static [&'static str],
    pub summary: &'static str,
    pub query: &'static [&'static [Field]],
    /// `None`: the route has no body.
    pub body: Option<&'static [&'static [Field]]>,
    /// The fields of the answer; `?` marks those that may be absent.
    pub answer: &'static str,
    pub statuses: &'static [u16],
    /// Error codes of this verb, in addition to those of every route.
    pub codes: &'static [&'static str],
    /// Whether the verb may wait; it is cancelled when the client disconnects.
    pub waits: bool,
    /// Whether the response is sent while it is made; one of events does not end.
    pub streams: bool,
    /// Content types of the response, the first by default.
    pub offers: &'static [&'static str],
    /// Content types of the body.
    pub takes: &'static [&'static str],
}

const JSON: &[&str] = &["application/json"];

impl Route {
    const DEFAULT: Self = Self {
        method: "",
        path: "",
        verb: "",
        needs: &[],
        summary: "",
        query: &[],
        body: None,
        answer: "object",
        statuses: &[200],
        codes: &[],
        waits: false,
        streams: false,
        offers: JSON,
        takes: JSON,
    };

    /// Whether the path names a topic, queue or router.
    #[must_use]
    pub fn is_named(&self) -> bool {
        self.path.split('/').any(|part| matches!(part, ":t" | ":q" | ":r"))
    }
}

/// The parameters that the query of a verb may have; `is_named`: the path names a topic.
#[must_use]
pub fn query_of(verb: &str, is_named: bool) -> &'static [&'static [Field]] {
    let mut all = ROUTES.iter().filter(|route| route.verb == verb);
    let first = all.clone().next();
    all.find(|route| route.is_named() == is_named).or(first).map_or(&[], |route| route.query)
}
