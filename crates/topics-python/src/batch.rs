//! The result of a read, record by record.

use pyo3::exceptions::PyIndexError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use topics_engine::{ReadBatch, RecordView};

/// `(seq, ts, node, tag, meta, raw, binary)`.
pub(crate) type Row<'py> = (
    u64,
    u64,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyString>>,
    Option<Bound<'py, PyBytes>>,
    Bound<'py, PyBytes>,
    bool,
);

/// A batch of records. It owns its bytes.
#[pyclass(frozen)]
pub(crate) struct Batch(pub ReadBatch);

fn row<'py>(py: Python<'py>, r: &RecordView<'_>) -> Row<'py> {
    let text = |bytes: &[u8]| {
        (!bytes.is_empty()).then(|| PyString::new(py, &String::from_utf8_lossy(bytes)))
    };
    let meta = (!r.meta.is_empty()).then(|| PyBytes::new(py, r.meta));
    (r.seq, r.ts, text(r.node), text(r.tag), meta, PyBytes::new(py, r.data), r.binary)
}

#[pymethods]
impl Batch {
    #[getter]
    fn topic_id(&self) -> u64 {
        self.0.topic_id
    }

    #[getter]
    fn tombstone(&self) -> Option<(u64, u64, &'static str, u64, u64, u64)> {
        let t = self.0.tombstone.as_ref()?;
        let reason = t.reason.as_str();
        Some((t.gap_from, t.gap_to, reason, t.missed_estimate, t.earliest_seq, t.head_seq))
    }

    #[getter]
    fn next_from_seq(&self) -> u64 {
        self.0.next_from_seq
    }

    #[getter]
    fn head_seq(&self) -> u64 {
        self.0.head_seq
    }

    #[getter]
    fn earliest_seq(&self) -> u64 {
        self.0.earliest_seq
    }

    #[getter]
    fn caught_up(&self) -> bool {
        self.0.caught_up
    }

    #[getter]
    fn lag(&self) -> u64 {
        self.0.lag
    }

    #[getter]
    fn lag_ms(&self) -> u64 {
        self.0.lag_ms
    }

    #[getter]
    fn records_scanned(&self) -> u64 {
        self.0.records_scanned
    }

    fn __len__(&self) -> usize {
        self.0.len()
    }

    fn __getitem__<'py>(&self, py: Python<'py>, index: isize) -> PyResult<Row<'py>> {
        let at = if index < 0 { index + self.0.len() as isize } else { index };
        let record = usize::try_from(at).ok().and_then(|i| self.0.get(i));
        record.map(|r| row(py, &r)).ok_or_else(|| PyIndexError::new_err("no such record"))
    }

    fn rows<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let rows: Vec<_> = self.0.iter().map(|r| row(py, &r)).collect();
        PyList::new(py, rows)
    }

    fn payloads<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let payloads: Vec<_> = self.0.iter().map(|r| PyBytes::new(py, r.data)).collect();
        PyList::new(py, payloads)
    }
}
