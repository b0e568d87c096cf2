//! Settings by name.

mod slot;
mod table;

use std::sync::Arc;

use pyo3::prelude::*;
use pyo3::types::PyMapping;
use topics_engine::{Options, RemoteOptions};
use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_env::real::real_env;
use topics_remote::store::url::RemoteUrl;
use topics_wire::config::SYNONYMS;
use topics_wire::{Failure, Limits, unknown_name};

use self::slot::Value;
use self::table::{AllSettings, SETTINGS};
use crate::errors::raise;
use crate::shared::check_not_forked;
use crate::store::{self, Access};

/// Names and values from Python.
pub(crate) type Settings<'py> = Bound<'py, PyMapping>;

/// The store that a URL names; `None` without one. The error says what is wrong with it.
pub(crate) fn open_store(env: &Env, url: &str) -> Result<Option<Arc<dyn ObjectStore>>, String> {
    if url.is_empty() {
        return Ok(None);
    }
    let url = RemoteUrl::parse(url).map_err(|e| format!("remote_url {e}"))?;
    store::open(env, &url, Access::Write).map(Some).map_err(|e| format!("remote_url: {e}"))
}

/// The store of a prefix that is only read; nothing is created. The error says what is wrong with it.
pub(crate) fn prefix(env: &Env, url: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let parsed = RemoteUrl::parse(url).map_err(|e| format!("{url}: the URL {e}"))?;
    if let RemoteUrl::Folder(path) = &parsed
        && !path.is_dir()
    {
        return Err(format!("{url}: there is no directory {}", path.display()));
    }
    store::open(env, &parsed, Access::Read).map_err(|e| format!("{url}: {e}"))
}

fn read(py: Python<'_>, settings: Option<Settings<'_>>) -> PyResult<AllSettings> {
    let mut all = AllSettings::default();
    let Some(settings) = settings else { return Ok(all) };
    let refuse = |message: String| raise(py, &Failure::invalid(message));
    for item in settings.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let Some(setting) = SETTINGS.iter().find(|setting| setting.name == name) else {
            let known: Vec<_> = SETTINGS.iter().map(|setting| setting.name).collect();
            return Err(raise(py, &unknown_name("setting", "", None, &name, &known)));
        };
        if value.is_none() {
            continue;
        }
        let value: Value = value.extract().map_err(|_| {
            refuse(format!(
                "{name} must be a boolean, an integer of at least 0 or a string, not {value}"
            ))
        })?;
        let got = value.to_string();
        let set = (setting.slot)(&mut all).set(value);
        set.map_err(|allowed| refuse(format!("{name} {allowed}, not {got}")))?;
    }
    // The limits of meta, tag and node are the same over HTTP and embedded.
    let (o, l) = (&mut all.options, &all.limits);
    (o.max_meta_bytes, o.max_tag_bytes) = (l.meta_bytes, l.tag_bytes);
    o.max_node_bytes = l.node_bytes;
    Ok(all)
}

/// The environment, options and URL to open an engine with.
pub(crate) fn options(
    py: Python<'_>,
    settings: Option<Settings<'_>>,
) -> PyResult<(Env, Options, String)> {
    check_not_forked().map_err(|e| raise(py, &e))?;
    let all = read(py, settings)?;
    let refuse = |e: std::io::Error| raise(py, &Failure::invalid(format!("io_backend: {e}")));
    let env = real_env(all.backend).map_err(refuse)?;
    let store = py.detach(|| open_store(&env, &all.remote_url));
    let store = store.map_err(|message| raise(py, &Failure::invalid(message)))?;
    let limits = all.remote;
    let remote = store.map(|store| RemoteOptions { store, limits });
    Ok((env, Options { remote, ..all.options }, all.url))
}

/// The limits of HTTP requests.
pub(crate) fn limits(py: Python<'_>, settings: Option<Settings<'_>>) -> PyResult<Limits> {
    Ok(read(py, settings)?.limits)
}

/// The settings of an engine and of its HTTP verbs: name, kind, the words of a kind `words`, default,
/// and what it is for.
#[pyfunction]
pub(crate) fn settings() -> Vec<(&'static str, &'static str, Vec<&'static str>, Value, &'static str)>
{
    let mut all = AllSettings::default();
    SETTINGS
        .iter()
        .map(|setting| {
            let slot = (setting.slot)(&mut all);
            (setting.name, slot.kind(), slot.words(), slot.get(), setting.summary)
        })
        .collect()
}

/// What other systems call a field of a topic's config: their name, and the field.
#[pyfunction]
pub(crate) fn config_synonyms() -> Vec<(&'static str, &'static str)> {
    SYNONYMS.to_vec()
}
