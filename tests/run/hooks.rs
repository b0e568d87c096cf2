//! Which hook an env gets: none, the site log, or a mutant.

use std::sync::Arc;

use topics_env::sim::{Mutant, SimFs, SiteLog};
use topics_env::{Env, Site};

#[derive(Clone, Debug, Default)]
pub enum HookSpec {
    #[default]
    None,
    Log(Arc<SiteLog>),
    Remove(Site),
    Reorder(Site),
}

impl HookSpec {
    /// Puts the hook on an env over this file system.
    pub fn on(&self, env: Env, fs: &Arc<SimFs>) -> Env {
        match self {
            Self::None => env,
            Self::Log(log) => env.with_hook(log.clone()),
            Self::Remove(site) => env.with_hook(Arc::new(Mutant::remove(*site, None))),
            Self::Reorder(site) => {
                env.with_hook(Arc::new(Mutant::reorder(*site, None, fs.clone())))
            }
        }
    }
}
