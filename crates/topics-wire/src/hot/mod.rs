//! The subset of HTTP/1.1 (RFC 9112) of hot requests: parsing their heads, and response heads.
//!
//! Hot requests are a subset of what the ASGI application serves. Any other request is left to the
//! complete parser, so nothing is refused here.

mod head;
mod response;

pub use head::{Head, MAX_HEAD, head, verbs};
pub use response::{ExtraHeaders, response_head};
