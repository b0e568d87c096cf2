//! The hook of an env: none, the site log, or a mutant.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use topics_env::{Env, Site};
use topics_sim::{Mutant, SimFs, SiteLog};

#[derive(Clone, Debug, Default)]
pub enum HookSpec {
    #[default]
    None,
    Log(Arc<SiteLog>),
    /// Skips this site, or delays it by one call; counts its effects.
    Mutant {
        site: Site,
        reordered: bool,
        hits: Arc<AtomicUsize>,
    },
}

impl HookSpec {
    pub fn mutant(site: Site, reordered: bool) -> Self {
        Self::Mutant { site, reordered, hits: Arc::default() }
    }

    /// How often a mutant took effect.
    pub fn hits(&self) -> usize {
        match self {
            Self::Mutant { hits, .. } => hits.load(Ordering::SeqCst),
            _ => 0,
        }
    }

    /// Installs the hook in an env over this file system.
    pub fn on(&self, env: Env, fs: &Arc<SimFs>) -> Env {
        match self {
            Self::None => env,
            Self::Log(log) => env.with_hook(log.clone()),
            Self::Mutant { site, reordered, hits } => {
                let mutant = if *reordered {
                    Mutant::reorder(*site, None, fs.clone())
                } else {
                    Mutant::remove(*site, None)
                };
                env.with_hook(Arc::new(mutant.counting(hits.clone())))
            }
        }
    }
}
