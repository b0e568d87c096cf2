//! The hot path: the HTTP/1.1 protocol that `topics serve` gives to uvicorn (`http=`).
//!
//! Contract: it may be faster than the ASGI application, never different. A [`Connection`] answers
//! the requests that `topics_wire::hot` recognises with the bytes that the application's server would
//! send. At the first other request the connection hands the unread bytes to the complete protocol,
//! which keeps it.
//!
//! Everything here runs on the loop's thread. No lock is held over a call into Python, because a
//! transport may call its protocol back within the call.

mod connection;
mod dispatcher;
mod state;
mod stream_writer;

pub(crate) use connection::Connection;
pub(crate) use dispatcher::HotDispatcher;
pub(crate) use state::WaitingConnections;
pub(crate) use stream_writer::{StreamWriter, StreamWriters};
