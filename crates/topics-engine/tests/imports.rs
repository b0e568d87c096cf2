//! Imports inside the crate go downwards only: a module may name what its own layer or a lower one
//! holds. So there is no cycle among the folders of `src`, and each can be read without those above.

#![allow(clippy::unwrap_used, clippy::panic)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The layers, from the lowest on: folders and files of `src`. What a layer imports is below it.
const LAYERS: &[&str] = &[
    "types",
    "tier",
    "ctx",
    "topic",
    "catalog",
    "checkpoint",
    "ship",
    "restore",
    "archive",
    "verbs",
    "queue",
    "consumer",
    "router",
    "txn",
    "delivery",
    "recovery",
    "engine",
];

fn layer_of(module: &str) -> Option<usize> {
    LAYERS.iter().position(|layer| *layer == module)
}

fn is_test(path: &Path) -> bool {
    let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    name.ends_with("tests.rs") || path.components().any(|c| c.as_os_str() == "tests")
}

/// The sources without tests, with their paths below `src`.
fn sources(dir: &Path, root: &Path, out: &mut Vec<(PathBuf, String)>) {
    for entry in fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, root, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            let below = path.strip_prefix(root).unwrap().to_owned();
            if !is_test(&below) {
                out.push((below, fs::read_to_string(&path).unwrap()));
            }
        }
    }
}

/// The module path of a file: `topic/read/plan.rs` is `topic::read::plan`.
fn module_of(file: &Path) -> Vec<String> {
    let path = file.with_extension("");
    let mut module: Vec<String> =
        path.components().map(|c| c.as_os_str().to_str().unwrap().to_owned()).collect();
    if module.last().is_some_and(|last| last == "mod" || last == "lib") {
        module.pop();
    }
    module
}

/// The code of a file: no comments, no strings, nothing from the first inline module of tests on.
fn code(source: &str) -> String {
    let end = source.find("#[cfg(test)]\nmod tests {").unwrap_or(source.len());
    let mut out = String::new();
    for line in source[..end].lines() {
        let line = line.split("//").next().unwrap_or_default();
        // What is outside of strings; one that goes on in the next line has no paths in it.
        line.split('"').step_by(2).for_each(|part| out.push_str(part));
        out.push('\n');
    }
    out
}

/// The paths of a `use` tree.
fn expand(tree: &str, out: &mut Vec<String>) {
    let tree = tree.trim();
    let Some(open) = tree.find('{') else {
        out.push(tree.split(" as ").next().unwrap_or_default().trim().to_owned());
        return;
    };
    let prefix = &tree[..open];
    let body = &tree[open + 1..tree.rfind('}').unwrap_or(tree.len())];
    let (mut depth, mut from) = (0, 0);
    for (at, c) in body.char_indices().chain([(body.len(), ',')]) {
        match c {
            '{' => depth += 1,
            '}' => depth -= 1,
            ',' if depth == 0 => {
                let one = body[from..at].trim();
                if !one.is_empty() {
                    expand(&format!("{prefix}{one}"), out);
                }
                from = at + 1;
            }
            _ => {}
        }
    }
}

fn is_word(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// Every path of a file that begins with `crate`, `super` or `self`, in `use` items and elsewhere.
fn paths(code: &str) -> Vec<String> {
    let mut out = Vec::new();
    let mut rest = code;
    let mut plain = String::new();
    while let Some(at) = rest.find("use ") {
        let begins = rest[..at].chars().next_back().is_none_or(|c| !is_word(c));
        let end = rest[at..].find(';').map_or(rest.len(), |n| at + n);
        plain.push_str(&rest[..at]);
        if begins {
            expand(&rest[at + 4..end].replace('\n', " "), &mut out);
            rest = &rest[end..];
        } else {
            plain.push_str("use ");
            rest = &rest[at + 4..];
        }
    }
    plain.push_str(rest);
    for root in ["crate::", "super::", "self::"] {
        for (at, _) in plain.match_indices(root) {
            let before = plain[..at].chars().next_back();
            if before.is_none_or(|c| !is_word(c) && c != ':') {
                let path = plain[at..].split(|c: char| !is_word(c) && c != ':').next();
                out.push(path.unwrap_or_default().trim_end_matches(':').to_owned());
            }
        }
    }
    out
}

/// The absolute path, without `crate`, of a path in a module; none for one of another crate.
fn absolute(module: &[String], path: &str) -> Option<Vec<String>> {
    let mut parts = path.split("::").map(|p| p.trim().to_owned()).peekable();
    let mut base: Vec<String> = match parts.peek()?.as_str() {
        "crate" => Vec::new(),
        "super" | "self" => module.to_vec(),
        _ => return None,
    };
    while let Some(part) = parts.peek() {
        match part.as_str() {
            "super" => drop(base.pop()),
            "crate" | "self" => {}
            _ => break,
        }
        parts.next();
    }
    // `{self, …}` of a `use` tree is the module itself.
    base.extend(parts.filter(|part| part != "self"));
    Some(base)
}

/// The layer pairs that are imported, each with the files that do so, and names that are imported
/// through the crate's root.
type Imports = BTreeMap<(usize, usize), BTreeSet<String>>;

fn imports() -> (Imports, BTreeSet<String>) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let mut all = Vec::new();
    sources(&root, &root, &mut all);
    let (mut found, mut through_root) = (Imports::new(), BTreeSet::new());
    for (file, source) in &all {
        let module = module_of(file);
        let Some(first) = module.first() else { continue };
        let layer =
            layer_of(first).unwrap_or_else(|| panic!("{first} has no layer: add it to LAYERS"));
        for path in paths(&code(source)) {
            let Some(to) = absolute(&module, &path) else { continue };
            let Some(top) = to.first() else { continue };
            match layer_of(top) {
                Some(target) => {
                    let what = format!("{}: {}", file.display(), to.join("::"));
                    found.entry((layer, target)).or_default().insert(what);
                }
                None => drop(through_root.insert(format!("{}: crate::{top}", file.display()))),
            }
        }
    }
    (found, through_root)
}

#[test]
fn imports_go_downwards_only() {
    let (found, through_root) = imports();
    let upward = found.iter().filter(|((from, to), _)| from < to);
    let wrong: Vec<&str> = upward.flat_map(|(_, files)| files).map(String::as_str).collect();
    assert!(wrong.is_empty(), "upward imports:\n{}", wrong.join("\n"));
    assert!(through_root.is_empty(), "name the module, not the crate's root: {through_root:?}");
}

#[test]
fn the_parser_finds_every_kind_of_import() {
    let source = "
        use std::fmt;
        use crate::topic::{self, read::{Piece, plan as p}, Topic};
        pub(crate) use super::engine::Engine; // crate::comment::No
        fn f() { let text = \"crate::string::No\"; crate::router::run(super::x()); reuse self::y; }
        #[cfg(test)]\nmod tests {\n use crate::late::No; }";
    let source = source.replace("        #[cfg", "#[cfg");
    let module = ["delivery".to_owned(), "watch".to_owned()];
    let found: BTreeSet<String> = paths(&code(&source))
        .iter()
        .filter_map(|p| absolute(&module, p))
        .map(|p| p.join("::"))
        .collect();
    let expected = [
        "delivery::engine::Engine",
        "delivery::watch::y",
        "delivery::x",
        "router::run",
        "topic",
        "topic::Topic",
        "topic::read::Piece",
        "topic::read::plan",
    ];
    assert_eq!(found.iter().map(String::as_str).collect::<Vec<_>>(), expected);
}
