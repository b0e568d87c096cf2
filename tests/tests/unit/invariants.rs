//! Checks the table of invariants in the documentation: the files and tests that it names exist and
//! quote the id.

use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// The sources of the crates and of the suites.
fn sources(dir: &Path, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(std::fs::read_to_string(&path).unwrap());
        }
    }
}

/// Whether a text quotes an invariant: `I1` is not in `I12`; names use `i1_`.
fn quotes(text: &str, id: &str) -> bool {
    let plain = |c: char| !c.is_ascii_alphanumeric();
    let quoted = text.match_indices(id).any(|(at, _)| {
        let after = text[at + id.len()..].chars().next();
        text[..at].chars().next_back().is_none_or(plain) && after.is_none_or(plain)
    });
    quoted || text.contains(&format!("{}_", id.to_lowercase()))
}

/// A test with the attributes and comments before it, up to the end of its body.
fn test<'a>(source: &'a str, name: &str) -> Option<&'a str> {
    let at = source.find(&format!("fn {name}("))?;
    let line = source[..at].rfind('\n').map_or(0, |i| i + 1);
    let indent = &source[line..at];
    let end = format!("\n{indent}}}\n");
    let end = source[at..].find(&end).map_or(source.len(), |n| at + n);
    let start = source[..line].rfind("\n\n").map_or(0, |i| i + 2);
    source[start..at].contains("#[test]").then(|| &source[start..end])
}

/// The names in backticks.
fn named(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

#[test]
fn the_table_of_invariants_is_true() {
    let doc = std::fs::read_to_string(root().join("docs/invariants.md")).unwrap();
    let mut all = Vec::new();
    for dir in ["crates", "tests"] {
        sources(&root().join(dir), &mut all);
    }
    let table = doc.split("| id | asserted in | proven by |").nth(1).unwrap();
    let rows: Vec<Vec<&str>> = table
        .lines()
        .skip(2)
        .take_while(|l| l.starts_with('|'))
        .map(|l| l.split('|').map(str::trim).collect())
        .collect();
    let ids: Vec<&str> = rows.iter().map(|r| r[1]).collect();
    let want: Vec<String> = (1..=12).map(|n| format!("I{n}")).collect();
    assert_eq!(ids, want, "each invariant has a row");
    for row in rows {
        let (id, files, tests) = (row[1], named(row[2]), named(row[3]));
        assert!(!files.is_empty() && !tests.is_empty(), "{id}: an empty cell");
        for file in files {
            let text = std::fs::read_to_string(root().join(file)).unwrap_or_default();
            assert!(quotes(&text, id), "{file} does not quote {id}");
        }
        for name in tests {
            let found: Vec<&str> = all.iter().filter_map(|s| test(s, name)).collect();
            assert!(!found.is_empty(), "{id}: there is no test {name}");
            assert!(found.iter().any(|t| quotes(t, id)), "{name} does not quote {id}");
        }
    }
}

#[test]
fn quotes_of_an_invariant_are_found() {
    assert!(quotes("\"I1: lost\"", "I1") && quotes("(I1, I2)", "I1") && quotes("fn i1_x", "I1"));
    assert!(!quotes("I12", "I1") && !quotes("XI1", "I1") && !quotes("fn i12_x", "I1"));
    let source = "\n/// I6.\n#[test]\nfn a() {\n    x\n}\n\nfn b() {}\n\n#[test]\nfn c() {\n}\n";
    assert!(test(source, "a").is_some_and(|t| quotes(t, "I6")));
    assert!(test(source, "b").is_none());
    assert!(test(source, "c").is_some_and(|t| !quotes(t, "I6")));
}
