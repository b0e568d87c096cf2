//! The verbs: what a request asks for, with the name that the table of routes uses.

/// Declares [`Verb`] with both directions of the mapping between a verb and its name.
macro_rules! verbs {
    ($($verb:ident $name:literal $doc:literal)+) => {
        /// What a request asks for.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub enum Verb {
            $(#[doc = $doc] $verb,)+
            /// No verb of this name exists; the answer is `not_found`.
            #[default]
            Unknown,
        }

        impl Verb {
            /// The verb with this name.
            #[must_use]
            pub fn from_name(name: &str) -> Self {
                match name {
                    $($name => Self::$verb,)+
                    _ => Self::Unknown,
                }
            }

            /// The name in the table of routes.
            #[must_use]
            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$verb => $name,)+
                    Self::Unknown => "",
                }
            }

            /// Every verb that a route has.
            pub const ALL: &'static [Self] = &[$(Self::$verb,)+];
        }
    };
}

verbs! {
    Write "write" "Appends a batch of records."
    Diff "diff" "Reads the records after a cursor."
    State "state" "The state of a topic."
    List "list" "A page of topics."
    States "states" "The states of many topics."
    Seek "seek" "The cursor before a time."
    Create "create" "Creates a topic or updates its config."
    Drop "drop" "Deletes a topic."
    Delete "delete" "Deletes records."
    Trim "trim" "Deletes all but the newest records."
    Scan "scan" "Streams a range as Arrow."
    Split "split" "Divides a range into splits of similar size."
    Segments "segments" "The segments of a topic."
    Claim "claim" "Leases jobs to a worker."
    Ack "ack" "Completes jobs."
    Nack "nack" "Gives failed jobs back."
    Release "release" "Gives back jobs that were not begun."
    Extend "extend" "Extends leases."
    Jobs "jobs" "Lists jobs by state."
    RemoveJobs "jobs_remove" "Deletes jobs in any state."
    PromoteJobs "jobs_promote" "Makes delayed jobs ready."
    Redrive "redrive" "Moves dead jobs back."
    Work "work" "Streams jobs to a worker."
    CreateSession "watch_create" "Creates a watch session."
    Watch "watch" "Streams the events of a session."
    WatchQuery "watch_query" "Streams events without a session."
    EndSession "watch_end" "Ends a session."
    Socket "socket" "Opens a WebSocket."
    PutConsumer "consumer_put" "Creates or reopens a consumer."
    Consumer "consumer" "The state of a consumer."
    DropConsumer "consumer_drop" "Deletes a consumer."
    ReadConsumer "consumer_read" "Reads with a consumer."
    CommitConsumer "consumer_commit" "Commits a cursor."
    SeekConsumer "consumer_seek" "Moves a cursor."
    Consumers "consumers" "A page of consumers."
    PutRouter "router_put" "Creates or updates a router."
    Router "router" "The state of a router."
    DropRouter "router_drop" "Deletes a router."
    Routers "routers" "A page of routers."
    Transact "txn" "Runs a whole transaction."
    Stage "txn_stage" "Stages a part of a transaction."
    Commit "txn_commit" "Commits stages."
    Abort "txn_abort" "Drops a stage."
    Writer "txn_writer" "The state of a transaction writer."
    ForgetWriter "txn_forget" "Deletes the state of a writer."
    HandOverWriter "txn_owner" "Makes a writer belong to another key."
    Writers "txns" "A page of writers."
    Sync "sync" "Makes everything acked so far durable."
    Checkpoint "checkpoint" "Runs a checkpoint."
    Backup "backup" "Copies the engine into a directory."
    Verify "verify" "Verifies every live record."
    Metrics "metrics" "The metrics."
    Health "health" "Whether the process serves requests."
    Ready "ready" "Whether the engine takes calls."
}

impl Verb {
    /// Whether the topic in the path must be a queue.
    #[must_use]
    pub(super) const fn needs_queue(self) -> bool {
        use Verb::{Ack, Claim, Extend, Jobs, Nack, PromoteJobs, Release, RemoveJobs, Work};
        matches!(
            self,
            Claim | Ack | Nack | Release | Extend | Jobs | RemoveJobs | PromoteJobs | Work
        )
    }

    /// Whether the verb streams events to a browser, which has no header for an API key: the query
    /// may have it. A server without keys ignores it.
    pub(super) const fn takes_token(self) -> bool {
        matches!(self, Self::Watch | Self::WatchQuery | Self::Work)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_map_back() {
        for verb in Verb::ALL {
            assert_eq!(Verb::from_name(verb.name()), *verb);
        }
        assert_eq!(Verb::from_name("nonsense"), Verb::Unknown);
    }

    #[test]
    fn routes_name_verbs() {
        for route in topics_wire::routes::ROUTES {
            let by_server = ["openapi", "key", "console"].contains(&route.verb);
            assert_eq!(Verb::from_name(route.verb) == Verb::Unknown, by_server, "{}", route.verb);
        }
        for verb in Verb::ALL {
            let mut routes = topics_wire::routes::ROUTES.iter();
            assert!(routes.any(|route| route.verb == verb.name()), "{}", verb.name());
        }
    }

    #[test]
    fn hot_requests_name_verbs() {
        for name in topics_wire::hot::verbs() {
            assert_ne!(Verb::from_name(name), Verb::Unknown, "{name}");
        }
    }
}
