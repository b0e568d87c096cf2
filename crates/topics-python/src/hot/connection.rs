//! A connection while all of its requests are hot.

use std::sync::atomic::{AtomicBool, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use topics_service::Reply;
use topics_wire::hot::{LAST_CHUNK, head};

use super::HotDispatcher;
use super::dispatcher::{Admission, Called};
use super::state::{CurrentRequest, Io, PendingRequest, Phase};
use crate::bridge::LoopEvent;

/// A client with this many unanswered bytes is not read from until it has its answers.
const MAX_PIPELINED: usize = 256 << 10;

/// Requests of one connection that are served in one turn of the loop, and the bytes of their answers:
/// a client that pipelines leaves time for the others.
const TURN_REQUESTS: usize = 16;
const TURN_BYTES: usize = 64 << 10;

const OK: u16 = 200;
/// The status of a request that its key does not allow.
const FORBIDDEN: u16 = 403;

/// An `asyncio.Protocol` for uvicorn.
#[pyclass(frozen)]
pub(crate) struct Connection {
    dispatcher: Py<HotDispatcher>,
    /// `complete(fresh)` creates the complete protocol; `fresh`: no request was served here.
    complete: Py<PyAny>,
    server_state: Py<PyAny>,
    id: u64,
    io: Mutex<Io>,
    writable: AtomicBool,
}

#[pymethods]
impl Connection {
    #[new]
    fn new(dispatcher: Py<HotDispatcher>, complete: Py<PyAny>, server_state: Py<PyAny>) -> Self {
        let id = dispatcher.get().next_id();
        let io = Io {
            transport: None,
            buffer: Vec::new(),
            need: 0,
            pending: None,
            slot: None,
            received: 0,
            current: None,
            phase: Phase::First,
            since: 0,
            close_by: 0,
            paused: false,
            yielded: false,
            unsent: 0,
            unsent_checked: (0, 0),
            closes_after_reply: false,
        };
        let writable = AtomicBool::new(true);
        Self { dispatcher, complete, server_state, id, io: Mutex::new(io), writable }
    }

    fn connection_made(slf: &Bound<'_, Self>, transport: Py<PyAny>) -> PyResult<()> {
        let me = slf.get();
        let dispatcher = me.dispatcher.get();
        {
            let mut io = me.io.lock();
            io.transport = Some(transport);
            io.since = dispatcher.now();
        }
        dispatcher.register(me.id, slf.clone().unbind());
        me.connections(slf.py())?.call_method1(intern!(slf.py(), "add"), (slf,)).map(drop)
    }

    fn connection_lost(slf: &Bound<'_, Self>, _exc: Py<PyAny>) -> PyResult<()> {
        let (me, py) = (slf.get(), slf.py());
        let (transport, pending) = {
            let mut io = me.io.lock();
            (io.transport.take(), io.pending.take())
        };
        if let Some(PendingRequest { token, http }) = pending {
            let http = http.get();
            drop(http.queue.hot.replies.lock().remove(&token));
            http.service.cancel(token);
        }
        me.release_request(py);
        me.release_unsent();
        if transport.is_none() {
            return Ok(());
        }
        Self::unregister(slf)?;
        if let Some(transport) = transport {
            transport.call_method0(py, intern!(py, "close"))?;
        }
        Ok(())
    }

    fn data_received(slf: &Bound<'_, Self>, data: &Bound<'_, PyBytes>) -> PyResult<()> {
        let (me, bytes, py) = (slf.get(), data.as_bytes(), slf.py());
        let (buffered, pause, body) = {
            let mut io = me.io.lock();
            if io.phase == Phase::Closed {
                return Ok(());
            }
            let buffered = io.waits() || !io.buffer.is_empty();
            if buffered {
                io.buffer.extend_from_slice(bytes);
            }
            let waits = io.waits() || !me.writable.load(Ordering::Relaxed);
            let pause = waits && io.buffer.len() > io.need.max(MAX_PIPELINED) && !io.paused;
            io.paused |= pause;
            (buffered, pause, io.phase == Phase::Body)
        };
        if body && !me.reserve_bytes(py, bytes.len()) {
            // The application refuses the request with the limit.
            let buffered = std::mem::take(&mut me.io.lock().buffer);
            me.release_request(py);
            return Self::hand_over(slf, &buffered);
        }
        if pause {
            me.call_transport(py, "pause_reading");
        }
        match buffered {
            true => Self::serve_buffered(slf),
            false => {
                let left = Self::serve(slf, bytes)?;
                if left > 0 {
                    me.io.lock().buffer.extend_from_slice(&bytes[bytes.len() - left..]);
                }
                Ok(())
            }
        }
    }

    fn eof_received(&self) {}

    fn pause_writing(&self, py: Python<'_>) {
        self.writable.store(false, Ordering::Relaxed);
        let dispatcher = self.dispatcher.get();
        let size = self.buffered_bytes(py);
        dispatcher.unsent().add(size);
        let mut io = self.io.lock();
        io.unsent += size;
        io.unsent_checked = (size, dispatcher.now());
    }

    fn resume_writing(slf: &Bound<'_, Self>) -> PyResult<()> {
        slf.get().writable.store(true, Ordering::Relaxed);
        slf.get().release_unsent();
        Self::serve_buffered(slf)
    }

    /// The server shuts down: closes the connection, after the reply to a current request.
    fn shutdown(&self, py: Python<'_>) {
        if !self.close_after_reply() {
            self.close(py);
        }
    }
}

impl Connection {
    fn connections<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        self.server_state.bind(py).getattr(intern!(py, "connections"))
    }

    fn unregister(slf: &Bound<'_, Self>) -> PyResult<()> {
        let me = slf.get();
        me.dispatcher.get().unregister(me.id);
        me.connections(slf.py())?.call_method1(intern!(slf.py(), "discard"), (slf,)).map(drop)
    }

    /// Calls a method of the transport, unless the connection was handed over. Errors of a lost
    /// connection are ignored, because `connection_lost` follows.
    fn call_transport(&self, py: Python<'_>, method: &str) {
        if let Some(transport) = self.transport_ref(py) {
            let _ = transport.call_method0(py, method);
        }
    }

    /// Bytes in the buffer of the transport.
    fn buffered_bytes(&self, py: Python<'_>) -> u64 {
        let size = |transport: Py<PyAny>| {
            transport.call_method0(py, intern!(py, "get_write_buffer_size"))?.extract(py)
        };
        self.transport_ref(py).map_or(Ok(0), size).unwrap_or(0)
    }

    /// Releases the bytes of the transport, which has passed them on or drops them.
    fn release_unsent(&self) {
        let unsent = std::mem::take(&mut self.io.lock().unsent);
        if unsent > 0 {
            self.dispatcher.get().unsent().remove(unsent);
        }
    }

    /// Whether the connection must make room: its client reads too slowly while there is none.
    fn must_make_room(&self, py: Python<'_>, dispatcher: &HotDispatcher, now: u64) -> bool {
        let (unsent, (before, checked)) = {
            let io = self.io.lock();
            (io.unsent, io.unsent_checked)
        };
        let room = dispatcher.timeouts().room;
        if unsent == 0 || now - checked < room {
            return false;
        }
        let size = self.buffered_bytes(py);
        self.io.lock().unsent_checked = (size, now);
        dispatcher.unsent().is_full()
            && before.saturating_sub(size) < dispatcher.timeouts().progress
    }

    /// The transport, for a call without the lock.
    fn transport_ref(&self, py: Python<'_>) -> Option<Py<PyAny>> {
        self.io.lock().transport.as_ref().map(|t| t.clone_ref(py))
    }

    /// Closes the transport after its buffered bytes, and reads no further request.
    fn close(&self, py: Python<'_>) {
        let dispatcher = self.dispatcher.get();
        let since = dispatcher.now();
        let unacked_bytes =
            self.transport_ref(py).map_or(0, |transport| dispatcher.unacked_bytes(py, &transport));
        {
            let mut io = self.io.lock();
            (io.phase, io.since) = (Phase::Closed, since);
            io.close_by = since + dispatcher.timeouts().closing(unacked_bytes);
        }
        self.call_transport(py, "close");
    }

    fn write(&self, py: Python<'_>, parts: &[&[u8]]) -> PyResult<()> {
        if let Some(transport) = self.transport_ref(py) {
            let length = parts.iter().map(|part| part.len()).sum();
            let bytes = PyBytes::new_with(py, length, |mut out| {
                for part in parts {
                    let (to, rest) = out.split_at_mut(part.len());
                    to.copy_from_slice(part);
                    out = rest;
                }
                Ok(())
            })?;
            let _ = transport.call_method1(py, intern!(py, "write"), (bytes,));
        }
        Ok(())
    }

    /// Reserves bytes of a body in the budget of all bodies; false when the budget is exhausted.
    fn reserve_bytes(&self, py: Python<'_>, bytes: usize) -> bool {
        let counted = self.dispatcher.get().reserve_bytes(py, bytes);
        if counted {
            self.io.lock().received += bytes;
        }
        counted
    }

    /// Releases the slot and the bytes of the current request.
    fn release_request(&self, py: Python<'_>) {
        let (slot, received) = {
            let mut io = self.io.lock();
            (io.slot.take(), std::mem::take(&mut io.received))
        };
        let dispatcher = self.dispatcher.get();
        if let Some(slot) = slot {
            dispatcher.release_slot(py, &slot);
        }
        if received > 0 {
            dispatcher.release_bytes(py, received);
        }
    }

    /// Acquires a slot for the current request; a server without keys has no slots.
    fn acquire_slot(&self, py: Python<'_>, label: Option<Py<PyAny>>) {
        if let Some(label) = label {
            self.dispatcher.get().acquire_slot(py, &label);
            self.io.lock().slot = Some(label);
        }
    }

    /// Serves the requests in the buffer.
    fn serve_buffered(slf: &Bound<'_, Self>) -> PyResult<()> {
        let me = slf.get();
        if !me.writable.load(Ordering::Relaxed) {
            return Ok(());
        }
        let mut buffered = {
            let mut io = me.io.lock();
            let waits = io.waits() || io.phase == Phase::Closed;
            if waits || io.buffer.len() < io.need.max(1) {
                return Ok(());
            }
            std::mem::take(&mut io.buffer)
        };
        // `serve` acquires the slot and the bytes again.
        me.release_request(slf.py());
        let left = Self::serve(slf, &buffered)?;
        buffered.drain(..buffered.len() - left);
        let resume = {
            let mut io = me.io.lock();
            // `serve` does not receive, so the buffer is still empty.
            io.buffer = buffered;
            let resume = io.paused && (!io.waits() || io.buffer.len() <= MAX_PIPELINED);
            io.paused &= !resume;
            resume
        };
        if resume {
            me.call_transport(slf.py(), "resume_reading");
        }
        Ok(())
    }

    /// Serves one request after the other. Returns the number of bytes at the end of `input` that wait
    /// for the rest of a request, for a reply, or for the client to read.
    fn serve(slf: &Bound<'_, Self>, input: &[u8]) -> PyResult<usize> {
        let (me, py) = (slf.get(), slf.py());
        let dispatcher = me.dispatcher.get();
        let (mut rest, mut served, mut sent) = (input, 0, 0);
        while !rest.is_empty() && me.writable.load(Ordering::Relaxed) {
            let hot = head(rest).and_then(|head| Some((dispatcher.admit(py, &head)?, head)));
            let Some((admission, head)) = hot else {
                Self::hand_over(slf, rest)?;
                return Ok(0);
            };
            let total = head.size + head.length;
            if rest.len() < total {
                if !me.reserve_bytes(py, rest.len()) {
                    Self::hand_over(slf, rest)?;
                    return Ok(0);
                }
                me.acquire_slot(py, admission.label);
                let mut io = me.io.lock();
                if io.phase != Phase::Body {
                    (io.phase, io.since) = (Phase::Body, dispatcher.now());
                }
                io.need = total;
                // A client may announce more bytes than it sends.
                let announced = total - rest.len();
                io.buffer.reserve(announced.min(MAX_PIPELINED));
                break;
            }
            let (request, more) = rest.split_at(total);
            let body = &request[head.size..];
            let (verb, start_ns) = (head.verb, dispatcher.now_ns());
            let current = CurrentRequest { verb, start_ns, id: head.request_id.map(Box::from) };
            let page = match head.arrow.then(|| dispatcher.arrow_page(py, &admission, &head, body))
            {
                // The application answers with a longer stream, or with an error.
                Some(None) => {
                    Self::hand_over(slf, rest)?;
                    return Ok(0);
                }
                page => page.flatten(),
            };
            rest = more;
            me.begin(current);
            let (closes, size) = if let Some(page) = page {
                me.answer_as_arrow(py, &page)?
            } else {
                let token = dispatcher.next_id();
                let is_last = more.is_empty();
                let called = dispatcher.call(py, &admission, &head, body, token, is_last);
                let Called::Replied(reply) = called else {
                    let Admission { http, label, .. } = admission;
                    if matches!(called, Called::Waiting) {
                        me.acquire_slot(py, label);
                    }
                    http.get().queue.hot.replies.lock().insert(token, slf.clone().unbind());
                    me.io.lock().pending = Some(PendingRequest { token, http });
                    break;
                };
                if reply.status == FORBIDDEN {
                    dispatcher.record_refusal(py, &admission, &head, me.transport_ref(py));
                }
                (me.answer(py, &reply)?, reply.body.len())
            };
            if closes {
                return Ok(0);
            }
            (served, sent) = (served + 1, sent + size);
            if !rest.is_empty() && (served >= TURN_REQUESTS || sent >= TURN_BYTES) {
                me.io.lock().yielded = true;
                let queue = &admission.http.get().queue;
                queue.hot.yielded.lock().push_back(slf.clone().unbind());
                queue.events.push(LoopEvent::NextTurn);
                break;
            }
        }
        Ok(rest.len())
    }

    /// Serves the requests that waited for this turn of the loop.
    pub(super) fn resume(slf: &Bound<'_, Self>) {
        let me = slf.get();
        {
            let mut io = me.io.lock();
            io.yielded = false;
            if io.transport.is_none() {
                return;
            }
        }
        me.report(slf, Self::serve_buffered(slf));
    }

    /// Closes the connection after an error, which must not lose the other events of the same drain.
    fn report(&self, slf: &Bound<'_, Self>, outcome: PyResult<()>) {
        if let Err(e) = outcome {
            e.write_unraisable(slf.py(), Some(slf.as_any()));
            self.close(slf.py());
        }
    }

    /// Closes the connection after the current request; false when there is none.
    pub(super) fn close_after_reply(&self) -> bool {
        let mut io = self.io.lock();
        let there = io.waits() || io.phase == Phase::Body;
        io.closes_after_reply |= there;
        there
    }

    fn begin(&self, request: CurrentRequest) {
        let mut io = self.io.lock();
        (io.phase, io.need, io.current) = (Phase::Busy, 0, Some(request));
    }

    /// Sends a reply. Returns whether the connection closes after it.
    fn answer(&self, py: Python<'_>, reply: &Reply) -> PyResult<bool> {
        let (closes, request) = self.end_request(reply.status);
        let id = request.as_ref().and_then(|request| request.id.as_deref());
        let dispatcher = self.dispatcher.get();
        let head = dispatcher.head_of(py, &self.server_state, reply, closes, id)?;
        self.write(py, &[&head, &reply.body])?;
        if closes {
            self.close(py);
        }
        Ok(closes)
    }

    /// Sends an Arrow stream. Returns whether the connection closes after it, and the bytes of the stream.
    fn answer_as_arrow(&self, py: Python<'_>, page: &[Bytes]) -> PyResult<(bool, usize)> {
        let (closes, request) = self.end_request(OK);
        let id = request.as_ref().and_then(|request| request.id.as_deref());
        let size = page.iter().map(Bytes::len).sum();
        let dispatcher = self.dispatcher.get();
        let head = dispatcher.arrow_head(py, &self.server_state, size, closes, id)?;
        let mut parts = vec![&head[..]];
        parts.extend(page.iter().map(|piece| &piece[..]));
        parts.push(LAST_CHUNK);
        self.write(py, &parts)?;
        if closes {
            self.close(py);
        }
        Ok((closes, size))
    }

    /// Ends the current request, and counts it. Returns whether the connection closes after the answer.
    fn end_request(&self, status: u16) -> (bool, Option<CurrentRequest>) {
        let dispatcher = self.dispatcher.get();
        let mut io = self.io.lock();
        (io.phase, io.since) = (Phase::Next, dispatcher.now());
        let (closes, request) = (io.closes_after_reply, io.current.take());
        drop(io);
        if let Some(request) = &request {
            dispatcher.count(request.verb, status, request.start_ns);
        }
        (closes, request)
    }

    /// Handles the reply to the pending request.
    pub(super) fn on_reply(slf: &Bound<'_, Self>, reply: &Reply) {
        let me = slf.get();
        let pending = me.io.lock().pending.take();
        drop(pending);
        me.release_request(slf.py());
        let outcome =
            me.answer(slf.py(), reply).and_then(|closes_after_reply| match closes_after_reply {
                true => Ok(()),
                false => Self::serve_buffered(slf),
            });
        me.report(slf, outcome);
    }

    /// Hands the transport and the unread bytes to the complete protocol.
    fn hand_over(slf: &Bound<'_, Self>, rest: &[u8]) -> PyResult<()> {
        let (me, py) = (slf.get(), slf.py());
        let (transport, paused, closes_after_reply, fresh) = {
            let mut io = me.io.lock();
            let fresh = io.phase == Phase::First;
            (io.transport.take(), std::mem::take(&mut io.paused), io.closes_after_reply, fresh)
        };
        let Some(transport) = transport else { return Ok(()) };
        me.release_unsent();
        Self::unregister(slf)?;
        let protocol = me.complete.call1(py, (fresh,))?;
        transport.call_method1(py, intern!(py, "set_protocol"), (&protocol,))?;
        protocol.call_method1(py, intern!(py, "connection_made"), (&transport,))?;
        if paused {
            transport.call_method0(py, intern!(py, "resume_reading"))?;
        }
        protocol.call_method1(py, intern!(py, "data_received"), (PyBytes::new(py, rest),))?;
        if closes_after_reply {
            protocol.call_method0(py, intern!(py, "shutdown"))?;
        }
        Ok(())
    }

    /// Closes the connection if its client is too slow.
    pub(super) fn check_timeouts(&self, py: Python<'_>, dispatcher: &HotDispatcher, now: u64) {
        let (phase, waited) = {
            let io = self.io.lock();
            (io.phase, now - io.since)
        };
        if self.must_make_room(py, dispatcher, now) {
            self.release_unsent();
            return self.call_transport(py, "abort");
        }
        let timeouts = dispatcher.timeouts();
        let most = match phase {
            Phase::First => timeouts.first,
            Phase::Body => timeouts.body,
            Phase::Next => timeouts.next,
            Phase::Busy => return,
            Phase::Closed => timeouts.close_linger,
        };
        if waited <= most {
            return;
        }
        if phase == Phase::Closed {
            return self.close_if_drained(py, dispatcher, now);
        }
        let error_response = match phase {
            Phase::First => dispatcher.too_slow_head(py),
            Phase::Body => dispatcher.too_slow_body(py, &self.server_state).unwrap_or_default(),
            _ => Vec::new(),
        };
        if !error_response.is_empty() {
            let _ = self.write(py, &[&error_response]);
        }
        self.close(py);
    }

    /// Aborts a closing connection when its client has acknowledged every byte, or at `close_by`.
    fn close_if_drained(&self, py: Python<'_>, dispatcher: &HotDispatcher, now: u64) {
        let Some(transport) = self.transport_ref(py) else { return };
        let close_by = self.io.lock().close_by;
        if now >= close_by || dispatcher.unacked_bytes(py, &transport) == 0 {
            return self.call_transport(py, "abort");
        }
        self.io.lock().since = now;
    }
}
