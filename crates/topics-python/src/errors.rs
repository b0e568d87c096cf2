//! Failures as Python exceptions. `topics_engine.errors` defines the classes.

use std::panic::{AssertUnwindSafe, catch_unwind};

use pyo3::call::PyCallArgs;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::PyBytes;
use topics_engine::Error;
use topics_wire::Failure;

static MODULE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();

/// The exception of a failure.
pub(crate) fn raise(py: Python<'_>, failure: &Failure) -> PyErr {
    let detail = failure.detail.as_deref().unwrap_or("{}");
    made_by(py, "from_native", (failure.code, &failure.message, detail))
}

/// The exception of the body of an answer.
pub(crate) fn raise_body(py: Python<'_>, body: &[u8]) -> PyErr {
    made_by(py, "from_body", (PyBytes::new(py, body),))
}

/// The exception that a function of the module of errors makes.
fn made_by<'py>(py: Python<'py>, function: &str, args: impl PyCallArgs<'py>) -> PyErr {
    let module = MODULE.get_or_try_init(py, || {
        Ok::<_, PyErr>(py.import("topics_engine.errors")?.into_any().unbind())
    });
    match module.and_then(|module| module.getattr(py, function)?.call1(py, args)) {
        Ok(exception) => PyErr::from_value(exception.into_bound(py)),
        Err(e) => e,
    }
}

/// Runs `work` and turns a panic into an `internal` failure, so that it does not unwind into the
/// interpreter.
pub(crate) fn catch_panics<T>(work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
    match catch_unwind(AssertUnwindSafe(work)) {
        Ok(outcome) => outcome,
        Err(panic) => {
            let text = panic
                .downcast_ref::<String>()
                .map(String::as_str)
                .or_else(|| panic.downcast_ref::<&str>().copied())
                .unwrap_or("no message");
            Err(Failure::from(Error::Internal(format!("panic: {text}"))))
        }
    }
}

/// The HTTP status of an error code.
#[pyfunction]
pub(crate) fn error_status(code: &str) -> u16 {
    topics_wire::status(code)
}

/// The status and the body of an error.
#[pyfunction]
#[pyo3(signature = (code, message, detail=None))]
pub(crate) fn error_body<'py>(
    py: Python<'py>,
    code: &str,
    message: &str,
    detail: Option<&[u8]>,
) -> PyResult<(u16, Bound<'py, PyBytes>)> {
    let status = topics_wire::status(code);
    let mut out = Failure::new("", message);
    if let Some(detail) = detail.filter(|d| !d.is_empty()) {
        let detail = topics_wire::json::validate(detail).map_err(|e| raise(py, &e.into()))?;
        out.detail = Some(detail.to_owned());
    }
    Ok((status, PyBytes::new(py, &out.body_as(code))))
}

/// The whole seconds of `Retry-After`.
#[pyfunction]
pub(crate) fn retry_after(body: &[u8]) -> u64 {
    Failure::retry_after_ms(body).unwrap_or(1000).div_ceil(1000).max(1)
}
