//! The table of routes, for the server, the clients and the documentation.

use pyo3::prelude::*;
use pyo3::types::{PyList, PyTuple};
use topics_wire::routes::{Field, ROUTES};

type Parts = &'static [&'static [Field]];

/// `(name, kind, summary, required, or null, words, fields of nested objects)` of each field.
fn fields(py: Python<'_>, parts: Parts) -> PyResult<Bound<'_, PyTuple>> {
    let mut found = Vec::new();
    for f in parts.iter().copied().flatten() {
        let of = fields(py, f.of)?;
        found.push(
            (f.name, f.kind, f.summary, f.required, f.or_null, f.words.to_vec(), of)
                .into_pyobject(py)?,
        );
    }
    PyTuple::new(py, found)
}

/// The rows of the table: `(method, path, verb, needs, summary, query, body)`, `(answer, statuses, codes,
/// waits, streams)`, the content types of the answer, and those of the body.
#[pyfunction]
pub(crate) fn routes(py: Python<'_>) -> PyResult<Bound<'_, PyList>> {
    let rows = PyList::empty(py);
    for r in ROUTES {
        let (query, body) = (fields(py, r.query)?, r.body.map(|b| fields(py, b)).transpose()?);
        let told = (r.method, r.path, r.verb, r.needs.to_vec(), r.summary, query, body);
        let more = (r.answer, r.statuses.to_vec(), r.codes.to_vec(), r.waits, r.streams);
        rows.append((told, more, r.offers.to_vec(), r.takes.to_vec()))?;
    }
    Ok(rows)
}

/// Verb, method and path of each route.
#[pyfunction]
pub(crate) fn paths() -> Vec<(&'static str, &'static str, &'static str)> {
    ROUTES.iter().map(|r| (r.verb, r.method, r.path)).collect()
}
