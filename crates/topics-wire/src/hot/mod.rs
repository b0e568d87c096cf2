//! HTTP/1.1 as far as hot requests need it: one shape of request, recognised in the raw bytes, and
//! the bytes of its response.
//!
//! What is recognised here is a subset of what the ASGI application serves. Everything that is not
//! plainly hot is left to the complete parser, so nothing is refused here. Grammar: RFC 9112.

mod head;
mod response;

pub use head::{Head, MAX_HEAD, head, verbs};
pub use response::{ExtraHeaders, response_head};
