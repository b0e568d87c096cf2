//! The budget of unsent bytes, for the event loop.

use std::sync::Arc;

use pyo3::prelude::*;

/// A limit on the bytes of answers and events that are built and that their clients have not taken.
#[pyclass(frozen)]
pub(crate) struct UnsentBytes(pub Arc<topics_service::UnsentBytes>);

#[pymethods]
impl UnsentBytes {
    #[new]
    #[pyo3(signature = (most=0))]
    fn new(most: u64) -> Self {
        Self(Arc::new(topics_service::UnsentBytes::new(most)))
    }

    #[getter]
    fn held(&self) -> u64 {
        self.0.held()
    }

    #[getter]
    fn full(&self) -> bool {
        self.0.is_full()
    }

    /// Counts bytes.
    fn take(&self, size: u64) {
        self.0.add(size);
    }

    /// Counts bytes less.
    fn give(&self, size: u64) {
        self.0.remove(size);
    }
}
