//! Data directories: create, copy, verify and repair them, and watch a recovery.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use topics_engine::RecoveryProgress;
use topics_wire::Failure;

use crate::errors::raise;
use crate::settings::{self, Settings};
use crate::shared::run_interruptible;

/// The progress of a recovery, for threads other than the one that opens the engine.
#[pyclass(frozen)]
#[derive(Default)]
pub(crate) struct Recovery(pub Arc<RecoveryProgress>);

#[pymethods]
impl Recovery {
    #[new]
    fn new() -> Self {
        Self::default()
    }

    /// The share of the log that is replayed, from 0 to 1.
    #[getter]
    fn progress(&self) -> f64 {
        self.0.ppm() as f64 / 1e6
    }
}

/// Creates a data directory if it is missing; the error names what is in the way.
#[pyfunction]
pub(crate) fn make_directory(py: Python<'_>, path: &str) -> PyResult<()> {
    let (env, _, _) = settings::options(py, None)?;
    let made = py.detach(|| topics_engine::make_directory(&env, Path::new(path)));
    made.map_err(|e| raise(py, &Failure::from(e)))
}

/// Copies a data directory that is not open, by hard links where that is possible.
#[pyfunction]
pub(crate) fn clone_directory(
    py: Python<'_>,
    source: PathBuf,
    target: PathBuf,
) -> PyResult<Bound<'_, PyBytes>> {
    let (env, _, _) = settings::options(py, None)?;
    let shown = target.display().to_string();
    let copy = move || Ok(topics_engine::Engine::clone_directory(&env, &source, &target)?);
    let made = run_interruptible(py, copy)?;
    Ok(PyBytes::new(py, &topics_wire::report::backup(&shown, &made)))
}

/// Verifies every byte of a data directory, closed or open. Calls `progress(files, bytes,
/// total_bytes, problems)` after each file.
#[pyfunction]
#[pyo3(signature = (path, progress=None))]
pub(crate) fn verify(
    py: Python<'_>,
    path: String,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyBytes>> {
    let (env, _, _) = settings::options(py, None)?;
    let mut tell = move |p: &topics_engine::Progress| {
        let Some(progress) = &progress else { return };
        Python::attach(|py| {
            let seen = (p.files, p.bytes, p.total_bytes, p.problems);
            if let Err(e) = progress.call1(py, seen) {
                e.write_unraisable(py, None);
            }
        });
    };
    let work = move || Ok(topics_engine::verify(&env, Path::new(&path), &mut tell)?);
    let report = run_interruptible(py, work)?;
    Ok(PyBytes::new(py, &topics_wire::report::verification(&report)))
}

/// Reports what damage has destroyed in a closed data directory. With `apply` it declares that lost,
/// and keeps a copy of the damaged bytes.
#[pyfunction]
#[pyo3(signature = (path, settings=None, *, apply=false))]
pub(crate) fn repair<'py>(
    py: Python<'py>,
    path: String,
    settings: Option<Settings<'py>>,
    apply: bool,
) -> PyResult<Bound<'py, PyBytes>> {
    let (env, options, _) = settings::options(py, settings)?;
    let found = run_interruptible(py, move || {
        let dir = Path::new(&path);
        Ok(match apply {
            true => topics_engine::repair(env, dir, options),
            false => topics_engine::plan_repair(&env, dir, options),
        }?)
    })?;
    Ok(PyBytes::new(py, &topics_wire::report::repair(&found)))
}
