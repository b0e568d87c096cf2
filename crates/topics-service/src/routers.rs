//! Routers: create, read, delete, list.

use std::sync::Arc;

use topics_engine::{Error, RouterInfo};
use topics_wire::object::Object;
use topics_wire::query::Query;
use topics_wire::{Failure, Grant, page, routers};

use super::dispatch::Answer;
use super::{Reply, Request, Service};

impl Service {
    pub(super) fn put_router(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = routers::parse(r.body)?;
        r.grant.check(&asked.source)?;
        r.grant.check(&asked.dest)?;
        let grant = r.grant.clone();
        self.on_worker(r, move |s, router| {
            s.check_router(router, &grant)?;
            let created = s.engine.create_router(router, &asked);
            let created = created.map_err(|e| without_others(e, &grant))?;
            let (status, body) = routers::created(&s.engine.router(router)?, created);
            Ok(Reply { status, body: s.with_timing(body, start_ns) })
        })
    }

    pub(super) fn router(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let info = self.engine.router(r.name)?;
        check(&info, r.grant)?;
        self.reply(routers::router(&info), start_ns)
    }

    pub(super) fn drop_router(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let grant = r.grant.clone();
        self.on_worker(r, move |s, router| {
            s.check_router(router, &grant)?;
            let deleted = s.engine.delete_router(router)?;
            let mut o = Object::new(96);
            o.name("router", router).flag("deleted", deleted);
            Ok(Reply::ok(s.with_timing(o.finish(), start_ns)))
        })
    }

    /// Refuses an existing router with a topic that the key does not cover.
    fn check_router(&self, router: &str, grant: &Grant) -> Result<(), Failure> {
        match self.engine.router(router) {
            Ok(info) => check(&info, grant),
            Err(_) => Ok(()),
        }
    }

    pub(super) fn list_routers(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        if !self.is_ready() {
            return Err(Error::Closed.into());
        }
        let filter = routers::filter(&Query::new(r.query))?;
        let all = self.engine.routers(&filter.page.prefix).into_iter();
        let seen = |i: &RouterInfo| covers(i, r.grant) && filter.matches(i);
        let mut found: Vec<_> = all.filter(seen).take(filter.page.size + 1).collect();
        let more = found.len() > filter.page.size;
        found.truncate(filter.page.size);
        let next = found.last().filter(|_| more).map(|i| page::cursor(&i.router));
        Ok(routers::page(&found, next.as_deref()))
    }
}

/// Whether the key covers a router and both of its topics.
fn covers(info: &RouterInfo, grant: &Grant) -> bool {
    [&info.router, &info.request.source, &info.request.dest].iter().all(|name| grant.covers(name))
}

fn check(info: &RouterInfo, grant: &Grant) -> Result<(), Failure> {
    if covers(info, grant) {
        return Ok(());
    }
    let router = &info.router;
    let message =
        format!("router {router:?} has a topic that this key does not cover; use a key that does");
    Err(Failure::new("forbidden", message))
}

/// Hides names that the key does not cover from an error.
fn without_others(e: Error, grant: &Grant) -> Error {
    let shown = |name: String| if grant.covers(&name) { name } else { "…".to_owned() };
    match e {
        Error::RouterCycle { router, path } => {
            Error::RouterCycle { router, path: path.into_iter().map(shown).collect() }
        }
        Error::RouterConflict { router, reason, existing_source, existing_dest } => {
            Error::RouterConflict {
                router,
                reason,
                existing_source: shown(existing_source),
                existing_dest: shown(existing_dest),
            }
        }
        e => e,
    }
}
