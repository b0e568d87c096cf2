//! JSON lines: the lines of files that the command line reads.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use topics_wire::json::{DATA_DEPTH, Scanner, SyntaxError, decode_base64, validate};
use topics_wire::{Failure, write};

use crate::errors::raise;

const NO_RECORD: &str = "neither a record nor a gap as `topics export` writes it: a JSON object with \
    data, data_b64 or tombstone; `topics append` takes lines that are payloads";

/// Why a line is refused.
struct Refused(String);

impl From<SyntaxError> for Refused {
    fn from(error: SyntaxError) -> Self {
        Self(error.to_string())
    }
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self(failure.message)
    }
}

impl From<&str> for Refused {
    fn from(message: &str) -> Self {
        Self(message.to_owned())
    }
}

fn raised<T>(py: Python<'_>, result: Result<T, Refused>) -> PyResult<T> {
    result.map_err(|refused| raise(py, &Failure::invalid(refused.0)))
}

/// A record of a line; its payload and its meta are slices of the line unless decoded.
#[derive(Default)]
struct LineRecord<'a> {
    tag: Option<String>,
    node: Option<String>,
    meta: Option<&'a str>,
    data: Option<&'a str>,
    decoded: Option<Vec<u8>>,
    is_gap: bool,
}

fn string(s: &mut Scanner<'_>, name: &str) -> Result<String, Refused> {
    if s.peek() != Some(b'"') {
        return Err(Refused(format!("{name} is not a string")));
    }
    let text = s.string()?.decode();
    text.map(Into::into).ok_or_else(|| Refused(format!("{name} has an unpaired surrogate escape")))
}

fn record(line: &[u8]) -> Result<LineRecord<'_>, Refused> {
    let text = std::str::from_utf8(line)
        .map_err(|e| SyntaxError { at: e.valid_up_to(), what: "invalid UTF-8" })?;
    let mut s = Scanner::at_depth(text, DATA_DEPTH - 1);
    let mut found = LineRecord::default();
    if s.peek() != Some(b'{') {
        // A line that is no JSON at all is reported as such.
        s.skip()?;
        s.end()?;
        return Err(NO_RECORD.into());
    }
    s.object(|s, key| {
        match key.raw {
            "$tag" => found.tag = Some(string(s, key.raw)?),
            "$node" => found.node = Some(string(s, key.raw)?),
            "meta" => found.meta = Some(s.value()?),
            "data" => found.data = Some(s.value()?),
            "data_b64" => {
                let text = string(s, key.raw)?;
                let bytes = decode_base64(text.as_bytes()).ok_or("data_b64 is not base64")?;
                found.decoded = Some(bytes);
            }
            "tombstone" => {
                found.is_gap = true;
                s.skip()?;
            }
            _ => s.skip()?,
        }
        Ok::<_, Refused>(())
    })?;
    s.end()?;
    if let Some(meta) = found.meta {
        found.meta = Some(write::parse_meta(meta.as_bytes())?);
    }
    if !found.is_gap && found.data.is_none() && found.decoded.is_none() {
        return Err(NO_RECORD.into());
    }
    Ok(found)
}

/// The payload of a line, checked: one JSON value without the whitespace around it.
#[pyfunction]
pub(crate) fn payload_of_line<'py>(py: Python<'py>, line: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    let value = raised(py, validate(line).map_err(Refused::from))?;
    Ok(PyBytes::new(py, value.as_bytes()))
}

/// The payload, whether it is binary, tag, node and meta.
type Parsed<'py> = (
    Bound<'py, PyBytes>,
    bool,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyBytes>>,
);

/// The record of a line as a server sends it, checked; `None` if the line is a gap.
#[pyfunction]
pub(crate) fn record_of_line<'py>(py: Python<'py>, line: &[u8]) -> PyResult<Option<Parsed<'py>>> {
    let found = raised(py, record(line))?;
    if found.is_gap {
        return Ok(None);
    }
    let is_binary = found.decoded.is_some();
    let payload = found.decoded.as_deref().or(found.data.map(str::as_bytes)).unwrap_or_default();
    let text = |text: Option<String>| text.map(|t| PyString::new(py, &t));
    let meta = found.meta.map(|m| PyBytes::new(py, m.as_bytes()));
    Ok(Some((PyBytes::new(py, payload), is_binary, text(found.tag), text(found.node), meta)))
}
