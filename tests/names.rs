//! Names that the code once had and must not have again, each with the standard term for it.
//!
//! A name is banned as a whole word of the code; comments and strings are not checked. A word with
//! a plain English meaning is banned only in the directories where it had another one.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The list of banned names itself.
const LIST: &str = "tests/names.rs";

/// The scanned directories, with the file extension of their sources.
const SCANNED: &[(&str, &str)] = &[
    ("crates", "rs"),
    ("tests", "rs"),
    ("tests", "py"),
    ("benches", "rs"),
    ("benches", "py"),
    ("python", "py"),
    ("spark", "py"),
    ("docs", "py"),
    (".ci", "py"),
];

/// Names that are banned in every folder, and the term to use.
const BANNED: &[(&str, &str)] = &[
    ("Alone", "ExclusiveGuard"),
    ("Asleep", "UnloadedTopic"),
    ("Deed", "SyncOp"),
    ("Dormitory", "Catalog"),
    ("Elsewhere", "RemoteBackend"),
    ("GIVE_UP_AFTER", "RETRY_SECONDS"),
    ("GOODBYE_SECONDS", "CLOSE_LINGER"),
    ("Glance", "TopicHeader"),
    ("Keeper", "FdReclaimer"),
    ("LoopWire", "AsyncTransport"),
    ("OF_CALLS", "current_scope"),
    ("Outflow", "WriteTimeout"),
    ("Outlook", "ProjectedUsage"),
    ("Planned", "PendingWrites"),
    ("Sleeper", "UnloadedTopic"),
    ("Spared", "PoisonedShards"),
    ("Sparing", "FdRetryFs"),
    ("Stretch", "Chunk"),
    ("ThreadWire", "SyncTransport"),
    ("Transacting", "TransactionBackend"),
    ("Unborn", "Creating"),
    ("Wakeable", "InterruptibleConnection"),
    ("bereave", "remove_routers_of"),
    ("blame", "root_cause"),
    ("bury", "mark_dead, dead_letter or delete_superseded"),
    ("copied_aside", "quarantined"),
    ("deed", "op"),
    ("farewell", "error_response"),
    ("give_back", "truncate_preallocation, reclaim_fds or release"),
    ("give_up", "declare_lost or time_out"),
    ("give_way", "release_reserve or lower_priority"),
    ("got_up", "loaded"),
    ("kick", "wake_thread"),
    ("left_out", "is_step_skipped"),
    ("look_at_load", "refresh_load"),
    ("look_into", "verify_files_once"),
    ("must_succeed", "needs_rotation"),
    ("newborn", "created"),
    ("outlived", "shadowed"),
    ("paged", "prefaulted_to"),
    ("put_to_sleep", "unload"),
    ("rouse", "wake"),
    ("see_off", "close_if_drained"),
    ("set_aside", "quarantine"),
    ("stranded", "fail_unwritable"),
    ("take_back", "undo"),
    ("take_sites", "visited_sites"),
    ("told_apart", "is_distinguishable"),
    ("unheld", "unpinned"),
    ("weighed", "accounted"),
    ("when_short", "on_fd_exhaustion"),
];

