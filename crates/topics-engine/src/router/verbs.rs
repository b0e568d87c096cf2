//! Verbs of routers: decide under one lock, log, apply.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use topics_storage::format::record::{Body, RouterCreate, RouterDelete};
use topics_storage::wal::{Batch, Level};

use super::define::{Definition, End, RouterInfo, RouterRequest};
use super::registry::Routers;
use super::run::Router;
use crate::catalog::Catalog;
use crate::catalog::ids::Id;
use crate::ctx::Wait;
use crate::topic::events::Ctx;
use crate::topic::{Applied, Topic};
use crate::types::config::ConfigPatch;
use crate::types::error::{Error, Result};
use crate::types::name;
use crate::verbs::{self, Existing};

/// Creates a router, or updates one between the same topics; returns whether it was created.
pub(crate) fn create(
    catalog: &Arc<Catalog>,
    routers: &Routers,
    name: &str,
    req: &RouterRequest,
) -> Result<bool> {
    name::check_router(name)?;
    name::check(&req.source)?;
    name::check(&req.dest)?;
    if req.source == req.dest {
        let text = format!(
            "router {name:?} copies topic {:?} to itself; name another destination",
            req.dest
        );
        return Err(Error::InvalidRequest(text));
    }
    catalog.ctx().check_open()?;
    let _one = routers.deciding.lock();
    let old = routers.get(name).map(|r| r.definition());
    if old.as_ref().is_some_and(|d| d.request == *req) {
        return Ok(false);
    }
    let max = catalog.base().options.max_routers;
    let further = u64::from(old.is_none());
    catalog.base().check_limit("max_routers", max, routers.len() as u64, further)?;
    if let Some(d) = &old {
        check_ends(d, req)?;
    }
    fits(routers, name, req)?;
    // A refusal creates neither.
    let further = u64::from(may_create(catalog, &req.source, true)?)
        + u64::from(may_create(catalog, &req.dest, req.create_dest)?);
    verbs::check_topics(catalog, further)?;
    let source = live_or_create(catalog, &req.source)?;
    let dest = live_or_create(catalog, &req.dest)?;
    let end = |t: &Topic| End { topic_id: t.id(), epoch: t.key.epoch };
    let definition = Definition {
        name: name.into(),
        id: old.as_ref().map_or_else(|| new_id(catalog), |d| Ok(d.id))?,
        source: end(&source),
        dest: end(&dest),
        request: req.clone(),
        start: old.as_ref().map_or_else(|| source.gate.head(), |d| d.start),
    };
    let body = RouterCreate {
        name: name.to_owned(),
        router_id: definition.id,
        epoch: definition.id,
        options: definition.encode(),
    };
    log(catalog.ctx(), &body)?;
    Ok(old.is_none())
}

/// Deletes a router; its copies stay. Returns false if there is none.
pub(crate) fn delete(ctx: &Arc<Ctx>, routers: &Routers, name: &str) -> Result<bool> {
    name::check_router(name)?;
    ctx.check_open()?;
    let _one = routers.deciding.lock();
    let Some(d) = routers.get(name).map(|r| r.definition()) else { return Ok(false) };
    log(ctx, &RouterDelete { router_id: d.id, epoch: d.id })?;
    Ok(true)
}

pub(crate) fn info(catalog: &Catalog, routers: &Routers, name: &str) -> Result<RouterInfo> {
    catalog.ctx().check_open()?;
    let router = routers.get(name);
    router.map(|r| of(catalog, &r)).ok_or_else(|| Error::RouterNotFound(name.to_owned()))
}

/// The routers whose names begin with `prefix`, in name order.
pub(crate) fn list(catalog: &Catalog, routers: &Routers, prefix: &str) -> Vec<RouterInfo> {
    let all = routers.all().into_iter();
    all.filter(|r| r.definition().name.starts_with(prefix)).map(|r| of(catalog, &r)).collect()
}

