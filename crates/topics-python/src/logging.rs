//! Forwards log messages of the crates to Python's `logging`: `topics_engine.storage`,
//! `topics_engine.engine` and so on.
//!
//! A thread that logs may hold engine locks that a Python thread waits for. It must not wait for the
//! GIL, so a separate thread forwards the messages.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;
use topics_env::Guards;

/// Maximum number of queued messages; further ones are dropped. Errors that matter are also returned
/// to a caller.
const QUEUE_CAPACITY: usize = 1024;

static FORWARD: ForwardingLogger = ForwardingLogger(OnceLock::new());

/// The queue to the forwarding thread, which starts with the first message.
struct ForwardingLogger(OnceLock<Option<SyncSender<Message>>>);

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
        if let Some(sender) = self.0.get_or_init(start_thread) {
            // Fails when the queue is full, or in a forked child, which has no forwarding thread.
            let _ = sender.try_send(message);
        }
    }

    fn flush(&self) {}
}

fn start_thread() -> Option<SyncSender<Message>> {
    let (sender, receiver) = sync_channel(QUEUE_CAPACITY);
    let thread = thread::Builder::new().name("topics-log".into());
    thread.spawn(move || forward_messages(&receiver)).is_ok().then_some(sender)
}

/// Forwards messages until the interpreter ends.
fn forward_messages(messages: &Receiver<Message>) {
    let guards = Guards::default();
    for message in messages {
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
