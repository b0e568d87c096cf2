//! The rights of a client: names by prefix, and whether it may change configs.

use topics_engine::ConfigPatch;

use crate::error::Failure;

/// The rights of a client besides its scopes, which the server checks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Grant {
    /// The label of the key; empty without keys.
    pub owner: String,
    /// Allowed name prefixes; empty allows every name.
    pub prefixes: Vec<String>,
    /// May create and change configs.
    pub admin: bool,
}

static ALL: Grant = Grant::all();

impl Default for &Grant {
    fn default() -> Self {
        &ALL
    }
}

impl Grant {
    /// All rights: a server without keys.
    #[must_use]
    pub const fn all() -> Self {
        Self { owner: String::new(), prefixes: Vec::new(), admin: true }
    }

    /// Whether the client may use a name, or every name that begins with it.
    #[must_use]
    pub fn covers(&self, name: &str) -> bool {
        self.prefixes.is_empty() || self.prefixes.iter().any(|p| name.starts_with(p.as_str()))
    }

    /// The allowed prefixes within `prefix`: disjoint, in order.
    #[must_use]
    pub fn within(&self, prefix: &str) -> Vec<String> {
        if self.covers(prefix) {
            return vec![prefix.to_owned()];
        }
        let mut all: Vec<String> =
            self.prefixes.iter().filter(|p| p.starts_with(prefix)).cloned().collect();
        all.sort();
        all.dedup_by(|b, a| b.starts_with(a.as_str()));
        all
    }

    /// Refuses a name that the client may not use.
    pub fn check(&self, name: &str) -> Result<(), Failure> {
        if self.covers(name) {
            return Ok(());
        }
        let message = format!("this key does not cover the name {name:?}; use a key that does");
        Err(Failure::new("forbidden", message))
    }

    /// Refuses a config with a topic that the client may not use.
    pub fn check_names(&self, config: &ConfigPatch) -> Result<(), Failure> {
        config.dead_letter.iter().flatten().try_for_each(|name| self.check(name))
    }

    /// The refusal of a write that would create a topic with a config.
    #[must_use]
    pub fn creates_no(topic: &str) -> Failure {
        let message = format!(
            "topic {topic:?} does not exist, and to create it with config needs the scope `admin`: have \
             it created with a key that has it, or leave config out"
        );
        Failure::new("forbidden", message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_by_prefix() {
        let prefixes = vec!["orders.".to_owned(), "jobs".to_owned()];
        let grant = Grant { owner: "k".into(), prefixes, admin: false };
        for name in ["orders.eu", "orders.", "jobs", "jobs-2"] {
            assert!(grant.check(name).is_ok(), "{name}");
        }
        for name in ["", "orders", "order", "a.orders.", "Jobs"] {
            assert_eq!(grant.check(name).unwrap_err().status(), 403, "{name}");
        }
        let config = |name: &str| ConfigPatch {
            dead_letter: Some(Some(name.to_owned())),
            ..ConfigPatch::default()
        };
        assert!(grant.check_names(&config("jobs-dead")).is_ok());
        assert_eq!(grant.check_names(&config("dead")).unwrap_err().code, "forbidden");
        assert_eq!(grant.within("orders.e"), ["orders.e"]);
        assert_eq!(grant.within(""), ["jobs", "orders."]);
        assert!(grant.within("x").is_empty());
        let all = <&Grant>::default();
        assert!(all.covers("") && all.covers("x") && all.check_names(&config("x")).is_ok());
    }
}