/// Names that are banned in one directory only.
const BANNED_WITHIN: &[(&str, &[(&str, &str)])] = &[
    (
        "crates/topics-storage",
        &[
            ("Core", "OpenSegment"),
            ("Draft", "SnapshotBuilder"),
            ("Found", "ScanItem"),
            ("Part", "FileKind or ReplaySpan"),
            ("Placed", "PlacedBatch"),
            ("Queued", "QueuedBatch"),
            ("SpaceHold", "AllocationPause"),
            ("Walk", "LogScan or EntryScanner"),
            ("Want", "ReadRequest"),
            ("Watch", "ScanObserver"),
            ("ahead", "prefault"),
            ("aside", "quarantine"),
            ("carry_over", "a set difference"),
            ("elsewhere", "outside_files"),
            ("given_up", "is_declared_lost"),
            ("room", "free_bytes, reserved or a permit"),
            ("settle", "drain_effects or load_older"),
            ("succeed", "rotate"),
            ("succession", "rotation"),
            ("tell", "run_guarded"),
            ("walk", "scan"),
        ],
    ),
    (
        "crates/topics-engine/src",
        &[
            ("HELD", "PINNED"),
            ("Resting", "Coalescing"),
            ("Told", "Waiters or Seen"),
            ("Turn", "WriterLock, ReaderLock or NextAction"),
            ("Walk", "EvictionScan"),
            ("Wanted", "Subscriptions"),
            ("Wants", "WorkByTopic"),
            ("dismiss", "remove_members"),
            ("flight", "pending"),
            ("obey", "apply_verdict"),
            ("recall", "queue_if_idle"),
            ("rehearse", "check_existing"),
            ("resting", "coalescing"),
            ("run_dry", "serve_all"),
            ("slept", "unloaded"),
            ("tell", "notify"),
            ("tidy", "remove_empty_groups"),
            ("told", "notified"),
            ("try_turn", "try_lock_writer"),
            ("unpaced", "mark_throttled"),
        ],
    ),
    (
        "crates/topics-engine/src/delivery",
        &[("Part", "StreamTopic"), ("part", "slot"), ("parts", "topics")],
    ),
    (
        "crates/topics-engine/src/topic",
        &[("Step", "PendingWrite"), ("room", "has_capacity"), ("walk", "scan")],
    ),
    ("crates/topics-engine/src/txn", &[("Want", "TopicWork"), ("settle", "sync_dependencies")]),
    ("crates/topics-engine/src/verbs", &[("Step", "Attempt"), ("settle", "on_synced")]),
    ("crates/topics-engine/src/catalog", &[("settle", "on_synced")]),
    (
        "crates/topics-env",
        &[
            ("Past", "DeferUntil"),
            ("Room", "free_bytes"),
            ("ghost", "reverted"),
            ("keeper", "reclaimer"),
            ("no_descriptor", "is_fd_exhausted"),
            ("room", "writable_len"),
            ("settle", "tree_after_crash or apply_survivors"),
            ("witness", "syncfs_fd"),
        ],
    ),
    (
        "tests",
        &[
            ("Came", "TxnOutcome"),
            ("Far", "Progress"),
            ("Met", "OpenOutcome"),
            ("Walk", "PointCursor"),
            ("patience", "silence_timeout or WATCHDOG"),
        ],
    ),
    ("tests/damage", &[("Place", "RecordLocation"), ("places", "locations")]),
    (
        "tests/delivery",
        &[
            ("Given", "ClaimedJob"),
            ("Part", "StagePart"),
            ("came", "outcome"),
            ("settle", "wait_idle"),
        ],
    ),
    ("tests/run", &[("settle", "wait_idle")]),
    ("benches", &[("settle", "sync_all")]),
];

/// Names that are banned in Python.
const BANNED_IN_PYTHON: &[(&str, &str)] = &[
    ("Ahead", "Prefetcher"),
    ("Asked", "WatchOptions"),
    ("Begun", "PendingCall"),
    ("Behind", "Backfill"),
    ("Beside", "BackgroundCall"),
    ("Doubt", "CallStatus"),
    ("Ending", "CancelScope"),
    ("Flow", "JobStream"),
    ("Landing", "KillPoint"),
    ("Lane", "PoolKind"),
    ("Leases", "QueueBackend"),
    ("Life", "EngineLifespan"),
    ("NOISE", "CONTROL_FRAME_BUDGET"),
    ("NotYet", "HasBuffered"),
    ("PumpedProtocol", "NativeStreamProtocol"),
    ("Slots", "Limiter"),
    ("Turns", "InterruptibleSemaphore"),
    ("Twin", "AsyncHandle"),
    ("Wire", "Transport"),
    ("complain", "print_error"),
    ("converse", "exchange"),
    ("door", "protocol"),
    ("doors", "protocols"),
    ("happenings", "dataset"),
    ("long_twin", "long_async_method"),
    ("patience", "call_timeout"),
    ("twin", "async_method"),
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The sources with this extension below `dir`, as paths from the root.
fn sources(dir: &Path, ending: &str, out: &mut Vec<String>) {
    let Ok(entries) = std::fs::read_dir(root().join(dir)) else { return };
    for entry in entries.map(Result::unwrap) {
        let path = dir.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            sources(&path, ending, out);
        } else if path.extension().is_some_and(|e| e == ending) {
            out.push(path.to_string_lossy().into_owned());
        }
    }
}

