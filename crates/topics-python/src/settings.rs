//! Settings by name. This table of names is the only one; the defaults are those of Rust.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};
use topics_engine::{
    AutoCreate, Durability, Options, RecoveryMode, RemoteLimits, RemoteMode, RemoteOptions,
};
use topics_env::Env;
use topics_env::objects::ObjectStore;
use topics_env::real::{Backend, real_env};
use topics_remote::store::{self, url::RemoteUrl};
use topics_wire::config::{FIELDS, FieldKind, SYNONYMS};
use topics_wire::{Failure, Limits, unknown_name};

use crate::errors::raise;
use crate::shared::check_not_forked;

/// Names and values from Python.
pub(crate) type Settings<'py> = Bound<'py, PyMapping>;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, IntoPyObject, FromPyObject)]
enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(on) => on.fmt(f),
            Self::Number(n) => n.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// The store that a URL names; `None` without one. The error says what is wrong with it.
pub(crate) fn open_store(env: &Env, url: &str) -> Result<Option<Arc<dyn ObjectStore>>, String> {
    if url.is_empty() {
        return Ok(None);
    }
    let url = RemoteUrl::parse(url).map_err(|e| format!("remote_url {e}"))?;
    store::open(env, &url).map(Some).map_err(|e| format!("remote_url: {e}"))
}

/// Whether a path is the URL of a prefix of an object store.
pub(crate) fn is_prefix(path: &str) -> bool {
    path.starts_with("file://") || path.starts_with("s3://")
}

/// The store of a prefix that is only read; nothing is created. The error says what is wrong with it.
pub(crate) fn prefix(env: &Env, url: &str) -> Result<Arc<dyn ObjectStore>, String> {
    let parsed = RemoteUrl::parse(url).map_err(|e| format!("{url}: the URL {e}"))?;
    if let RemoteUrl::Folder(path) = &parsed
        && !path.is_dir()
    {
        return Err(format!("{url}: there is no directory {}", path.display()));
    }
    store::open_to_read(env, &parsed).map_err(|e| format!("{url}: {e}"))
}

/// What the object store is for; `None`: nothing, whatever the URL says.
type Purpose = Option<RemoteMode>;

/// Every setting.
struct AllSettings {
    purpose: Purpose,
    remote_url: String,
    remote: RemoteLimits,
    options: Options,
    backend: String,
    url: String,
    limits: Limits,
}

