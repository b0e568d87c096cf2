//! Forwards log messages of the crates to Python's `logging`: `topics_engine.storage`,
//! `topics_engine.engine` and so on.
//!
//! A thread that logs may hold engine locks that a Python thread waits for. It must not wait for the
//! GIL, so a separate thread forwards the messages.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;
use topics_env::Guards;

/// Maximum number of queued messages; further ones are dropped. Errors that matter are also returned
/// to a caller.
const QUEUE_CAPACITY: usize = 1024;

/// How long the end of the interpreter waits for the messages in the queue.
const STOP_TIMEOUT: Duration = Duration::from_secs(1);

static FORWARD: ForwardingLogger = ForwardingLogger(OnceLock::new());

/// The forwarding thread, which starts with the first message.
struct ForwardingLogger(OnceLock<Option<Forwarder>>);

struct Forwarder {
    /// `None` ends the thread.
    messages: SyncSender<Option<Message>>,
    thread: thread::JoinHandle<()>,
    pid: u32,
}

struct Message {
    logger: String,
    level: u8,
    text: String,
}

/// Installs the logger.
pub(crate) fn install() {
    // Another extension of this process may have installed its logger first.
    if log::set_logger(&FORWARD).is_ok() {
        log::set_max_level(LevelFilter::Info);
    }
}

impl Log for ForwardingLogger {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.level() <= LevelFilter::Info
    }

    fn log(&self, record: &Record<'_>) {
        if !self.enabled(record.metadata()) {
            return;
        }
        let message = Message {
            logger: logger_of(record.target()),
            level: level_of(record.level()),
            text: record.args().to_string(),
        };
        if let Some(forwarder) = self.0.get_or_init(start_thread)
            // A forked child has no forwarding thread.
            && forwarder.pid == std::process::id()
        {
            // Fails when the queue is full or the thread has ended.
            let _ = forwarder.messages.try_send(Some(message));
        }
    }

    fn flush(&self) {}
}

fn start_thread() -> Option<Forwarder> {
    let (messages, receiver) = sync_channel(QUEUE_CAPACITY);
    let thread = thread::Builder::new().name("topics-log".into());
    let thread = thread.spawn(move || forward_messages(&receiver)).ok()?;
    Some(Forwarder { messages, thread, pid: std::process::id() })
}

/// Ends the forwarding thread after the messages in the queue, before the interpreter goes down: a
/// thread that attaches to it then may abort the process. A handler that takes longer than
/// [`STOP_TIMEOUT`] is not waited for.
#[pyfunction]
pub(crate) fn stop_logging(py: Python<'_>) {
    let Some(Some(forwarder)) = FORWARD.0.get() else { return };
    if forwarder.pid != std::process::id() {
        return;
    }
    log::set_max_level(LevelFilter::Off);
    py.detach(|| {
        let deadline = Instant::now() + STOP_TIMEOUT;
        // The queue may be full.
        while forwarder.messages.try_send(None).is_err()
            && !forwarder.thread.is_finished()
            && Instant::now() < deadline
        {
            thread::sleep(Duration::from_millis(1));
        }
        while !forwarder.thread.is_finished() && Instant::now() < deadline {
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// Forwards messages until it is told to end, or the interpreter ends.
fn forward_messages(messages: &Receiver<Option<Message>>) {
    let guards = Guards::default();
    while let Ok(Some(message)) = messages.recv() {
        let emit = || {
            Python::try_attach(|py| {
                if let Err(e) = emit(py, &message) {
                    e.write_unraisable(py, None);
                }
            })
        };
        // A message that panics is lost; the next ones are not.
        if let Ok(None) = guards.run("log", || "a message".into(), emit) {
            return;
        }
    }
}

fn emit(py: Python<'_>, message: &Message) -> PyResult<()> {
    let logger = py.import("logging")?.call_method1("getLogger", (&message.logger,))?;
    logger.call_method1("log", (message.level, "%s", &message.text))?;
    Ok(())
}

/// The Python logger of a target: `topics_storage::wal::lead` is `topics_engine.storage`.
fn logger_of(target: &str) -> String {
    let name = target.split("::").next().unwrap_or(target);
    format!("topics_engine.{}", name.strip_prefix("topics_").unwrap_or(name))
}

/// The level in Python's `logging`.
fn level_of(level: Level) -> u8 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug | Level::Trace => 10,
    }
}
