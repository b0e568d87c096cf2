//! The io_uring write path: a write linked to its datasync in one submission.