/// The field of [`AllSettings`] that a setting reads and writes.
enum SettingSlot<'a> {
    U32(&'a mut u32),
    U64(&'a mut u64),
    Size(&'a mut usize),
    Millis(&'a mut Duration),
    Flag(&'a mut bool),
    Text(&'a mut String),
    Recovery(&'a mut RecoveryMode),
    Purpose(&'a mut Purpose),
    AutoCreate(&'a mut AutoCreate),
    Durability(&'a mut Durability),
}

/// Every setting with its slot. A limit that holds for HTTP requests and embedded calls has one name;
/// limits of embedded calls alone begin with `max_embedded_`.
fn slots_of(all: &mut AllSettings) -> Vec<(&'static str, SettingSlot<'_>)> {
    let AllSettings { purpose, remote_url, remote: r, options: o, backend, url, limits: l } = all;
    vec![
        ("url", SettingSlot::Text(url)),
        ("io_backend", SettingSlot::Text(backend)),
        ("recovery", SettingSlot::Recovery(&mut o.recovery)),
        ("auto_create", SettingSlot::AutoCreate(&mut o.auto_create)),
        ("default_durability", SettingSlot::Durability(&mut o.default_durability)),
        ("wal_shards", SettingSlot::U32(&mut o.wal_shards)),
        ("wal_file_min", SettingSlot::U64(&mut o.wal_file_min)),
        ("wal_file_max", SettingSlot::U64(&mut o.wal_file_max)),
        ("wal_max_bytes", SettingSlot::U64(&mut o.wal_max_bytes)),
        ("staging_bytes", SettingSlot::Size(&mut o.staging_bytes)),
        ("staging_frames", SettingSlot::Size(&mut o.staging_frames)),
        ("staging_wait_ms", SettingSlot::Millis(&mut o.staging_wait)),
        ("sync_interval_ms", SettingSlot::Millis(&mut o.sync_interval)),
        ("tail_cache_bytes", SettingSlot::Size(&mut o.tail_cache_bytes)),
        ("checkpoint_bytes", SettingSlot::U64(&mut o.checkpoint_bytes)),
        ("checkpoint_interval_ms", SettingSlot::Millis(&mut o.checkpoint_interval)),
        ("segment_max_events", SettingSlot::U64(&mut o.segment_max_events)),
        ("segment_max_bytes", SettingSlot::U64(&mut o.segment_max_bytes)),
        ("segment_max_age_ms", SettingSlot::Millis(&mut o.segment_max_age)),
        ("remote_url", SettingSlot::Text(remote_url)),
        ("remote", SettingSlot::Purpose(purpose)),
        ("ship_interval_ms", SettingSlot::Millis(&mut r.ship_interval)),
        ("ship_max_lag_bytes", SettingSlot::U64(&mut r.ship_max_lag_bytes)),
        ("pack_bytes", SettingSlot::U64(&mut r.pack_bytes)),
        ("pack_max_wait_ms", SettingSlot::Millis(&mut r.pack_max_wait)),
        ("hot_retain_segments", SettingSlot::U64(&mut r.hot_segments)),
        ("hot_retain_bytes", SettingSlot::U64(&mut r.hot_bytes)),
        ("cold_timeout_ms", SettingSlot::Millis(&mut r.cold_timeout)),
        ("cold_memory_bytes", SettingSlot::U64(&mut r.cold_memory_bytes)),
        ("restore_window_ms", SettingSlot::Millis(&mut r.restore_window)),
        ("delete_grace_ms", SettingSlot::Millis(&mut r.delete_grace)),
        ("remote_single_writer", SettingSlot::Flag(&mut r.single_writer)),
        ("memory_bytes", SettingSlot::U64(&mut o.memory_bytes)),
        ("ephemeral_bytes", SettingSlot::U64(&mut o.ephemeral_bytes)),
        ("txn_bytes", SettingSlot::U64(&mut o.txn_bytes)),
        ("txn_ttl_ms", SettingSlot::Millis(&mut o.txn_ttl)),
        ("max_topics", SettingSlot::U64(&mut o.max_topics)),
        ("max_routers", SettingSlot::U64(&mut o.max_routers)),
        ("max_watch_sessions", SettingSlot::U64(&mut o.max_watch_sessions)),
        ("max_consumers", SettingSlot::U64(&mut o.max_consumers)),
        ("max_txn_writers", SettingSlot::U64(&mut o.max_txn_writers)),
        ("max_txn_writers_per_key", SettingSlot::U64(&mut o.max_txn_writers_per_key)),
        ("txn_writer_ttl_ms", SettingSlot::Millis(&mut o.txn_writer_ttl)),
        ("max_open_files", SettingSlot::Size(&mut o.max_open_files)),
        ("max_total_bytes", SettingSlot::U64(&mut o.max_total_bytes)),
        ("max_idempotency_keys", SettingSlot::U64(&mut o.max_idempotency_keys)),
        ("max_embedded_batch_records", SettingSlot::Size(&mut o.max_batch_records)),
        ("max_embedded_batch_bytes", SettingSlot::U64(&mut o.max_batch_bytes)),
        ("max_embedded_record_bytes", SettingSlot::Size(&mut o.max_record_bytes)),
        ("max_batch_records", SettingSlot::Size(&mut l.batch_records)),
        ("max_record_bytes", SettingSlot::Size(&mut l.record_bytes)),
        ("max_meta_bytes", SettingSlot::Size(&mut l.meta_bytes)),
        ("max_tag_bytes", SettingSlot::Size(&mut l.tag_bytes)),
        ("max_node_bytes", SettingSlot::Size(&mut l.node_bytes)),
        ("max_limit", SettingSlot::Size(&mut l.limit)),
        ("max_claim", SettingSlot::Size(&mut l.claim)),
        ("max_watch_topics", SettingSlot::Size(&mut l.watch_topics)),
    ]
}

impl SettingSlot<'_> {
    fn get(&self) -> Value {
        let number = |n: usize| Value::Number(n as u64);
        match self {
            Self::U32(n) => Value::Number(u64::from(**n)),
            Self::U64(n) => Value::Number(**n),
            Self::Size(n) => number(**n),
            Self::Millis(d) => Value::Number(u64::try_from(d.as_millis()).unwrap_or(u64::MAX)),
            Self::Flag(on) => Value::Flag(**on),
            Self::Text(t) => Value::Text((*t).clone()),
            Self::Recovery(RecoveryMode::Strict) => Value::Text("strict".into()),
            Self::Recovery(RecoveryMode::Salvage | RecoveryMode::Repair) => {
                Value::Text("salvage".into())
            }
            Self::Purpose(purpose) => Value::Text(
                match purpose {
                    None => "off",
                    Some(RemoteMode::Tier) => "tier",
                    Some(RemoteMode::Ship) => "ship",
                    Some(RemoteMode::All) => "all",
                }
                .into(),
            ),
            Self::Durability(class) => Value::Text(class.as_str().into()),
            Self::AutoCreate(AutoCreate::On) => Value::Text("true".into()),
            Self::AutoCreate(AutoCreate::Off) => Value::Text("false".into()),
            Self::AutoCreate(AutoCreate::Patterns(list)) => Value::Text(list.join(",")),
        }
    }

    /// Sets the slot; the error says which values are allowed.
    fn set(&mut self, value: Value) -> Result<(), &'static str> {
        match (self, value) {
            (Self::U32(to), Value::Number(n)) => {
                **to = u32::try_from(n).map_err(|_| "must be below 2^32")?;
            }
            (Self::U64(to), Value::Number(n)) => **to = n,
            (Self::Size(to), Value::Number(n)) => {
                **to = usize::try_from(n).map_err(|_| "is too large")?;
            }
            (Self::Millis(to), Value::Number(n)) => **to = Duration::from_millis(n),
            (Self::Flag(to), Value::Flag(on)) => **to = on,
            (Self::Text(to), Value::Text(text)) => **to = text,
            (Self::Recovery(to), Value::Text(text)) => {
                **to = match text.as_str() {
                    "strict" => RecoveryMode::Strict,
                    "salvage" => RecoveryMode::Salvage,
                    _ => return Err("must be strict or salvage"),
                };
            }
            (Self::Purpose(to), Value::Text(text)) => {
                **to = match text.as_str() {
                    "off" => None,
                    "tier" => Some(RemoteMode::Tier),
                    "ship" => Some(RemoteMode::Ship),
                    "all" => Some(RemoteMode::All),
                    _ => return Err("must be off, tier, ship or all"),
                };
            }
            (Self::Durability(to), Value::Text(text)) => {
                let class = Durability::ALL.into_iter().find(|class| class.as_str() == text);
                **to = class.ok_or("must be ephemeral, memory, disk or fsync")?;
            }
            (Self::AutoCreate(to), Value::Flag(on)) => {
                **to = if on { AutoCreate::On } else { AutoCreate::Off };
            }
            (Self::AutoCreate(to), Value::Text(text)) => **to = auto_create(&text),
            (Self::Flag(_), _) => return Err("must be true or false"),
            (Self::Text(_) | Self::Recovery(_) | Self::Purpose(_) | Self::Durability(_), _) => {
                return Err("must be a string");
            }
            (Self::AutoCreate(_), _) => {
                return Err("must be true, false, or a list of names and prefixes with *");
            }
            _ => return Err("must be an integer of at least 0"),
        }
        Ok(())
    }
}

fn auto_create(text: &str) -> AutoCreate {
    match text {
        "true" | "1" => AutoCreate::On,
        "false" | "0" => AutoCreate::Off,
        list => {
            let patterns = list.split(',').map(|p| p.trim().to_owned());
            AutoCreate::Patterns(patterns.filter(|p| !p.is_empty()).collect())
        }
    }
}

fn initial() -> AllSettings {
    let backend = "auto".to_owned();
    let (options, limits) = (Options::default(), Limits::default());
    let remote = RemoteLimits::default();
    let (remote_url, url) = (String::new(), String::new());
    AllSettings {
        purpose: Some(RemoteMode::All),
        remote_url,
        remote,
        options,
        backend,
        url,
        limits,
    }
}

fn read(py: Python<'_>, settings: Option<Settings<'_>>) -> PyResult<AllSettings> {
    let mut all = initial();
    let Some(settings) = settings else { return Ok(all) };
    let refuse = |message: String| raise(py, &Failure::invalid(message));
    let mut slots = slots_of(&mut all);
    for item in settings.items()?.iter() {
        let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
        let Some((_, slot)) = slots.iter_mut().find(|(known, _)| *known == name) else {
            let known: Vec<_> = slots.iter().map(|(known, _)| *known).collect();
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
        slot.set(value).map_err(|allowed| refuse(format!("{name} {allowed}, not {got}")))?;
    }
    drop(slots);
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
    let backend: Backend = all.backend.parse().map_err(refuse)?;
    let env = real_env(backend).map_err(refuse)?;
    let Some(mode) = all.purpose else { return Ok((env, all.options, all.url)) };
    let store = py.detach(|| open_store(&env, &all.remote_url));
    let store = store.map_err(|message| raise(py, &Failure::invalid(message)))?;
    let limits = all.remote;
    let remote = store.map(|store| RemoteOptions { store, mode, limits });
    Ok((env, Options { remote, ..all.options }, all.url))
}

/// The limits of HTTP requests.
pub(crate) fn limits(py: Python<'_>, settings: Option<Settings<'_>>) -> PyResult<Limits> {
    Ok(read(py, settings)?.limits)
}

/// The settings of an engine and of its HTTP verbs, with their defaults.
#[pyfunction]
pub(crate) fn defaults(py: Python<'_>) -> PyResult<Bound<'_, PyDict>> {
    let out = PyDict::new(py);
    for (name, slot) in slots_of(&mut initial()) {
        out.set_item(name, slot.get())?;
    }
    Ok(out)
}

/// What other systems call a field of a topic's config: their name, and the field.
#[pyfunction]
pub(crate) fn config_synonyms() -> Vec<(&'static str, &'static str)> {
    SYNONYMS.to_vec()
}

/// The fields of a topic's config: name, kind, and the words of a kind `words`.
#[pyfunction]
pub(crate) fn config_fields() -> Vec<(&'static str, &'static str, Vec<&'static str>)> {
    FIELDS
        .iter()
        .map(|(name, kind)| {
            let (kind, words) = match kind {
                FieldKind::Words(words) => ("words", words.to_vec()),
                FieldKind::Bool => ("flag", vec![]),
                FieldKind::Count => ("count", vec![]),
                FieldKind::Size => ("size", vec![]),
                FieldKind::Millis => ("duration", vec![]),
                FieldKind::OptionalInteger => ("integer?", vec![]),
                FieldKind::OptionalName => ("name?", vec![]),
            };
            (*name, kind, words)
        })
        .collect()
}
