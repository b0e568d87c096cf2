//! Object stores: probe a server; the status of a prefix, its verification, and a restore of it.

use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_remote::inspect::{self, VerifyDepth};
use topics_remote::store::url::RemoteUrl;
use topics_remote::{RemoteError, Retry, probe};
use topics_service::PutBackup;
use topics_wire::Failure;

use crate::errors::raise;
use crate::settings;
use crate::shared::run_interruptible;
use crate::store::{self, Access};

/// How long requests are repeated.
const DEADLINE: Duration = Duration::from_secs(15);

/// The store that a URL names, and how its requests are repeated.
fn open(py: Python<'_>, url: &str) -> PyResult<(Arc<dyn ObjectStore>, Retry)> {
    let (env, _, _) = settings::options(py, None)?;
    let refuse = |message: String| raise(py, &Failure::invalid(message));
    let parsed = RemoteUrl::parse(url).map_err(|e| refuse(format!("the URL of a remote {e}")))?;
    let opened = py.detach(|| store::open(&env, &parsed, Access::Write));
    let opened = opened.map_err(|e| refuse(format!("the remote cannot be opened: {e}")))?;
    let mut retry = Retry::new(env, std::thread::sleep);
    retry.deadline = DEADLINE;
    Ok((opened, retry))
}

/// What puts backups into prefixes of object stores.
pub(crate) fn put_backup(env: &Env) -> PutBackup {
    let env = env.clone();
    Arc::new(move |engine: &topics_engine::Engine, url: &str| {
        let refuse = |e: &dyn std::fmt::Display| Failure::invalid(format!("dir {url:?}: {e}"));
        let parsed = RemoteUrl::parse(url).map_err(|e| refuse(&format!("the URL {e}")))?;
        if let RemoteUrl::Folder(path) = &parsed
            && engine.is_inside(path)
        {
            return Err(refuse(&"a copy cannot be inside of its source: choose another directory"));
        }
        let store = store::open(&env, &parsed, Access::Write).map_err(|e| refuse(&e))?;
        let mut retry = Retry::new(env.clone(), std::thread::sleep);
        retry.deadline = DEADLINE;
        Ok(engine.backup_to(&store, &retry)?)
    })
}

fn failed(e: RemoteError) -> Failure {
    topics_engine::Error::from(e).into()
}

/// Probes whether a server has what a remote needs; `large` is the size of the largest object to write,
/// 0: none.
#[pyfunction]
pub(crate) fn probe_remote(
    py: Python<'_>,
    url: String,
    large: usize,
) -> PyResult<Bound<'_, PyBytes>> {
    let (store, retry) = open(py, &url)?;
    let report = run_interruptible(py, move || Ok(probe::probe(&*store, retry.env(), large)))?;
    Ok(PyBytes::new(py, &topics_wire::remote::probe(&report)))
}

/// The published state of a prefix.
#[pyfunction]
pub(crate) fn remote_status(py: Python<'_>, url: String) -> PyResult<Bound<'_, PyBytes>> {
    let (store, retry) = open(py, &url)?;
    let now_ms = retry.env().clock.wall_ms();
    let found = run_interruptible(py, move || inspect::status(&*store, &retry).map_err(failed))?;
    Ok(PyBytes::new(py, &topics_wire::remote::status(found.as_ref(), now_ms)))
}

/// Verifies what the newest base of a prefix names. Calls `progress(done, total)` after each object.
#[pyfunction]
#[pyo3(signature = (url, *, data=false, progress=None))]
pub(crate) fn verify_remote(
    py: Python<'_>,
    url: String,
    data: bool,
    progress: Option<Py<PyAny>>,
) -> PyResult<Bound<'_, PyBytes>> {
    let (store, retry) = open(py, &url)?;
    let depth = if data { VerifyDepth::Data } else { VerifyDepth::Footers };
    let mut tell = move |done: u64, total: u64| {
        let Some(progress) = &progress else { return };
        Python::attach(|py| {
            if let Err(e) = progress.call1(py, (done, total)) {
                e.write_unraisable(py, None);
            }
        });
    };
    let verify = move || inspect::verify(&*store, &retry, depth, &mut tell).map_err(failed);
    let report = run_interruptible(py, verify)?;
    let json = report.map_or_else(|| b"null".to_vec(), |r| topics_wire::remote::verification(&r));
    Ok(PyBytes::new(py, &json))
}

/// Restores a prefix into a directory that is missing or empty, which goes on with it; as a `copy`, which has
/// nothing to do with it, the state at `at_ms`, or the newest one.
#[pyfunction]
#[pyo3(signature = (url, path, copy=false, at_ms=None))]
pub(crate) fn restore(
    py: Python<'_>,
    url: String,
    path: String,
    copy: bool,
    at_ms: Option<u64>,
) -> PyResult<Bound<'_, PyBytes>> {
    let (store, retry) = open(py, &url)?;
    let done = run_interruptible(py, move || {
        let (env, request) = (retry.env().clone(), topics_engine::RestoreRequest { copy, at_ms });
        Ok(topics_engine::restore(&env, store, &retry, std::path::Path::new(&path), &request)?)
    })?;
    Ok(PyBytes::new(py, &topics_wire::report::restored(&done)))
}
