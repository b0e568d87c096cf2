//! Admission: the one way to a staging permit.
//!
//! A verb that has a topic exclusively waits for permits, so a caller must not hold a permit while it
//! waits for a topic. The types ensure this: outside of this module a permit exists only within an
//! [`Admission`], which is also the topic's append lock, under which nothing waits.
//! [`Ctx::stage_control`] keeps its permit to itself.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::time::Duration;

use topics_env::sync::{self, MutexGuard};
use topics_storage::StorageError;
use topics_storage::wal::{Batch, StagingPermit, Ticket};

use super::append_state::AppendState;
use super::pending_batch::{Frames, Order, PendingBatch};
use crate::ctx::Wait;
use crate::topic::Topic;
use crate::topic::events::Ctx;
use crate::topic::exclusive::ExclusiveGuard;
use crate::types::error::{Error, Result};

/// Time that a transaction with exclusive topics waits for a permit. The log writes every batch staged
/// before it meanwhile, so a log that does not admit it by then makes no progress.
const EXCLUSIVE_WAIT: Duration = Duration::from_secs(60);

/// Time that a patient caller waits; a close wakes it.
const PATIENCE: Duration = Duration::from_secs(365 * 86_400);

/// A topic's append lock with a permit to stage one batch under it.
pub(crate) struct Admission<'t> {
    state: MutexGuard<'t, AppendState>,
    permit: Option<StagingPermit>,
    waited: Duration,
}

impl Deref for Admission<'_> {
    type Target = AppendState;
    fn deref(&self) -> &AppendState {
        &self.state
    }
}

impl DerefMut for Admission<'_> {
    fn deref_mut(&mut self) -> &mut AppendState {
        &mut self.state
    }
}

impl Admission<'_> {
    /// Time that the caller waited for the permit.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Stages the one batch of this admission.
    pub fn stage(
        &mut self,
        pending: PendingBatch,
        frames: Frames,
        order: Order,
    ) -> Result<(Ticket, Arc<PendingBatch>)> {
        let permit = self.permit.take();
        let permit =
            permit.ok_or_else(|| Error::Internal("an admission is for one batch".into()))?;
        pending.stage(&mut self.state, frames, order, permit)
    }
}

impl Topic {
    /// Admits a batch of about `bytes` bytes. Waits while another verb has the topic exclusively.
    pub(crate) fn admit(&self, ctx: &Ctx, bytes: usize, wait: Wait) -> Result<Admission<'_>> {
        loop {
            self.wait_not_exclusive();
            let permit = ctx.reserve(ctx.shard(self.id()), bytes, wait)?;
            let state = self.append.lock();
            if !state.is_exclusive {
                return Ok(Admission::new(state, permit));
            }
            drop(state);
            // The permit is released before the wait, unless a model leaves that out.
            let kept = sync::is_step_skipped().then_some(permit);
            self.wait_not_exclusive();
            drop(kept);
        }
    }

    /// Admits a batch without waiting for the topic: `None` while another verb has it exclusively.
    pub(crate) fn try_admit(
        &self,
        ctx: &Ctx,
        bytes: usize,
        wait: Wait,
    ) -> Result<Option<Admission<'_>>> {
        let permit = ctx.reserve(ctx.shard(self.id()), bytes, wait)?;
        let state = self.append.lock();
        Ok(if state.is_exclusive { None } else { Some(Admission::new(state, permit)) })
    }

    /// Admits a batch of the verb that has the topic exclusively.
    pub(crate) fn admit_exclusive(
        &self,
        ctx: &Ctx,
        bytes: usize,
        wait: Wait,
        _alone: &ExclusiveGuard,
    ) -> Result<Admission<'_>> {
        let permit = ctx.reserve(ctx.shard(self.id()), bytes, wait)?;
        Ok(Admission::new(self.append.lock(), permit))
    }

    /// Waits until no verb has the topic exclusively.
    pub(crate) fn wait_not_exclusive(&self) {
        let mut a = self.append.lock();
        while a.is_exclusive {
            self.exclusive_released.wait(&mut a);
        }
    }
}

impl<'t> Admission<'t> {
    fn new(state: MutexGuard<'t, AppendState>, permit: StagingPermit) -> Self {
        Self { state, waited: permit.waited(), permit: Some(permit) }
    }
}

impl Ctx {
    /// Stages control frames that belong to no topic.
    pub(crate) fn stage_control(&self, shard: usize, batch: Batch, wait: Wait) -> Result<Ticket> {
        let permit = self.reserve(shard, batch.bytes(), wait)?;
        Ok(self.wal.stage(batch, permit)?)
    }

    #[allow(clippy::disallowed_methods, reason = "the one place that takes permits")]
    fn reserve(&self, shard: usize, bytes: usize, wait: Wait) -> Result<StagingPermit> {
        let bound = match wait {
            Wait::No => None,
            Wait::Bounded => Some(self.base().options.staging_wait),
            Wait::Patient => Some(PATIENCE),
            Wait::Exclusive => Some(EXCLUSIVE_WAIT),
        };
        self.check_writable()?;
        self.wal.reserve(shard, bytes, bound).map_err(|e| match e {
            StorageError::Staging if wait == Wait::Exclusive => {
                let detail = format!("the log did not take {bytes} bytes in {EXCLUSIVE_WAIT:?}");
                Error::StorageUnavailable { reason: "io", detail }
            }
            StorageError::Staging => {
                let max = self.base().options.staging_bytes as u64;
                let retry_after_ms = if self.base().pressure.is_full() { 1000 } else { 100 };
                self.base().throttled("staging_bytes", max, retry_after_ms)
            }
            e => e.into(),
        })
    }
}
