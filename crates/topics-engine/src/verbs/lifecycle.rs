//! Creates and deletes a topic by name.

use std::sync::Arc;

use topics_storage::wal::Level;

use super::append::make;
use crate::catalog::Catalog;
use crate::topic::lifecycle::{log_creation, log_deletion, update};
use crate::topic::retention;
use crate::types::api::{CreatedTopic, DeletedTopic};
use crate::types::config::{ConfigPatch, TopicConfig};
use crate::types::error::{Error, Result};
use crate::types::name;

/// What [`create`] does about a topic that exists, or is missing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Existing {
    /// Creates a missing topic, updates an existing one.
    #[default]
    Any,
    /// Creates a missing topic, refuses an existing one.
    Refused,
    /// Updates an existing topic, refuses a missing one.
    Required,
}

impl From<Option<bool>> for Existing {
    /// `create`: true creates and never updates, false updates and never creates.
    fn from(create: Option<bool>) -> Self {
        match create {
            None => Self::Any,
            Some(true) => Self::Refused,
            Some(false) => Self::Required,
        }
    }
}

/// Creates a topic, or updates the named fields of an existing one.
pub(crate) fn create(
    catalog: &Arc<Catalog>,
    topic: &str,
    patch: &ConfigPatch,
    existing: Existing,
) -> Result<CreatedTopic> {
    name::check(topic)?;
    let patch = patch.checked(topic)?;
    let name: Arc<str> = topic.into();
    loop {
        catalog.ctx().check_open()?;
        let topic = match catalog.named(&name)? {
            Some(topic) => topic,
            None if existing == Existing::Required => {
                return Err(Error::TopicNotFound(name.to_string()));
            }
            None => match make(catalog, &name)? {
                Ok(topic) => topic,
                Err(ticket) => {
                    catalog.ctx().wait(ticket, Level::Synced)?;
                    catalog.ids.on_synced(ticket);
                    continue;
                }
            },
        };
        topic.check_sound()?;
        // Jobs that have expired become dead letters by the old config, before it changes.
        let has_dead_letter = topic.state.read().config.dead_letter.is_some();
        if has_dead_letter && let Err(e) = retention::expire(catalog.ctx(), &topic) {
            log::warn!("topic {name:?}: what has expired goes without a dead letter: {e}");
        }
        let exclusive = topic.exclusive(catalog.ctx())?;
        let (closed, logged) = {
            let a = topic.append.lock();
            (a.closed, a.logged)
        };
        if closed {
            continue;
        }
        match (logged, existing) {
            (true, Existing::Refused) => return Err(Error::AlreadyExists(name.to_string())),
            // Another call is about to create it.
            (false, Existing::Required) => return Err(Error::TopicNotFound(name.to_string())),
            _ => {}
        }
        if logged {
            let config = update(catalog.ctx(), &topic, &patch, &exclusive)?;
            drop(exclusive);
            return Ok(CreatedTopic { topic_id: topic.id(), created: false, config });
        }
        let config = TopicConfig::created(&patch, catalog.base().options.default_durability);
        let logged = log_creation(catalog.ctx(), &topic, config.clone(), &exclusive);
        drop(exclusive);
        logged?;
        return Ok(CreatedTopic { topic_id: topic.id(), created: true, config });
    }
}

/// Deletes a topic. `before` makes durable what the deletion depends on, and returns the names of the
/// routers that are deleted with the topic.
pub(crate) fn delete(
    catalog: &Catalog,
    name: &str,
    if_empty: bool,
    before: impl FnOnce(u64) -> Result<Vec<String>>,
) -> Result<DeletedTopic> {
    name::check(name)?;
    catalog.ctx().check_open()?;
    let Some(topic) = catalog.live(name)? else {
        return Ok(DeletedTopic::default());
    };
    topic.check_sound()?;
    if if_empty {
        retention::expire(catalog.ctx(), &topic)?;
    }
    let exclusive = topic.exclusive(catalog.ctx())?;
    if topic.append.lock().closed {
        return Ok(DeletedTopic::default());
    }
    let count = topic.state.read().live.count;
    if if_empty && count > 0 {
        return Err(Error::TopicNotEmpty { topic: name.to_owned(), count });
    }
    let routers_removed = before(topic.id())?;
    log_deletion(catalog.ctx(), &topic, &exclusive)?;
    Ok(DeletedTopic { deleted: true, routers_removed })
}
