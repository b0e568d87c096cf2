//! Settings as Python hands them over: names and plain values.

use std::collections::HashMap;

use pyo3::prelude::*;
use topics_engine::Options;
use topics_env::Env;
use topics_env::real::{Backend, real_env};
use topics_wire::Limits;

/// Names and values.
pub(crate) type Settings<'py> = HashMap<String, Bound<'py, PyAny>>;

pub(crate) fn options(py: Python<'_>, given: Option<Settings<'_>>) -> PyResult<(Env, Options)> {
    let _ = (py, given);
    Ok((real_env(Backend::Auto)?, Options::default()))
}

pub(crate) fn limits(py: Python<'_>, given: Option<Settings<'_>>) -> PyResult<Limits> {
    let _ = (py, given);
    Ok(Limits::default())
}
