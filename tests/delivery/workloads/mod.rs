//! The scripts.

mod consumers;
mod fixture;
mod queues;
mod routers;
mod txns;

use topics_engine::{ConfigPatch, Durability};

use super::script::Script;

/// A named script.
pub struct Workload {
    pub name: &'static str,
    pub run: fn(&mut Script),
    pub shards: u32,
}

const fn w(name: &'static str, run: fn(&mut Script), shards: u32) -> Workload {
    Workload { name, run, shards }
}

/// All scripts.
pub const ALL: &[Workload] = &[
    w("leases", queues::leases, 1),
    w("expiring_leases", queues::expiring_leases, 1),
    w("dead_letters", queues::dead_letters, 1),
    w("redrive", queues::redrive, 2),
    w("dead_in_place", queues::dead_in_place, 1),
    w("delays", queues::delays, 1),
    w("managed", queues::managed, 1),
    w("managed_lightly", queues::managed_lightly, 2),
    w("lanes_groups", queues::lanes_groups, 1),
    w("expired_jobs", queues::expired_jobs, 1),
    w("disk_queue", queues::disk_queue, 2),
    w("exactly_once", routers::exactly_once, 1),
    w("at_least_once", routers::at_least_once, 3),
    w("chain", routers::chain, 3),
    w("fan_out", routers::fan_out, 2),
    w("full", routers::full, 1),
    w("trimmed_source", routers::trimmed_source, 1),
    w("rerouted", routers::rerouted, 2),
    w("dropped_ends", routers::dropped_ends, 1),
    w("modes", consumers::modes, 1),
    w("disk_modes", consumers::disk_modes, 1),
    w("auto_commit", consumers::auto_commit, 1),
    w("recreated", consumers::recreated, 1),
    w("txn_staged", txns::staged, 3),
    w("txn_one_call", txns::one_call, 2),
    w("txn_process", txns::process, 3),
    w("txn_fan_out", txns::fan_out, 2),
    w("txn_repeated", txns::repeated, 2),
    w("txn_aborted", txns::aborted, 1),
    w("txn_swept", txns::swept, 2),
    w("txn_dropped", txns::dropped, 2),
    w("txn_beside", txns::beside, 3),
    w("txn_checkpointed", txns::checkpointed, 2),
    w("txn_full", txns::full, 3),
    w("txn_undecided", txns::undecided, 1),
    w("txn_poisoned", txns::poisoned, 3),
    w("txn_found", txns::found, 2),
    w("txn_writers", txns::writers, 1),
    w("txn_routed", txns::routed, 3),
];

/// A script whose directory is a fixture.
pub const FIXTURE: Workload = w("jobs", fixture::jobs, 2);

fn class(durability: Durability) -> ConfigPatch {
    ConfigPatch { durability: Some(durability), ..ConfigPatch::default() }
}
