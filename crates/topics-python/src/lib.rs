//! The native module `topics_engine._core`: bytes in, bytes out.
//!
//! A thin layer: the crates below interpret requests; this crate handles the GIL, signals, forks and
//! the event loop. `_core.pyi` declares its surface.

mod answer;
mod args;
mod arrow;
mod batch;
mod bridge;
mod calls;
mod consumer;
mod directory;
mod engine;
mod errors;
mod hot;
mod http;
mod leases;
mod lines;
mod local;
mod logging;
mod pending;
mod queue;
mod remote;
mod routes;
mod settings;
mod shared;
mod signal_queue;
mod store;
mod unsent;
mod watch;

use pyo3::prelude::*;

/// The Python module.
#[pymodule]
mod _core {
    use super::{Bound, PyModule, PyModuleMethods, PyResult};

    #[pymodule_export]
    use crate::answer::parse_answer;
    #[pymodule_export]
    use crate::arrow::ArrowStream;
    #[pymodule_export]
    use crate::batch::Batch;
    #[pymodule_export]
    use crate::bridge::Bridge;
    #[pymodule_export]
    use crate::calls::Calls;
    #[pymodule_export]
    use crate::directory::{Recovery, clone_directory, make_directory, repair, verify};
    #[pymodule_export]
    use crate::engine::Engine;
    #[pymodule_export]
    use crate::errors::{error_body, error_status, retry_after};
    #[pymodule_export]
    use crate::hot::{Connection, HotDispatcher, StreamWriter};
    #[pymodule_export]
    use crate::http::Http;
    #[pymodule_export]
    use crate::leases::{HeldLease, LeaseSchedule};
    #[pymodule_export]
    use crate::lines::{payload_of_line, record_of_line};
    #[pymodule_export]
    use crate::logging::stop_logging;
    #[pymodule_export]
    use crate::pending::{PendingBatch, PendingJobs};
    #[pymodule_export]
    use crate::queue::Work;
    #[pymodule_export]
    use crate::remote::{probe_remote, remote_status, restore, verify_remote};
    #[pymodule_export]
    use crate::routes::{paths, routes};
    #[pymodule_export]
    use crate::settings::{config_synonyms, settings};
    #[pymodule_export]
    use crate::shared::close_locks_in_child;
    #[pymodule_export]
    use crate::store::CredentialAnswers;
    #[pymodule_export]
    use crate::unsent::UnsentBytes;
    #[pymodule_export]
    use crate::watch::Watch;

    #[pymodule_init]
    fn init(m: &Bound<'_, PyModule>) -> PyResult<()> {
        crate::logging::install();
        m.add("__version__", env!("CARGO_PKG_VERSION"))?;
        m.add("BODY_NDJSON", crate::http::BODY_NDJSON)?;
        m.add("BODY_OCTETS", crate::http::BODY_OCTETS)?;
        m.add("BODY_ARROW", crate::http::BODY_ARROW)?;
        m.add("LARGE_BODY", topics_service::LARGE_BODY)?;
        m.add("ACCEPT_ARROW", crate::http::ACCEPT_ARROW)?;
        m.add("ACCEPT_JSON", crate::http::ACCEPT_JSON)
    }
}
