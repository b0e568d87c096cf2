//! Filters: which records a request is about.

use topics_engine::{NodeFilter, TopicMatch};

use crate::error::Failure;
use crate::json::{FieldPath, Reader, Scanner};
use crate::query::Query;
use crate::words::CONSISTENCIES;

/// The filter of a read, a scan or a watch: `node`, `match` and `consistency`.
pub(crate) struct Filter<'a> {
    pub skip_nodes: &'a mut NodeFilter,
    pub matching: &'a mut Option<TopicMatch>,
    pub strong: &'a mut bool,
}

impl Filter<'_> {
    /// Reads a field; false, without reading it, if it is not one of a filter.
    pub fn field(self, s: &mut Scanner<'_>, key: &str) -> Result<bool, Failure> {
        match key {
            "node" => *self.skip_nodes = skipped_nodes(s)?,
            "match" => *self.matching = Some(matching(s)?),
            "consistency" => *self.strong = strong(&s.text(FieldPath::field("consistency"))?)?,
            _ => return Ok(false),
        }
        Ok(true)
    }

    /// Takes the parameters of a query.
    pub fn query(self, q: &Query<'_>) -> Result<(), Failure> {
        for node in q.all("node")?.into_iter().filter(|node| !node.is_empty()) {
            self.skip_nodes.0.push(node.into_owned().into_bytes());
        }
        if let Some(tag) = q.get("match")? {
            let wrong = || Failure::invalid(format!("query parameter `match` {WRONG_MATCH}"));
            *self.matching = Some(bare_match(&tag).ok_or_else(wrong)?);
        }
        if let Some(word) = q.get("consistency")? {
            *self.strong = strong(&word)?;
        }
        Ok(())
    }
}

fn strong(word: &str) -> Result<bool, Failure> {
    FieldPath::field("consistency").choose(word, &CONSISTENCIES)
}

/// Parses the nodes to skip: one or an array of them. An empty node is as if it were absent.
fn skipped_nodes(s: &mut Scanner<'_>) -> Result<NodeFilter, Failure> {
    let mut filter = nodes(s, "node")?;
    filter.0.retain(|node| !node.is_empty());
    Ok(filter)
}

/// Parses one node or an array of nodes.
pub(crate) fn nodes(s: &mut Scanner<'_>, field: &'static str) -> Result<NodeFilter, Failure> {
    let path = FieldPath::field(field);
    let mut nodes = Vec::new();
    if s.peek() == Some(b'[') {
        s.array(|s, index| {
            let path = FieldPath { within: field, index: Some(index), field: "" };
            if index >= 64 {
                return Err(path.invalid("is over the limit of 64 nodes"));
            }
            nodes.push(s.text(path)?.into_owned().into_bytes());
            Ok(())
        })?;
    } else {
        s.expect_type(path, "a string or an array of strings", |b| b == b'"')?;
        nodes.push(s.text(path)?.into_owned().into_bytes());
    }
    Ok(NodeFilter(nodes))
}

/// Parses `match`: `["tag","Eq","x"]`, `["tag","Glob","x*"]`, or short for these `"x"` and `"x*"`.
pub(crate) fn matching(s: &mut Scanner<'_>) -> Result<TopicMatch, Failure> {
    matching_at(s, FieldPath::field("match"))
}

/// Parses a tag filter in a field of another name.
pub(crate) fn matching_at(s: &mut Scanner<'_>, path: FieldPath) -> Result<TopicMatch, Failure> {
    let wrong = || path.invalid(WRONG_MATCH);
    if s.peek() == Some(b'"') {
        return bare_match(&s.text(path)?).ok_or_else(wrong);
    }
    s.expect_type(path, "a string or an array", |b| b == b'[')?;
    let mut parts = Vec::with_capacity(3);
    s.array(|s, _| {
        parts.push(s.text(path)?.into_owned());
        if parts.len() > 3 { Err(wrong()) } else { Ok(()) }
    })?;
    match parts.as_slice() {
        [field, op, tag] if field == "tag" && op == "Eq" => {
            Ok(TopicMatch::Eq(tag.clone().into_bytes()))
        }
        [field, op, pattern] if field == "tag" && op == "Glob" => glob(pattern).ok_or_else(wrong),
        _ => Err(wrong()),
    }
}

/// What a tag filter must be.
const WRONG_MATCH: &str = r#"must be "x", "x*", ["tag","Eq","x"] or ["tag","Glob","x*"]"#;

/// Parses a bare string: with a `*` at its end a pattern, else a tag.
#[must_use]
pub fn bare_match(text: &str) -> Option<TopicMatch> {
    if text.ends_with('*') { glob(text) } else { Some(TopicMatch::Eq(text.as_bytes().to_vec())) }
}

/// Parses a pattern with exactly one `*`, at its end.
fn glob(pattern: &str) -> Option<TopicMatch> {
    let prefix = pattern.strip_suffix('*')?;
    (!prefix.contains('*')).then(|| TopicMatch::Glob(prefix.as_bytes().to_vec()))
}
