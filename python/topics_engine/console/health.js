// What is wrong with the server, by its metrics, and what to do about each.

import { count } from "./format.js";
import { remoteState } from "./remote.js";

const panicked = (m) =>
  m.of("topics_loop_panics_total").filter(({ value }) => value > 0).map(({ labels }) => labels.loop);

/** What is checked: whether it is bad, what is wrong then, and what to do about it. */
const CHECKS = [
  {
    title: "Accepts writes",
    bad: (m) => m.value("topics_read_only_shards") > 0,
    says: (m) => `${m.value("topics_read_only_shards")} log shards accept no writes, after a failed write or sync.`,
    fix: () => "Look for the error in the server's log; check the disk; then restart the server.",
  },
  {
    title: "Background loops",
    bad: (m) => panicked(m).length > 0,
    says: (m) => `Loops panicked: ${panicked(m).join(", ")}.`,
    fix: () => "Report the panic with its line of the server's log. Restart if a topic is closed.",
  },
  {
    title: "Checkpoints",
    bad: (m) => m.value("topics_checkpoint_failures_total") > 0,
    says: (m) => `${count(m.value("topics_checkpoint_failures_total"))} checkpoints failed since the start.`,
    fix: () => "Look for the reason in the server's log: a full disk, or too few file descriptors (ulimit -n).",
  },
  {
    title: "Object store",
    bad: (m) => remoteState(m)?.fix !== undefined,
    says: (m) => remoteState(m).says,
    fix: (m) => remoteState(m).fix,
  },
  {
    title: "Records",
    bad: (m) => m.value("topics_corrupt_records_total") > 0,
    says: (m) => `${count(m.value("topics_corrupt_records_total"))} records failed their checksum.`,
    fix: () => "Run topics verify on a copy of the directory, then topics repair.",
  },
  {
    title: "Crash and restart losses",
    bad: (m) => ["crash", "corrupt"].some((reason) => m.value("topics_tombstones_total", reason) > 0),
    says: () => "Records were lost by a crash or by damage; readers get a gap.",
    fix: () => "Use durability fsync for topics that must survive a crash of the machine.",
  },
  {
    title: "Throttling",
    bad: (m) => m.value("topics_pressure_ratio") >= 1,
    says: () => "Writers are slowed down: watchers, routers or the disk do not keep up.",
    fix: () => "Look at the lag of consumers and routers, and at the disk's sync latency below.",
  },
  {
    title: "Dead jobs",
    bad: (m) => m.value("topics_jobs_dead") > 0,
    says: (m) => `${count(m.value("topics_jobs_dead"))} jobs used up their deliveries.`,
    fix: () => "Open the queue, read a job's error, then redrive or remove.",
  },
];

export const health = (metrics) => CHECKS.map((check) => ({ ...check, isBad: check.bad(metrics) }));