fn of(catalog: &Catalog, router: &Router) -> RouterInfo {
    let d = router.definition();
    let head = catalog.table.loaded.by_id(d.source.topic_id).map_or(0, |t| t.gate.head());
    let (forwarded_total, lag, stopped_by) = router.progress(head);
    let (router, request) = (d.name.to_string(), d.request.clone());
    RouterInfo { router, request, forwarded_total, lag, stopped_by }
}

/// Whether a topic is missing; refuses one that may not be created: the rule is that of writes.
fn may_create(catalog: &Catalog, name: &str, wanted: bool) -> Result<bool> {
    let missing = catalog.live(name)?.is_none();
    if missing && !(wanted && catalog.base().options.auto_create.allows(name)) {
        return Err(Error::TopicNotFound(name.to_owned()));
    }
    Ok(missing)
}

/// The topic; created with the default config when it is missing.
fn live_or_create(catalog: &Arc<Catalog>, name: &str) -> Result<Arc<Topic>> {
    loop {
        if let Some(topic) = catalog.live(name)? {
            return Ok(topic);
        }
        verbs::create(catalog, name, &ConfigPatch::default(), Existing::Any)?;
    }
}

/// Refuses other topics than those of the existing router.
fn check_ends(old: &Definition, req: &RouterRequest) -> Result<()> {
    let existing = &old.request;
    if existing.source == req.source && existing.dest == req.dest {
        return Ok(());
    }
    Err(Error::RouterConflict {
        router: old.name.to_string(),
        reason: "router_repoint_forbidden",
        existing_source: existing.source.clone(),
        existing_dest: existing.dest.clone(),
    })
}

/// Checks that a destination has one source, and that there is no cycle unless the router that closes it
/// allows cycles.
fn fits(routers: &Routers, name: &str, req: &RouterRequest) -> Result<()> {
    let others: Vec<_> = routers.all().iter().map(|r| r.definition()).collect();
    let others = others.iter().filter(|d| *d.name != *name);
    let mut next: HashMap<&str, Vec<&str>> = HashMap::new();
    for d in others {
        if d.request.dest == req.dest && d.request.source != req.source {
            return Err(Error::RouterConflict {
                router: name.to_owned(),
                reason: "router_dest_fan_in",
                existing_source: d.request.source.clone(),
                existing_dest: d.request.dest.clone(),
            });
        }
        next.entry(&d.request.source).or_default().push(&d.request.dest);
    }
    if req.allow_cycle {
        return Ok(());
    }
    // The shortest path from the destination back to the source.
    let mut ways = VecDeque::from([vec![req.source.as_str(), req.dest.as_str()]]);
    let mut met: HashSet<&str> = HashSet::from([req.dest.as_str()]);
    while let Some(way) = ways.pop_front() {
        let Some(&at) = way.last() else { continue };
        if at == req.source {
            let path = way.into_iter().map(str::to_owned).collect();
            return Err(Error::RouterCycle { router: name.to_owned(), path });
        }
        for &to in next.get(at).into_iter().flatten() {
            if to == req.source || met.insert(to) {
                ways.push_back(way.iter().copied().chain([to]).collect());
            }
        }
    }
    Ok(())
}

/// A new id, from the counter of topic ids.
fn new_id(catalog: &Arc<Catalog>) -> Result<u64> {
    loop {
        match catalog.ids.take(catalog)? {
            Id::Taken(id) => return Ok(id),
            Id::After(ticket) => {
                catalog.ctx().wait(ticket, Level::Synced)?;
                catalog.ids.on_synced(ticket);
            }
        }
    }
}

/// Logs a definition on the first shard, durably.
fn log(ctx: &Arc<Ctx>, body: &impl Body) -> Result<()> {
    let mut head = Vec::new();
    body.encode_frame(&mut head, 0, 0, 0);
    let commit = Arc::new(Applied::new(ctx, "a router's definition"));
    let batch = Batch::control(head, ctx.base().time.steady(), Level::Synced, commit);
    let ticket = ctx.stage_control(0, batch, Wait::Bounded)?;
    ctx.wait(ticket, Level::Synced)
}
