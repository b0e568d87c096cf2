//! Converts Python arguments to engine requests.

use pyo3::prelude::*;
use pyo3::pybacked::{PyBackedBytes, PyBackedStr};
use pyo3::types::{PyBytes, PyList, PySequence, PyString, PyTuple};
use topics_engine::{Append, ConfigPatch, NewRecord, NodeFilter, TopicMatch};
use topics_wire::{Failure, config, filter, json, write};

use crate::errors::raise;

/// Options of an append: node, key, expect_head, sync, create, config, disable_backpressure.
pub(crate) type WriteOptions = (
    Option<PyBackedStr>,
    Option<PyBackedStr>,
    Option<u64>,
    bool,
    Option<bool>,
    Option<PyBackedBytes>,
    bool,
);

/// The borrowed form of [`WriteOptions`].
#[derive(Clone, Copy)]
pub(crate) struct AppendArgs<'a> {
    pub node: Option<&'a str>,
    pub key: Option<&'a str>,
    pub expect_head: Option<u64>,
    pub sync: bool,
    pub create: Option<bool>,
    pub config: Option<&'a [u8]>,
    pub disable_backpressure: bool,
}

impl<'a> From<&'a WriteOptions> for AppendArgs<'a> {
    fn from(o: &'a WriteOptions) -> Self {
        let (node, key, expect_head, sync, create, config, disable_backpressure) = o;
        Self {
            node: node.as_deref(),
            key: key.as_deref(),
            expect_head: *expect_head,
            sync: *sync,
            create: *create,
            config: config.as_deref(),
            disable_backpressure: *disable_backpressure,
        }
    }
}

impl AppendArgs<'_> {
    /// Calls `run` with the append of these records.
    pub fn with_append<R>(
        &self,
        records: &[NewRecord<'_>],
        run: impl FnOnce(&Append<'_>) -> R,
    ) -> Result<R, Failure> {
        let config = config_of(self.config)?;
        Ok(run(&Append {
            records,
            node: self.node.unwrap_or("").as_bytes(),
            key: self.key.unwrap_or("").as_bytes(),
            expect_head: self.expect_head,
            sync: self.sync,
            create: self.create,
            config: config.as_ref(),
            disable_backpressure: self.disable_backpressure,
        }))
    }
}

/// Holds the Python objects of an append.
pub(crate) fn py_records<'py>(records: &Bound<'py, PySequence>) -> PyResult<Vec<PyRecord<'py>>> {
    records.try_iter()?.map(|r| PyRecord::of(&r?)).collect()
}

/// The records of held objects; JSON is not validated.
pub(crate) fn records_of<'a>(held: &'a [PyRecord<'_>]) -> PyResult<Vec<NewRecord<'a>>> {
    held.iter().map(PyRecord::record).collect()
}

/// Holds raw payloads.
pub(crate) fn raw<'py>(records: &Bound<'py, PyList>) -> PyResult<Vec<Bound<'py, PyBytes>>> {
    records.iter().map(|item| Ok(item.cast_into::<PyBytes>()?)).collect()
}

/// One binary record for each payload.
pub(crate) fn raw_records<'a>(
    held: &'a [Bound<'_, PyBytes>],
    tag: Option<&'a str>,
) -> Vec<NewRecord<'a>> {
    let tag = tag.unwrap_or("").as_bytes();
    held.iter()
        .map(|data| NewRecord { data: data.as_bytes(), binary: true, tag, ..Default::default() })
        .collect()
}

/// Validates all records of an append.
pub(crate) fn check_all<'a>(records: &[NewRecord<'a>]) -> Result<Vec<NewRecord<'a>>, Failure> {
    records.iter().enumerate().map(|(i, r)| check(i, r)).collect()
}

/// Options of a job: lane, group, delay_ms, deliver_at.
type Job<'py> = (Option<u8>, Option<Bound<'py, PyString>>, u64, u64);

/// A record whose fields are Python objects.
pub(crate) struct PyRecord<'py> {
    data: Bound<'py, PyBytes>,
    binary: bool,
    tag: Option<Bound<'py, PyString>>,
    node: Option<Bound<'py, PyString>>,
    meta: Option<Bound<'py, PyBytes>>,
    ttl_ms: u64,
    job: Option<Job<'py>>,
}

impl<'py> PyRecord<'py> {
    pub fn of(item: &Bound<'py, PyAny>) -> PyResult<Self> {
        let t = item.cast::<PyTuple>()?;
        if t.len() == 6 {
            let (data, binary, tag, node, meta, ttl_ms) = t.extract()?;
            return Ok(Self { data, binary, tag, node, meta, ttl_ms, job: None });
        }
        let (data, binary, tag, node, meta, ttl_ms, lane, group, delay_ms, deliver_at) =
            t.extract()?;
        let job = Some((lane, group, delay_ms, deliver_at));
        Ok(Self { data, binary, tag, node, meta, ttl_ms, job })
    }

    /// The record; its JSON is not validated.
    pub fn record(&self) -> PyResult<NewRecord<'_>> {
        Ok(NewRecord {
            data: self.data.as_bytes(),
            binary: self.binary,
            tag: str_bytes(self.tag.as_ref())?,
            node: str_bytes(self.node.as_ref())?,
            meta: self.meta.as_ref().map_or(b"", |m| m.as_bytes()),
            ttl_ms: self.ttl_ms,
            lane: self.job.as_ref().and_then(|j| j.0),
            group: str_bytes(self.job.as_ref().and_then(|j| j.1.as_ref()))?,
            delay_ms: self.job.as_ref().map_or(0, |j| j.2),
            deliver_at: self.job.as_ref().map_or(0, |j| j.3),
        })
    }
}

fn str_bytes<'a>(s: Option<&'a Bound<'_, PyString>>) -> PyResult<&'a [u8]> {
    s.map_or(Ok(&b""[..]), |s| Ok(s.to_str()?.as_bytes()))
}

/// Validates the JSON of `data` and `meta`, which the engine stores without a check, and removes the
/// whitespace around it.
pub(crate) fn check<'a>(index: usize, r: &NewRecord<'a>) -> Result<NewRecord<'a>, Failure> {
    let mut r = *r;
    let path = json::FieldPath { within: "records", index: Some(index), field: "" };
    if !r.binary {
        let value = json::validate(r.data);
        let value = value.map_err(|e| path.at("data").invalid(format_args!("is {e}")))?;
        r.data = value.as_bytes();
    }
    if !r.meta.is_empty() {
        r.meta = write::parse_meta(r.meta)?.as_bytes();
    }
    Ok(r)
}

/// Parses a config from JSON text.
pub(crate) fn config_of(text: Option<&[u8]>) -> Result<Option<ConfigPatch>, Failure> {
    text.map(config::parse).transpose()
}

/// Parses a tag, or a prefix with one `*` at its end.
pub(crate) fn match_of(py: Python<'_>, text: Option<&str>) -> PyResult<Option<TopicMatch>> {
    let Some(text) = text else { return Ok(None) };
    let pattern = filter::bare_match(text).ok_or_else(|| {
        let message =
            format!("match must be a tag or a prefix with one * at its end, not {text:?}");
        raise(py, &Failure::invalid(message))
    });
    pattern.map(Some)
}

/// The nodes whose records a read skips.
pub(crate) fn nodes_of(nodes: Option<Vec<String>>) -> NodeFilter {
    NodeFilter(nodes.unwrap_or_default().into_iter().map(String::into_bytes).collect())
}
