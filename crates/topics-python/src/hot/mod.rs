//! The hot protocol: what uvicorn's `http=` extension point is given by `topics serve`.
//!
//! The contract: it may only be faster than the ASGI application, never different. A [`Connection`]
//! answers requests that `topics_wire::hot` recognises with the bytes that the application's server
//! would have sent; at the first one that is anything else, the connection goes over to the complete
//! protocol, with the bytes that nobody has looked at, and stays there.
//!
//! Everything here runs on the loop's thread. No lock is held over a call into Python: a transport
//! calls its protocol from within.

mod connection;
mod dispatcher;
mod stream_writer;

pub(crate) use connection::{Connection, PendingReplies};
pub(crate) use dispatcher::HotDispatcher;
pub(crate) use stream_writer::{StreamWriter, StreamWriters};
