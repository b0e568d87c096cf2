//! WebSockets: text messages in and out. A subscription is a watch, a publish is a write.

mod ack_order;
mod publish;

use std::sync::Arc;

use parking_lot::Mutex;
use topics_engine::{Error, Event, Watch};
use topics_wire::json::{FieldPath, Fields, Reader, Scanner, push_str, read_body};
use topics_wire::object::Object;
use topics_wire::watch::{self, WatchSpec, frames};
use topics_wire::{Failure, Grant};

use super::dispatch::Answer;
use super::streams::{NextAction, Source};
use super::{Request, Service};

use ack_order::AckOrder;
use publish::PublishQueue;

/// Maximum number of subscriptions of one socket.
const MAX_SUBSCRIPTIONS: usize = 64;

/// Messages to send besides events.
type Outbox = Arc<Mutex<Vec<Vec<u8>>>>;

/// The state of one WebSocket.
pub(super) struct Socket {
    grant: Grant,
    subscriptions: Vec<(Option<String>, Vec<String>, Watch)>,
    outbox: Outbox,
    acks: AckOrder,
    publishes: PublishQueue,
}

/// The fields that every message has.
struct MessageHead {
    op: String,
    request_id: Option<String>,
    topics: Vec<String>,
}

/// Reads the fields that every message has. The fields of its op are read later.
fn head(message: &[u8]) -> Result<MessageHead, Failure> {
    let mut h = MessageHead { op: String::new(), request_id: None, topics: Vec::new() };
    let mut s = Scanner::new(message)?;
    s.expect_type(FieldPath::field("the body"), "an object", |b| b == b'{')?;
    s.object(|s, key| {
        match key.decode().as_deref() {
            Some("op") => h.op = s.text(FieldPath::field("op"))?.into_owned(),
            Some("request_id" | "topic") if s.null()? => {}
            Some("request_id") => {
                h.request_id = Some(s.text(FieldPath::field("request_id"))?.into_owned());
            }
            Some("topic") => h.topics.push(s.text(FieldPath::field("topic"))?.into_owned()),
            Some("topics") if s.peek() == Some(b'[') => names(s, &mut h.topics)?,
            Some("topics") if s.peek() == Some(b'{') => keys(s, &mut h.topics)?,
            _ => s.skip()?,
        }
        Ok::<_, Failure>(())
    })?;
    s.end()?;
    Ok(h)
}

/// Refuses unknown fields in a message whose op has no fields of its own.
fn only(message: &[u8], fields: Fields) -> Result<(), Failure> {
    read_body(message, fields, |s, _| Ok(s.skip()?))
}

fn names(s: &mut Scanner<'_>, out: &mut Vec<String>) -> Result<(), Failure> {
    s.array(|s, index| {
        let path = FieldPath { within: "topics", index: Some(index), field: "" };
        out.push(s.text(path)?.into_owned());
        Ok(())
    })
}

fn keys(s: &mut Scanner<'_>, out: &mut Vec<String>) -> Result<(), Failure> {
    s.object(|s, key| {
        // A name with an unpaired surrogate escape is refused with the fields of the op.
        out.extend(key.decode().map(|name| name.into_owned()));
        Ok(s.skip()?)
    })
}

fn message(op: &str, request_id: Option<&str>) -> Object {
    let mut o = Object::new(160);
    o.name("op", op);
    if let Some(id) = request_id {
        o.name("request_id", id);
    }
    o
}

/// Puts `op` before the fields of an event.
fn with_op(op: &str, fields: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(fields.len() + 24);
    out.extend_from_slice(b"{\"op\":");
    push_str(&mut out, op.as_bytes());
    out.push(b',');
    out.extend_from_slice(fields.get(1..).unwrap_or(b"}"));
    out
}

fn refusal(request_id: Option<&str>, failure: &Failure) -> Vec<u8> {
    let mut o = message("error", request_id);
    o.name("code", failure.code).name("message", &failure.message);
    if let Some(detail) = &failure.detail {
        o.raw("detail", detail.as_bytes());
    }
    o.finish()
}

impl Socket {
    /// The last message before the socket closes.
    pub(super) fn closing_message(&self, failure: &Failure) -> Vec<u8> {
        refusal(None, failure)
    }

    /// Appends answers and events to `out`, up to about `most` bytes.
    pub(super) fn pull(
        &mut self,
        out: &mut Vec<Vec<u8>>,
        most: usize,
    ) -> Result<NextAction, Failure> {
        out.append(&mut self.outbox.lock());
        let mut size: usize = out.iter().map(Vec::len).sum();
        let mut ended = Vec::new();
        let mut next = NextAction::Wait;
        for (i, (request_id, _, watch)) in self.subscriptions.iter_mut().enumerate() {
            loop {
                if size >= most {
                    next = NextAction::More;
                    break;
                }
                match watch.try_next() {
                    Ok(Some(event)) => {
                        let Some(text) = event_message(event) else { continue };
                        size += text.len();
                        out.push(text);
                    }
                    Ok(None) => break,
                    Err(Error::Closed) => return Err(Error::Closed.into()),
                    Err(e) => {
                        out.push(refusal(request_id.as_deref(), &e.into()));
                        ended.push(i);
                        break;
                    }
                }
            }
        }
        // The next pull starts with another subscription.
        if next == NextAction::More && !self.subscriptions.is_empty() {
            self.subscriptions.rotate_left(1);
        }
        for i in ended.into_iter().rev() {
            drop(self.subscriptions.remove(i));
        }
        Ok(next)
    }
}