/// The code of one line, without its comment and its strings.
fn code(line: &str, python: bool) -> String {
    let comment = if python { "#" } else { "//" };
    let (mut out, mut rest) = (String::new(), line);
    while let Some(at) = rest.find(['"', '/', '#']) {
        out.push_str(&rest[..at]);
        rest = &rest[at..];
        if rest.starts_with(comment) {
            return out;
        }
        let string = rest.strip_prefix('"').and_then(|after| {
            let escaped = |i: usize| after[..i].bytes().rev().take_while(|b| *b == b'\\').count();
            let end = after.match_indices('"').find(|(i, _)| escaped(*i) % 2 == 0)?.0;
            Some(&after[end + 1..])
        });
        // A string of several lines is scanned as if it were code.
        rest = string.unwrap_or(&rest[1..]);
        out.push(' ');
    }
    out + rest
}

/// The banned words of a line of a file, each with the term to use.
fn banned(file: &str, line: &str) -> Vec<(String, &'static str)> {
    let within = BANNED_WITHIN.iter().filter(|(dir, _)| file.starts_with(dir));
    let python = file.ends_with(".py");
    let in_python = if python { BANNED_IN_PYTHON } else { &[] };
    let rules: BTreeMap<&str, &'static str> =
        within.flat_map(|(_, rules)| *rules).chain(in_python).chain(BANNED).copied().collect();
    let code = code(line, python);
    let words = code.split(|c: char| !c.is_alphanumeric() && c != '_');
    words.filter_map(|w| rules.get(w).map(|term| (w.to_owned(), *term))).collect()
}

#[test]
fn no_banned_name_comes_back() {
    let mut files = Vec::new();
    for (dir, ending) in SCANNED {
        sources(Path::new(dir), ending, &mut files);
    }
    files.retain(|f| f != LIST && !f.contains("/target/"));
    assert!(files.iter().any(|f| f.starts_with("crates/topics-storage/src")), "no sources");
    assert!(files.iter().filter(|f| f.ends_with(".py")).count() > 200, "no programs of Python");
    let mut wrong = Vec::new();
    for file in files {
        let text = std::fs::read_to_string(root().join(&file)).unwrap();
        for (n, line) in text.lines().enumerate() {
            for (word, term) in banned(&file, line) {
                wrong.push(format!("{file}:{}: `{word}` is `{term}`", n + 1));
            }
        }
    }
    assert!(wrong.is_empty(), "{} banned names:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn words_of_the_code_are_found_and_nothing_else() {
    let found = |line| banned("crates/x.rs", line).into_iter().map(|b| b.0).collect::<Vec<_>>();
    assert_eq!(found("fn kick(s: Keeper) {} // rouse"), ["kick", "Keeper"]);
    assert_eq!(found(r#"let s = "kick \" kick"; rouse();"#), ["rouse"]);
    assert!(found("kicks, re_kick, Keepers, /// kick").is_empty());
    let python = banned("python/x.py", "x = Twin()  # kick");
    assert_eq!(python, [("Twin".to_owned(), "AsyncHandle")]);
    assert_eq!(banned("docs/x.py", "door = 1  # door").len(), 1);
    assert!(banned("crates/x.rs", "let door = 1;").is_empty());
    assert_eq!(banned("crates/topics-storage/x.rs", "let room = 1;").len(), 1);
    assert!(banned("crates/topics-engine/x.rs", "let room = 1;").is_empty());
}
