//! Parses the JSON answer of a server; payloads stay as they were stored.

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyString};
use topics_wire::Failure;
use topics_wire::json::{Scanner, SyntaxError, Text, decode_base64};

use crate::batch::Row;
use crate::errors::raise;

/// A record of an answer; its texts are slices of the answer.
#[derive(Default)]
struct AnswerRecord<'a> {
    seq: u64,
    ts: u64,
    node: Option<Text<'a>>,
    tag: Option<Text<'a>>,
    meta: Option<&'a str>,
    data: Option<&'a str>,
    data_b64: Option<&'a str>,
    /// Members that are not fields of a record, as a JSON object without its closing brace.
    extra: Vec<u8>,
}

struct Answer<'a> {
    /// Every other member, as a JSON object without its closing brace.
    rest: Vec<u8>,
    records: Vec<AnswerRecord<'a>>,
}

fn add(object: &mut Vec<u8>, key: Text<'_>, value: &str) {
    object.push(if object.is_empty() { b'{' } else { b',' });
    for part in ["\"", key.raw, "\":", value] {
        object.extend_from_slice(part.as_bytes());
    }
}

fn number(text: &str) -> u64 {
    text.parse().unwrap_or(0)
}

fn record<'a>(s: &mut Scanner<'a>) -> Result<AnswerRecord<'a>, SyntaxError> {
    let mut found = AnswerRecord::default();
    s.object(|s, key| {
        match key.raw {
            "$seq" => found.seq = number(s.value()?),
            "$ts" => found.ts = number(s.value()?),
            "$node" => found.node = Some(s.string()?),
            "$tag" => found.tag = Some(s.string()?),
            "meta" => found.meta = Some(s.value()?),
            "data" => found.data = Some(s.value()?),
            "data_b64" => found.data_b64 = Some(s.string()?.raw),
            _ => add(&mut found.extra, key, s.value()?),
        }
        Ok::<_, SyntaxError>(())
    })?;
    Ok(found)
}

fn answer<'a>(body: &'a [u8], member: &str) -> Result<Answer<'a>, SyntaxError> {
    let mut out = Answer { rest: Vec::new(), records: Vec::new() };
    let mut s = Scanner::new(body)?;
    s.object(|s, key| {
        if key.raw != member {
            add(&mut out.rest, key, s.value()?);
        } else if s.peek() == Some(b'{') {
            out.records.push(record(s)?);
        } else {
            s.array(|s, _| {
                out.records.push(record(s)?);
                Ok::<_, SyntaxError>(())
            })?;
        }
        Ok::<_, SyntaxError>(())
    })?;
    s.end()?;
    Ok(out)
}

fn close(mut object: Vec<u8>) -> Vec<u8> {
    if object.is_empty() {
        object.push(b'{');
    }
    object.push(b'}');
    object
}

fn row<'py>(py: Python<'py>, found: &AnswerRecord<'_>) -> PyResult<Row<'py>> {
    let bad = |what| raise(py, &Failure::new("internal", what));
    let text = |text: Option<Text<'_>>| {
        let text = text.map(|t| {
            t.decode()
                .ok_or_else(|| bad("the answer of the server has an unpaired surrogate escape"))
        });
        Ok::<_, PyErr>(text.transpose()?.map(|t| PyString::new(py, &t)))
    };
    let data = match found.data_b64 {
        Some(data_b64) => {
            let raw = decode_base64(data_b64.as_bytes());
            PyBytes::new(
                py,
                &raw.ok_or_else(|| bad("data_b64 in the answer of the server is not base64"))?,
            )
        }
        None => PyBytes::new(py, found.data.unwrap_or("null").as_bytes()),
    };
    let meta = found.meta.map(|m| PyBytes::new(py, m.as_bytes()));
    let binary = found.data_b64.is_some();
    Ok((found.seq, found.ts, text(found.node)?, text(found.tag)?, meta, data, binary))
}

type Parsed<'py> = (Bound<'py, PyBytes>, Vec<Row<'py>>, Vec<Bound<'py, PyBytes>>);

/// Returns the answer without `member`, the records in `member`, and the other fields of each record;
/// the last is empty when no record has other fields.
#[pyfunction]
pub(crate) fn parse_answer<'py>(
    py: Python<'py>,
    body: &[u8],
    member: &str,
) -> PyResult<Parsed<'py>> {
    let found = py.detach(|| answer(body, member)).map_err(|e| {
        let message = format!("the answer of the server is {e}");
        raise(py, &Failure::new("internal", message))
    })?;
    let rows = found.records.iter().map(|r| row(py, r)).collect::<PyResult<Vec<_>>>()?;
    let extra = if found.records.iter().all(|r| r.extra.is_empty()) {
        Vec::new()
    } else {
        found.records.into_iter().map(|r| PyBytes::new(py, &close(r.extra))).collect()
    };
    Ok((PyBytes::new(py, &close(found.rest)), rows, extra))
}
