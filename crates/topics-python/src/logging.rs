//! What the crates log, as records of Python's `logging`: `topics_engine.storage`,
//! `topics_engine.engine` and so on.
//!
//! Messages come from threads that hold locks of the engine, which a thread of the interpreter may be
//! waiting for. So nobody who logs waits for the interpreter: a thread of its own hands the
//! messages over.

use std::sync::OnceLock;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

use log::{Level, LevelFilter, Log, Metadata, Record};
use pyo3::prelude::*;
use topics_env::Guards;

/// Messages that wait; more are dropped. What must not be lost is not only logged.
const QUEUE_CAPACITY: usize = 1024;

static FORWARD: ForwardingLogger = ForwardingLogger(OnceLock::new());

/// The way to the thread, which begins with the first message.
struct ForwardingLogger(OnceLock<Option<SyncSender<Message>>>);

struct Message {
    logger: String,
    level: u8,
    text: String,
}

/// From now on messages reach Python.
pub(crate) fn install() {
    // Another module of this process may have been first; its logger has them then.
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
            // A full line, or one without a thread behind it in a forked child.
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

/// Ends with the interpreter.
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
        // A message that panics is lost, the next one is not.
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

/// `topics_storage::wal::lead` is `topics_engine.storage`.
fn logger_of(target: &str) -> String {
    let name = target.split("::").next().unwrap_or(target);
    format!("topics_engine.{}", name.strip_prefix("topics_").unwrap_or(name))
}

/// The numbers of Python's levels.
fn level_of(level: Level) -> u8 {
    match level {
        Level::Error => 40,
        Level::Warn => 30,
        Level::Info => 20,
        Level::Debug | Level::Trace => 10,
    }
}
