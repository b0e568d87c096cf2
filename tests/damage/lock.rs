//! A lock file that disappears while an engine has the directory open.

use std::path::Path;

use topics_env::Fs;

use super::rot::started;
use crate::run::{DIR, Driver, HookSpec, batch};

/// An engine whose lock file, or whole directory, was removed.
fn unlocked(seed: u64, hook: &HookSpec, all: bool) -> Result<Driver, String> {
    let d = started(seed, hook);
    let gone = match all {
        true => d.fs().rename(Path::new(DIR), Path::new("/moved")),
        false => d.fs().remove_file(&Path::new(DIR).join(".topics.lock")),
    };
    gone.map_err(|e| e.to_string()).map(|()| d)
}

/// No second engine opens an open directory, whatever happened to its lock file.
pub(super) fn removed(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = match unlocked(seed, hook, false) {
        Ok(d) => d,
        Err(e) => return vec![e],
    };
    match d.another() {
        Ok(_) => vec!["a second engine opens".into()],
        Err(_) => Vec::new(),
    }
}

/// If another directory has replaced the open one, no write is acked as durable that the next open
/// does not serve.
pub(super) fn replaced(seed: u64, hook: &HookSpec) -> Vec<String> {
    let mut d = match unlocked(seed, hook, true) {
        Ok(d) => d,
        Err(e) => return vec![e],
    };
    let other = match d.another() {
        Ok(other) => other,
        Err(e) => return vec![format!("the new directory does not open: {e}")],
    };
    let acked = d.append("safe", &batch(1)).is_some();
    let synced = d.engine.as_ref().is_some_and(|e| e.sync().is_ok());
    drop(other);
    let mut out = Vec::new();
    for (wrong, what) in [(acked, "an append is acked"), (synced, "a sync is acked")] {
        if wrong {
            out.push(format!("{what} though another engine has the directory of this name"));
        }
    }
    out
}