fn event_message(event: Event) -> Option<Vec<u8>> {
    Some(match event {
        Event::Records(frame) => with_op("record", &frames::json_of(&frames::records(&frame))),
        Event::Tombstone { topic, tombstone, reason, .. } => {
            with_op("tombstone", &frames::tombstone(&topic, &tombstone, reason))
        }
        Event::CaughtUp { topic, seq, .. } => {
            with_op("caught_up", &frames::topic_head(&topic, seq, None))
        }
        Event::TopicDeleted { topic, .. } => {
            let mut o = message("topic_deleted", None);
            o.name("topic", &topic).name("reason", "deleted");
            o.finish()
        }
        Event::Failed { topic, error, .. } => {
            let failure = Failure::from(error);
            let mut o = message("error", None);
            o.name("code", failure.code).name("message", &failure.message).name("topic", &topic);
            o.finish()
        }
        Event::Paced { topic, retry_after_ms, .. } => {
            let failure = frames::throttled(retry_after_ms);
            let mut o = message("error", None);
            o.name("code", failure.code).name("message", &failure.message).name("topic", &topic);
            o.int("retry_after_ms", retry_after_ms);
            o.finish()
        }
        _ => return None,
    })
}

impl Service {
    pub(super) fn open_socket(self: &Arc<Self>, r: &Request<'_>) -> Answer {
        let (grant, subscriptions) = (r.grant.clone(), Vec::new());
        let (outbox, acks) = (Outbox::default(), AckOrder::default());
        let publishes = PublishQueue::default();
        let socket = Socket { grant, subscriptions, outbox, acks, publishes };
        self.open(r.token, Source::Socket(Box::new(socket)), Vec::new())
    }

    /// Handles a message from the client of a socket; the next pull returns the answer. `scopes`:
    /// whether the client may `read` and `write`.
    pub fn message(self: &Arc<Self>, token: u64, text: &[u8], scopes: (bool, bool)) {
        let Some(stream) = self.streams.get(token) else { return };
        let mut guard = stream.lock();
        let Some(socket) = guard.socket() else { return };
        let outbox = socket.outbox.clone();
        let (request_id, outcome) = match head(text) {
            Ok(h) => {
                let allowed = match h.op.as_str() {
                    "subscribe" if !scopes.0 => Err(missing_scope("read")),
                    "publish" if !scopes.1 => Err(missing_scope("write")),
                    _ => Ok(()),
                };
                let outcome = allowed.and_then(|()| match h.op.as_str() {
                    "subscribe" => self.subscribe(token, socket, text).map(Some),
                    "unsubscribe" => {
                        let known = &["op", "request_id", "topic", "topics"];
                        only(text, Fields::named(known)).map(|()| Some(unsubscribe(socket, &h)))
                    }
                    "publish" => self.publish(token, socket, &h, text).map(|()| None),
                    "ping" => only(text, Fields::named(&["op", "request_id"]))
                        .map(|()| Some(message("pong", h.request_id.as_deref()).finish())),
                    _ => {
                        let ops = ["subscribe", "unsubscribe", "publish", "ping"];
                        Err(FieldPath::field("op").invalid_choice(&h.op, &ops))
                    }
                });
                (h.request_id, outcome)
            }
            Err(failure) => (None, Err(failure)),
        };
        let answer = match outcome {
            Ok(answer) => answer,
            Err(failure) => Some(refusal(request_id.as_deref(), &failure)),
        };
        outbox.lock().extend(answer);
        self.sink.wake(token);
    }

    fn subscribe(
        self: &Arc<Self>,
        token: u64,
        socket: &mut Socket,
        text: &[u8],
    ) -> Result<Vec<u8>, Failure> {
        if socket.subscriptions.len() >= MAX_SUBSCRIPTIONS {
            let message = format!(
                "a socket has at most {MAX_SUBSCRIPTIONS} subscriptions; unsubscribe from one first"
            );
            return Err(Failure::invalid(message));
        }
        let WatchSpec { watch: mut asked, request_id } =
            watch::subscribe(text, &self.limits, &socket.grant)?;
        // WebSocket pings replace heartbeat events.
        asked.heartbeat_ms = None;
        // A slow client has at most four frames queued for each subscription.
        asked.queue_frames = 4;
        let opened = self.engine.watch(&asked)?;
        let sink = self.sink.clone();
        opened.on_ready(move || sink.wake(token));
        let mut o = message("subscribed", request_id.as_deref());
        let cursors = opened.cursors();
        let named = cursors.iter().map(|(name, _, seq)| (name.as_ref(), *seq));
        watch::topics(&self.engine, &mut o, named);
        let names = asked.topics.into_iter().map(|t| t.0).collect();
        socket.subscriptions.push((request_id, names, opened));
        Ok(o.finish())
    }
}

/// Ends the subscriptions with the request id or one of the topics of the message.
fn unsubscribe(socket: &mut Socket, h: &MessageHead) -> Vec<u8> {
    let mut ended = Vec::new();
    socket.subscriptions.retain_mut(|(id, topics, _)| {
        let by_id = h.topics.is_empty() && h.request_id.is_some() && *id == h.request_id;
        let ends = by_id || topics.iter().any(|t| h.topics.contains(t));
        if ends {
            ended.append(topics);
        }
        !ends
    });
    ended.sort();
    ended.dedup();
    let mut o = message("unsubscribed", h.request_id.as_deref());
    o.names("topics", &ended);
    o.finish()
}

fn missing_scope(name: &str) -> Failure {
    Failure::new("forbidden", format!("this key lacks the scope `{name}`; use a key that has it"))
}
