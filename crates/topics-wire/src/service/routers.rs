//! Routers.

use std::sync::Arc;

use topics_engine::{Error, RouterInfo};

use super::verbs::Answer;
use super::{Reply, Request, Service};
use crate::error::Failure;
use crate::query::Query;
use crate::render::{self, Object};
use crate::{routers, small};

impl Service {
    pub(super) fn routers(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Option<Answer> {
        Some(match r.route {
            "router_put" => self.put_router(r, start_ns),
            "router" => {
                let found = self.engine.router(r.name).map_err(Failure::from);
                found.and_then(|info| self.now(render::router(&info), start_ns))
            }
            "router_drop" => self.later(r, move |s, router| {
                let deleted = s.engine.delete_router(router)?;
                let mut o = Object::new(96);
                o.name("router", router).flag("deleted", deleted);
                Ok(Reply::ok(s.timed(o.finish(), start_ns)))
            }),
            "routers" => self.list_routers(r).and_then(|body| self.now(body, start_ns)),
            _ => return None,
        })
    }

    fn put_router(self: &Arc<Self>, r: &Request<'_>, start_ns: u64) -> Answer {
        let asked = routers::parse(r.body)?;
        r.grant.check(&asked.source)?;
        r.grant.check(&asked.dest)?;
        self.later(r, move |s, router| {
            let created = s.engine.create_router(router, &asked)?;
            let (status, body) = routers::created(&s.engine.router(router)?, created);
            Ok(Reply { status, body: s.timed(body, start_ns) })
        })
    }

    fn list_routers(&self, r: &Request<'_>) -> Result<Vec<u8>, Failure> {
        if !self.is_ready() {
            return Err(Error::Closed.into());
        }
        let wanted = routers::wanted(&Query::new(r.query))?;
        let all = self.engine.routers(&wanted.page.prefix).into_iter();
        let seen = |i: &RouterInfo| r.grant.covers(&i.router) && wanted.takes(i);
        let mut found: Vec<_> = all.filter(seen).take(wanted.page.size + 1).collect();
        let more = found.len() > wanted.page.size;
        found.truncate(wanted.page.size);
        let next = found.last().filter(|_| more).map(|i| small::cursor(&i.router));
        Ok(render::routers(&found, next.as_deref()))
    }
}
