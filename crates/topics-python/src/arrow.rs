//! Scans as Arrow C streams, without a copy.
//!
//! A capsule owns the C structure of the arrow crate; the consumer moves it out.

use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::PyCapsule;
use topics_service::Scan;
use topics_wire::Failure;
use topics_wire::arrow::StreamBounds;

use crate::errors::raise;

/// A scan until a consumer takes it.
#[pyclass(frozen)]
pub(crate) struct ArrowStream {
    scan: Mutex<Option<Scan>>,
    bounds: StreamBounds,
    failed: Arc<OnceLock<Failure>>,
}

impl ArrowStream {
    pub fn new(scan: Scan) -> Self {
        let bounds = scan.bounds();
        let failed = scan.failed();
        Self { scan: Mutex::new(Some(scan)), bounds, failed }
    }
}

fn taken() -> PyErr {
    PyValueError::new_err("this stream has been read: scan again")
}

#[pymethods]
impl ArrowStream {
    #[getter]
    fn topic_id(&self) -> u64 {
        self.bounds.topic_id
    }

    #[getter]
    fn to_seq(&self) -> u64 {
        self.bounds.to_seq
    }

    /// Raises the error that ended the stream, if one did.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.failed.get().map_or(Ok(()), |failure| Err(raise(py, failure)))
    }

    #[pyo3(signature = (requested_schema=None))]
    fn __arrow_c_stream__<'py>(
        &self,
        py: Python<'py>,
        requested_schema: Option<Bound<'py, PyAny>>,
    ) -> PyResult<Bound<'py, PyCapsule>> {
        // The protocol allows a producer to ignore the requested schema; the consumer casts.
        drop(requested_schema);
        let scan = self.scan.lock().take().ok_or_else(taken)?;
        PyCapsule::new_with_value(py, scan.into_c_stream(), c"arrow_array_stream")
    }

    fn __arrow_c_schema__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyCapsule>> {
        let scan = self.scan.lock();
        let schema = scan.as_ref().ok_or_else(taken)?.c_schema().map_err(|e| raise(py, &e))?;
        PyCapsule::new_with_value(py, schema, c"arrow_schema")
    }
}
