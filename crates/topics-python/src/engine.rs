//! The verbs of an embedded engine.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySequence};
use topics_engine::{Appended, NewRecord, ReadFrom, ReadRequest};
use topics_env::Env;
use topics_service::{Scan, Verb, is_prefix};
use topics_wire::Failure;
use topics_wire::arrow::ScanRequest;

use crate::args::{
    AppendArgs, check_all, match_of, nodes_of, py_records, raw, raw_records, records_of,
};
use crate::arrow::ArrowStream;
use crate::batch::Batch;
use crate::consumer;
use crate::directory::Recovery;
use crate::errors::{catch_panics, raise, raise_body};
use crate::local::LocalRequest;
use crate::queue::{self, Jobs, Outcome};
use crate::settings::{self, Settings};
use crate::shared::{Shared, opening, or_fetch, read_fetching, run_interruptible, wait_in_slices};
use crate::watch::{Start, Watch, WatchArgs};

/// `(topic_id, first_seq, last_seq, head_seq, count, created, deduped, durability)`.
pub(crate) type Ack = (u64, u64, u64, u64, u64, bool, bool, &'static str);

/// Target payload bytes of a batch of a scan.
const SCAN_BATCH_BYTES: usize = 4 << 20;

/// How the names of directories of views begin.
const VIEW: &str = "topics-view-";
/// After this time the directory of a view that no engine has open was left by a process that was killed.
const ABANDONED: Duration = Duration::from_secs(3600);

/// A new directory for a view, which nobody else can read. Removes those that killed processes left.
fn view_directory(env: &Env) -> Result<PathBuf, Failure> {
    use std::os::unix::fs::DirBuilderExt;
    let below = std::env::temp_dir();
    for entry in std::fs::read_dir(&below).into_iter().flatten().flatten() {
        let age = || entry.metadata().ok()?.modified().ok()?.elapsed().ok();
        let is_abandoned = entry.file_name().to_string_lossy().starts_with(VIEW)
            && age().is_some_and(|age| age > ABANDONED)
            && !topics_engine::Engine::is_open(env, &entry.path());
        if is_abandoned {
            // That of another user stays.
            let _ = std::fs::remove_dir_all(entry.path());
        }
    }
    let path = below.join(format!("{VIEW}{:016x}", env.rng.next_u64()));
    let made = std::fs::DirBuilder::new().mode(0o700).create(&path);
    made.map(|()| path.clone()).map_err(|e| {
        Failure::invalid(format!("the temporary directory {} (TMPDIR): {e}", path.display()))
    })
}

/// An open data directory.
#[pyclass(frozen, weakref)]
pub(crate) struct Engine {
    pub shared: Arc<Shared>,
}

#[pymethods]
impl Engine {
    #[staticmethod]
    #[pyo3(signature = (path, settings=None, read_only=false, recovery=None, temporary=false, at_ms=None, sealed=false, base=None))]
    #[allow(clippy::too_many_arguments)]
    fn open(
        py: Python<'_>,
        path: &str,
        settings: Option<Settings<'_>>,
        read_only: bool,
        recovery: Option<&Recovery>,
        temporary: bool,
        at_ms: Option<u64>,
        sealed: bool,
        base: Option<String>,
    ) -> PyResult<Self> {
        use topics_engine::Engine;
        let (env, options, url) = settings::options(py, settings)?;
        let dir = path.to_owned();
        let progress = recovery.map(|r| r.0.clone()).unwrap_or_default();
        let open = move || {
            let (env_of, at) = (env.clone(), Path::new(&dir));
            let mut removed = temporary.then(|| at.to_owned());
            let engine = match read_only {
                true if is_prefix(&dir) => {
                    let store = settings::prefix(&env, &dir).map_err(Failure::invalid)?;
                    let at = &*removed.insert(view_directory(&env)?);
                    let opened = if sealed {
                        Engine::open_sealed(&env, store, at, base.as_deref(), options)
                    } else {
                        Engine::open_prefix(&env, store, at, at_ms, options)
                    };
                    opened.inspect_err(|_| {
                        let _ = std::fs::remove_dir_all(at);
                    })
                }
                true => Engine::open_read_only(env_of, at, options),
                false => Engine::open_reporting(env_of, at, options, progress),
            }?;
            if !url.is_empty() && !read_only {
                engine.set_url(&url)?;
            }
            Ok(Shared::new(engine, env, dir, removed))
        };
        let shared = opening(|| run_interruptible(py, open))?;
        Ok(Self { shared })
    }

    /// The name of the base that an engine reads a prefix from.
    #[getter]
    fn base(&self, py: Python<'_>) -> PyResult<Option<String>> {
        self.shared.run(py, |engine| Ok(engine.base()))
    }

    /// Whether an engine that reads a prefix has its newest state.
    fn is_current(&self, py: Python<'_>) -> PyResult<bool> {
        self.shared.run(py, |engine| Ok(engine.is_current()?))
    }

    #[getter]
    fn path(&self) -> &str {
        &self.shared.path
    }

    #[getter]
    fn closed(&self) -> bool {
        self.shared.closed()
    }

    /// Raises `Closed` if the engine is closed.
    fn check(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.engine().map(|_| ()).map_err(|e| raise(py, &e))
    }

    /// Runs a verb with the query and the body of its request; returns the body of the answer. A
    /// `long` one runs on a thread of its own, so that this thread handles signals.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (verb, name="", subresource="", query=None, body=None, json=false, long=false))]
    fn call<'py>(
        &self,
        py: Python<'py>,
        verb: &str,
        name: &str,
        subresource: &str,
        query: Option<&[u8]>,
        body: Option<&[u8]>,
        json: bool,
        long: bool,
    ) -> PyResult<Bound<'py, PyBytes>> {
        let request = LocalRequest {
            verb: Verb::from_name(verb),
            name: name.to_owned(),
            subresource: subresource.to_owned(),
            query: query.unwrap_or_default().to_owned(),
            body: body.unwrap_or_default().to_owned(),
            json,
        };
        let reply = if long {
            let shared = self.shared.clone();
            run_interruptible(py, move || Ok(shared.local()?.call(request)))?
        } else {
            let call = || catch_panics(|| Ok(self.shared.local()?.call(request)));
            py.detach(call).map_err(|e| raise(py, &e))?
        };
        if reply.status >= 400 {
            return Err(raise_body(py, &reply.body));
        }
        Ok(PyBytes::new(py, &reply.body))
    }

    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.shared.closed() {
            return Ok(());
        }
        let shared = self.shared.clone();
        run_interruptible(py, move || shared.close())
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (topic, records, *, node=None, key=None, expect_head=None, sync=false,
        create=None, config=None, disable_backpressure=true))]
    fn append(
        &self,
        py: Python<'_>,
        topic: &str,
        records: &Bound<'_, PySequence>,
        node: Option<&str>,
        key: Option<&str>,
        expect_head: Option<u64>,
        sync: bool,
        create: Option<bool>,
        config: Option<&[u8]>,
        disable_backpressure: bool,
    ) -> PyResult<Ack> {
        let held = py_records(records)?;
        let records = records_of(&held)?;
        let args =
            AppendArgs { node, key, expect_head, sync, create, config, disable_backpressure };
        self.write(py, topic, args, || check_all(&records))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (topic, records, *, tag=None, node=None, key=None, expect_head=None,
        sync=false, create=None, config=None, disable_backpressure=true))]
    fn append_batch(
        &self,
        py: Python<'_>,
        topic: &str,
        records: &Bound<'_, PyList>,
        tag: Option<&str>,
        node: Option<&str>,
        key: Option<&str>,
        expect_head: Option<u64>,
        sync: bool,
        create: Option<bool>,
        config: Option<&[u8]>,
        disable_backpressure: bool,
    ) -> PyResult<Ack> {
        let held = raw(records)?;
        let records = raw_records(&held, tag);
        let args =
            AppendArgs { node, key, expect_head, sync, create, config, disable_backpressure };
        self.write(py, topic, args, || Ok(records))
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (topic, *, after=None, tail=None, before=None, upto=None, limit=256,
        max_bytes=1 << 20, skip_nodes=None, r#match=None, topic_id=None, strong=false,
        touch=true))]
    fn read(
        &self,
        py: Python<'_>,
        topic: &str,
        after: Option<u64>,
        tail: Option<u64>,
        before: Option<u64>,
        upto: Option<u64>,
        limit: usize,
        max_bytes: usize,
        skip_nodes: Option<Vec<String>>,
        r#match: Option<&str>,
        topic_id: Option<u64>,
        strong: bool,
        touch: bool,
    ) -> PyResult<Batch> {
        let from = match (after, tail, before) {
            (None, Some(tail), Some(seq)) => ReadFrom::Before { seq, tail },
            (None, Some(tail), None) => ReadFrom::Tail(tail),
            (Some(after), None, None) => ReadFrom::After(after),
            (None, None, None) => ReadFrom::Earliest,
            _ => {
                let message = "a read takes one of after, tail, and tail with before";
                return Err(raise(py, &Failure::invalid(message)));
            }
        };
        let matching = match_of(py, r#match)?;
        let skip_nodes = nodes_of(skip_nodes);
        let request = ReadRequest {
            from,
            upto,
            limit,
            max_bytes,
            skip_nodes,
            matching,
            topic_id,
            strong,
            touch,
            only_seqs: false,
        };
        let read = || self.shared.run(py, |e| or_fetch(e.read_present(topic, &request)));
        read_fetching(py, read).map(Batch)
    }

    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (topics, patterns, *, lenient=false, skip_nodes=None, r#match=None,
        limit=256, max_batch_bytes=262_144, strong=false, queue_frames=1024,
        queue_bytes=16_777_216, stall_ms=None))]
    fn watch(
        &self,
        py: Python<'_>,
        topics: Vec<Start>,
        patterns: Vec<Start>,
        lenient: bool,
        skip_nodes: Option<Vec<String>>,
        r#match: Option<&str>,
        limit: usize,
        max_batch_bytes: usize,
        strong: bool,
        queue_frames: usize,
        queue_bytes: usize,
        stall_ms: Option<u64>,
    ) -> PyResult<Watch> {
        let (matching, skip_nodes) = (match_of(py, r#match)?, nodes_of(skip_nodes));
        let args = WatchArgs {
            lenient,
            skip_nodes,
            matching,
            limit,
            max_batch_bytes,
            strong,
            queue_frames,
            queue_bytes,
            stall_ms,
        };
        Watch::open(py, &self.shared, topics, patterns, args)
    }

    #[pyo3(signature = (topic, seq, timeout=None))]
    fn wait(&self, py: Python<'_>, topic: &str, seq: u64, timeout: Option<f64>) -> PyResult<bool> {
        wait_in_slices(
            py,
            timeout,
            |above| !above,
            |slice| self.shared.run(py, |e| Ok(e.wait(topic, seq, slice)?)),
        )
    }

    #[pyo3(signature = (queue, node, max=1, lease_ms=None, wait=0.0))]
    fn claim(
        &self,
        py: Python<'_>,
        queue: &str,
        node: &str,
        max: usize,
        lease_ms: Option<u64>,
        wait: f64,
    ) -> PyResult<Jobs> {
        queue::claim(py, &self.shared, queue, node, (max, lease_ms, wait))
    }

    #[pyo3(signature = (queue, node, seqs, lease_ids=None))]
    fn ack(
        &self,
        py: Python<'_>,
        queue: &str,
        node: &str,
        seqs: Vec<u64>,
        lease_ids: Option<Vec<u64>>,
    ) -> PyResult<Outcome> {
        queue::ack(py, &self.shared, queue, node, &seqs, lease_ids.as_deref())
    }

    /// Reads with a consumer.
    #[allow(clippy::too_many_arguments)]
    #[pyo3(signature = (topic, consumer, reader, how))]
    fn consumer_read(
        &self,
        py: Python<'_>,
        topic: &str,
        consumer: &str,
        reader: Option<&str>,
        how: consumer::ReadArgs,
    ) -> PyResult<Batch> {
        consumer::read(py, &self.shared, (topic, consumer, reader), &how)
    }

    /// Forgets a reader of a consumer, which reads no more.
    fn forget_reader(&self, py: Python<'_>, topic: &str, consumer: &str, reader: &str) {
        py.detach(|| {
            // A closed engine, or one of the parent process, has no readers.
            let _ = catch_panics(|| {
                self.shared.local()?.forget_reader(topic, consumer, reader);
                Ok(())
            });
        });
    }

    fn forget_remote(&self, py: Python<'_>) -> PyResult<()> {
        self.shared.run_long(py, |e| Ok(e.forget_remote()?))
    }

    /// Scans a range; `request` is the body of the HTTP request.
    fn scan_range(&self, py: Python<'_>, topic: &str, request: &[u8]) -> PyResult<ArrowStream> {
        let scan = self.shared.run(py, |e| {
            let asked = topics_wire::arrow::parse(request)?;
            let asked = ScanRequest { prefetch: true, batch_bytes: SCAN_BATCH_BYTES, ..asked };
            Scan::begin(e.clone(), topic, asked)
        })?;
        Ok(ArrowStream::new(scan))
    }
}

/// Converts the answer of an append.
pub(crate) fn ack(a: &Appended) -> Ack {
    let durability = a.durability.as_str();
    let (created, deduped) = (a.created, a.deduped);
    (a.topic_id, a.first_seq, a.last_seq, a.head_seq, a.count, created, deduped, durability)
}

impl Engine {
    /// Appends the records that `records` returns; both run without the GIL.
    fn write<'a>(
        &self,
        py: Python<'_>,
        topic: &str,
        args: AppendArgs<'_>,
        records: impl FnOnce() -> Result<Vec<NewRecord<'a>>, Failure> + Send,
    ) -> PyResult<Ack> {
        let acked = self.shared.run(py, move |e| {
            let records = records()?;
            Ok(args.with_append(&records, |append| e.append(topic, append))??)
        })?;
        Ok(ack(&acked))
    }
}
