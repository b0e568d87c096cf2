//! Counts the requests to the object store.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use topics_env::Env;
use topics_env::objects::{
    ByteRange, ETag, ObjectBytes, ObjectError, ObjectInfo, ObjectResult, ObjectStore,
};

use crate::types::requests::RequestCounters;

/// A store whose requests are counted.
#[derive(Debug)]
pub(crate) struct CountedStore {
    env: Env,
    store: Arc<dyn ObjectStore>,
    counters: Arc<RequestCounters>,
}

impl CountedStore {
    pub(crate) fn new(
        env: &Env,
        store: Arc<dyn ObjectStore>,
        counters: &Arc<RequestCounters>,
    ) -> Self {
        Self { env: env.clone(), store, counters: counters.clone() }
    }

    fn count<T>(&self, op: usize, request: impl FnOnce() -> ObjectResult<T>) -> ObjectResult<T> {
        let began = self.env.clock.mono_ns();
        let result = request();
        let counters = &self.counters.ops[op];
        counters.seconds.record(self.env.clock.mono_ns().saturating_sub(began));
        let outcome = match &result {
            Ok(_) => 0,
            Err(ObjectError::NotFound { .. }) => 1,
            Err(ObjectError::Precondition { .. }) => 2,
            Err(ObjectError::Refused { .. }) => 3,
            Err(ObjectError::Unavailable { .. }) => 4,
            Err(ObjectError::Ambiguous { .. }) => 5,
        };
        counters.outcomes[outcome].add(1);
        result
    }
}

impl ObjectStore for CountedStore {
    fn create(&self, key: &str, body: &Bytes) -> ObjectResult<ETag> {
        self.counters.sent.add(body.len() as u64);
        self.count(0, || self.store.create(key, body))
    }

    fn replace(&self, key: &str, body: &Bytes, etag: &ETag) -> ObjectResult<ETag> {
        self.counters.sent.add(body.len() as u64);
        self.count(1, || self.store.replace(key, body, etag))
    }

    fn get(
        &self,
        key: &str,
        range: ByteRange,
        if_match: Option<&ETag>,
    ) -> ObjectResult<ObjectBytes> {
        let found = self.count(2, || self.store.get(key, range, if_match))?;
        self.counters.received.add(found.bytes.len() as u64);
        Ok(found)
    }

    fn get_within(&self, key: &str, range: ByteRange, wait: Duration) -> ObjectResult<ObjectBytes> {
        let found = self.count(2, || self.store.get_within(key, range, wait))?;
        self.counters.received.add(found.bytes.len() as u64);
        Ok(found)
    }

    fn end_within(&self, wait: Duration) {
        self.store.end_within(wait);
    }

    fn get_if_changed(&self, key: &str, etag: &ETag) -> ObjectResult<Option<ObjectBytes>> {
        let found = self.count(2, || self.store.get_if_changed(key, etag))?;
        self.counters.received.add(found.as_ref().map_or(0, |f| f.bytes.len() as u64));
        Ok(found)
    }

    fn head(&self, key: &str) -> ObjectResult<ObjectInfo> {
        self.count(3, || self.store.head(key))
    }

    fn delete(&self, key: &str) -> ObjectResult<()> {
        self.count(4, || self.store.delete(key))
    }
}
