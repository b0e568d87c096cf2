//! Models of concurrency: the engine's own code under a scheduler that explores interleavings.
//!
//! Every model runs under random schedules and under PCT's, which preempt at few, well chosen
//! points. A run that cannot go on is a deadlock, and fails. Then every site that the models pass
//! (`topics_env::sync::model`) is broken in turn: a notification that is left out, a store that is
//! not made, a change that is torn in two, a step before a wait that comes after it. A notification
//! or a step that no model misses fails the suite.
//!
//! `TOPICS_SCHEDULES` says how many schedules of each kind, `TOPICS_SEED` which,
//! `TOPICS_REPLAY` gives one back to the model that is named as the argument.

// All of it is a test, though no function says so.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, clippy::disallowed_methods)]

mod breaking;
mod jobs;
mod publish;
mod reads;
mod runner;
mod txns;
mod wal;
mod watch;
mod world;

use std::process::ExitCode;

use runner::Model;

/// Every model.
const MODELS: &[Model] = &[
    Model::new("commit", wal::commit),
    Model::new("failed-sync", wal::failed_sync),
    Model::new("close", wal::close),
    Model::new("room", wal::room),
    Model::new("unwaited", wal::unwaited),
    Model::new("ordered", publish::ordered),
    Model::new("contended", publish::contended),
    Model::new("lost", publish::lost),
    Model::new("unwritable", publish::unwritable),
    Model::new("checkpointed", publish::checkpointed),
    Model::new("delivered", watch::delivered),
    Model::new("called", watch::called),
    Model::new("born", watch::topic_created),
    Model::new("ended", watch::ended),
    Model::new("awaited", reads::awaited),
    Model::new("let-go", reads::dismissed),
    Model::new("staged", txns::staged),
    Model::new("produced", jobs::produced),
    Model::new("leased", jobs::leased),
    Model::new("dismissed", jobs::dismissed),
    Model::new("cancelled", jobs::cancelled),
    Model::new("unattended", jobs::unattended),
];

fn main() -> ExitCode {
    runner::main(MODELS)
}
