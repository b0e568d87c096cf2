//! The façade: open, registries, delegation only.
#![allow(clippy::todo, unused_variables)]

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use topics_env::Env;

use crate::api::{
    Append, Appended, CreatedTopic, DeleteRequest, Deleted, DeletedTopic, ReadBatch, ReadRequest,
    TopicState, TopicSummary,
};
use crate::config::ConfigPatch;
use crate::error::Result;

/// Called once with the outcome, from whichever thread completed it; must not block.
pub type Completion<T> = Box<dyn FnOnce(Result<T>) + Send>;

/// An open engine; cheap to clone.
#[derive(Clone, Debug)]
pub struct Engine {
    _inner: Arc<()>,
}

/// Settings of an engine. Every field states its default.
#[derive(Clone, Debug)]
pub struct Options {
    /// Threads that sync, checkpoint and sweep; default true. Without them the caller drives
    /// [`Engine::tick`], [`Engine::checkpoint`] and [`Engine::sync`] (simulation).
    pub background: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { background: true }
    }
}

impl Engine {
    /// Opens a directory, creating it when missing, and recovers.
    pub fn open(env: Env, dir: &Path, options: Options) -> Result<Self> {
        todo!()
    }
    /// Stages nothing more, syncs, snapshots, wakes every waiter with `Closed`. Idempotent.
    pub fn close(&self) -> Result<()> {
        todo!()
    }
    /// Appends a batch and waits for the topic's class.
    pub fn append(&self, topic: &str, req: &Append<'_>) -> Result<Appended> {
        todo!()
    }
    /// Decides and stages; `done` is called when the class is reached, by whoever reaches it.
    /// Never blocks, never syncs. Follow a tick's calls by one [`Engine::drive`].
    pub fn append_async(&self, topic: &str, req: &Append<'_>, done: Completion<Appended>) {
        todo!()
    }
    /// Leads one group on every idle shard with staged batches; writes, never syncs.
    pub fn drive(&self) {
        todo!()
    }
    /// Creates a topic or updates the named fields of its config.
    pub fn create_topic(&self, topic: &str, config: &ConfigPatch) -> Result<CreatedTopic> {
        todo!()
    }
    /// Deletes a topic and all that belongs to it.
    pub fn delete_topic(&self, topic: &str, if_empty: bool) -> Result<DeletedTopic> {
        todo!()
    }
    /// The state of a topic; `touch` counts as consumption.
    pub fn state(&self, topic: &str, touch: bool) -> Result<TopicState> {
        todo!()
    }
    /// Topics in name order after `after`, with `prefix`; at most `limit`.
    pub fn list(&self, prefix: &str, after: Option<&str>, limit: usize) -> Vec<TopicSummary> {
        todo!()
    }
    /// Reads records.
    pub fn read(&self, topic: &str, req: &ReadRequest) -> Result<ReadBatch> {
        todo!()
    }
    /// Waits until the topic's head is above `seq`, it is deleted, or `timeout` passed; true when
    /// there is something to read.
    pub fn wait(&self, topic: &str, seq: u64, timeout: Duration) -> Result<bool> {
        todo!()
    }
    /// The same without blocking: `done` is called once, when the head is above `seq`, when the
    /// topic is deleted or the engine closed. The returned id cancels it.
    pub fn on_head(&self, topic: &str, seq: u64, done: Box<dyn FnOnce() + Send>) -> Result<u64> {
        todo!()
    }
    /// Forgets an [`Engine::on_head`] that has not fired.
    pub fn cancel_on_head(&self, topic: &str, id: u64) {
        todo!()
    }
    /// Deletes records.
    pub fn delete(&self, topic: &str, req: &DeleteRequest) -> Result<Deleted> {
        todo!()
    }
    /// The cursor just before the first record at or after `ts` (ms).
    pub fn seek(&self, topic: &str, ts: u64) -> Result<u64> {
        todo!()
    }
    /// Returns when everything acked before is durable.
    pub fn sync(&self) -> Result<()> {
        todo!()
    }
    /// The same for one topic.
    pub fn sync_topic(&self, topic: &str) -> Result<()> {
        todo!()
    }
    /// One checkpoint round.
    pub fn checkpoint(&self) -> Result<()> {
        todo!()
    }
    /// One pass of what the background threads do: sync tails, sweep TTL, lower idle
    /// reservations, checkpoint when due, rewrite, merge.
    pub fn tick(&self) -> Result<()> {
        todo!()
    }
}
