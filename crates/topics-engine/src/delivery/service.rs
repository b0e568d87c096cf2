//! Serves a dirty topic: one read for each group of watchers, then each watcher gets a pointer to the
//! frame.

use std::sync::Arc;

use topics_env::Panicked;
use topics_env::sync::atomic::Ordering;

use super::Deliverer;
use super::frame::WatchOptions;
use super::stream::Stream;
use super::subscribers::Subscribers;
use crate::router::{self, RunAgain};
use crate::topic::events::Ctx;
use crate::topic::{self, Life, Topic};
use crate::types::api::ReadFrom;
use crate::types::error::{Error, Result};

/// Delay before a topic is served again after a read found no free file descriptor, ns.
const AGAIN_NS: u64 = 100_000_000;

/// Serves a topic up to its current head. Returns true if the head has risen meanwhile.
pub(super) fn serve(delivery: &Arc<Deliverer>, subscribers: &Arc<Subscribers>) -> bool {
    let Some(topic) = subscribers.topic() else { return false };
    if subscribers.is_new.swap(false, Ordering::SeqCst) && topic.life() == Life::Live {
        delivery.workers.shared().offer(&topic);
    }
    subscribers.set_priority(&topic.state.read().config.clone());
    if topic.life() == Life::Dead {
        let over = |s: &Stream, slot| {
            s.end_topic(slot, topic.id(), None);
        };
        for stream in subscribers.remove_members(over) {
            missed(delivery, &stream, &topic);
        }
        return false;
    }
    let target = topic.gate.head();
    for (options, at) in subscribers.views() {
        if let Err(error) = group(delivery.ctx(), subscribers, &topic, &options, at, target) {
            if matches!(error, Error::Closed) {
                return false;
            }
            if matches!(error, Error::ColdPending(_)) {
                // Each watcher reads them by itself, so that no worker waits.
                subscribers.remove_members(|s, slot| s.fall_behind(slot, topic.id()));
                break;
            }
            if error.is_out_of_descriptors() {
                delivery.workers.schedule(subscribers, delivery.base().time.mono_ns() + AGAIN_NS);
                continue;
            }
            log::warn!("topic {:?} cannot be delivered: {error}", topic.name);
            subscribers.remove_members(|s, slot| {
                s.end_topic(slot, topic.id(), Some(error.clone()));
            });
            return false;
        }
    }
    for router in subscribers.routers() {
        let at = || format!("router {:?}", router.definition().name);
        let again = run_again(delivery, subscribers, &topic);
        let run = delivery
            .base()
            .env
            .guards
            .run("router", at, || router::run(delivery.store(), &router, &topic, again));
        if let Err(panicked) = run {
            router.fail(Error::Internal(format!("stopped until the next open: {panicked}")));
        }
    }
    topic.gate.head() > target
}

/// The callback by which a router of this topic asks for its next run.
fn run_again(
    delivery: &Arc<Deliverer>,
    subscribers: &Arc<Subscribers>,
    topic: &Arc<Topic>,
) -> Arc<dyn Fn(RunAgain) + Send + Sync> {
    let (delivery, subscribers, topic) = (delivery.clone(), subscribers.clone(), topic.clone());
    Arc::new(move |when| match when {
        RunAgain::Now => subscribers.mark(),
        RunAgain::At(at) => delivery.workers.schedule(&subscribers, at),
        RunAgain::WhenSynced => subscribers.mark_when_synced(delivery.ctx(), &topic),
    })
}

/// Closes a topic whose service panicked, and ends it in the streams of its watchers.
pub(super) fn fail(subscribers: &Arc<Subscribers>, panicked: &Panicked) {
    let Some(topic) = subscribers.topic() else { return };
    topic.close_broken(panicked);
    let detail = format!("delivery of topic {:?}: {panicked}", topic.name);
    let error = Error::StorageUnavailable { reason: "io", detail };
    subscribers.remove_members(|s, slot| {
        s.end_topic(slot, topic.id(), Some(error.clone()));
    });
}

/// Makes a stream expect a new topic of a deleted topic's name. A topic that was created before the
/// stream expected it joins immediately.
pub(super) fn missed(delivery: &Deliverer, stream: &Arc<Stream>, old: &Topic) {
    delivery.workers.shared().expect(stream);
    let new = delivery.catalog().table.loaded.named(&old.name);
    if let Some(new) = new.filter(|t| t.life() == Life::Live && t.id() != old.id())
        && stream.add(&new, 0, None)
    {
        stream.wake();
    }
}

fn group(
    ctx: &Arc<Ctx>,
    subscribers: &Arc<Subscribers>,
    topic: &Arc<Topic>,
    options: &Arc<WatchOptions>,
    mut at: u64,
    target: u64,
) -> Result<()> {
    // A read that begins where records were just evicted makes no progress; the next one does.
    let mut idle = 0;
    while at < target && idle < 2 {
        ctx.check_open()?;
        let batch = topic::read(ctx, topic, &options.request(ReadFrom::After(at)))?;
        if batch.next_from_seq == at && batch.tombstone.is_none() {
            idle += 1;
            continue;
        }
        idle = 0;
        let next = batch.next_from_seq;
        if !subscribers.fan_out(
            topic,
            options,
            at,
            batch,
            ctx.base().time.mono_ns(),
            &ctx.base().metrics,
        ) {
            return Ok(());
        }
        at = next;
    }
    if at < target && options.strong {
        subscribers.mark_when_synced(ctx, topic);
    }
    Ok(())
}
