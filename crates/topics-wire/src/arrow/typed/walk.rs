//! Finds the values of all paths in one pass over a JSON text.

use crate::json::{DATA_DEPTH, Layout, Scanner, SyntaxError, Text};

use super::block::Block;
use super::path::Step;

/// The paths that continue from one value of a record.
#[derive(Debug, Default)]
pub(super) struct PathTree {
    /// The fields whose path ends here.
    ends: Vec<usize>,
    members: Vec<(String, PathTree)>,
    elements: Vec<(usize, PathTree)>,
    /// The fields whose path leads through here.
    below: Vec<usize>,
}

impl PathTree {
    /// Adds the path of a field.
    pub fn insert(&mut self, steps: &[Step], field: usize) {
        self.below.push(field);
        match steps.split_first() {
            None => self.ends.push(field),
            Some((Step::Key(key), rest)) => child(&mut self.members, key).insert(rest, field),
            Some((Step::Index(at), rest)) => child(&mut self.elements, at).insert(rest, field),
        }
    }

    /// The most fields of which `counts` is true on one way through the tree.
    pub fn most_nested(&self, counts: &impl Fn(usize) -> bool) -> usize {
        let members = self.members.iter().map(|(_, below)| below);
        let below = members.chain(self.elements.iter().map(|(_, below)| below));
        let here = self.ends.iter().filter(|field| counts(**field)).count();
        here + below.map(|tree| tree.most_nested(counts)).max().unwrap_or(0)
    }

    /// The layouts of no records yet.
    pub fn layouts(&self) -> Layouts {
        Layouts {
            object: Layout::default(),
            members: self.members.iter().map(|(_, below)| below.layouts()).collect(),
            elements: self.elements.iter().map(|(_, below)| below.layouts()).collect(),
        }
    }

    /// Stores the text of each field's value in the next row of `block`. The caller knows that `data` is UTF-8. Of members with the same key the last one
    /// counts, as in most parsers.
    pub fn find<'a>(
        &self,
        data: &'a [u8],
        layouts: &mut Layouts,
        block: &mut Block<'a>,
    ) -> Result<(), SyntaxError> {
        let mut s = Scanner::at_depth(data, DATA_DEPTH);
        self.read(&mut s, layouts, block)?;
        s.end()
    }

    fn read<'a>(
        &self,
        s: &mut Scanner<'a, [u8]>,
        layouts: &mut Layouts,
        block: &mut Block<'a>,
    ) -> Result<(), SyntaxError> {
        if !self.ends.is_empty() {
            let is_leaf = self.members.is_empty() && self.elements.is_empty();
            let text = if is_leaf { s.value()? } else { s.clone().value()? };
            for field in &self.ends {
                block.set(*field, Some(text));
            }
            if is_leaf {
                return Ok(());
            }
        }
        match s.peek() {
            Some(b'{') if !self.members.is_empty() => {
                let Layouts { object, members, .. } = layouts;
                let each = |s: &mut Scanner<'a, [u8]>, at: usize| match self
                    .members
                    .get(at)
                    .zip(members.get_mut(at))
                {
                    Some(((_, found), layouts)) => found.replace(s, layouts, block),
                    None => s.skip(),
                };
                s.object_by(object, |key| self.member(key), each)
            }
            Some(b'[') if !self.elements.is_empty() => s.array(|s, index| {
                let mut all = self.elements.iter().zip(&mut layouts.elements);
                match all.find(|((at, _), _)| *at == index) {
                    Some(((_, found), layouts)) => found.replace(s, layouts, block),
                    None => s.skip(),
                }
            }),
            _ => s.skip(),
        }
    }

    /// Reads a value that replaces an earlier one with the same key.
    #[inline]
    fn replace<'a>(
        &self,
        s: &mut Scanner<'a, [u8]>,
        layouts: &mut Layouts,
        block: &mut Block<'a>,
    ) -> Result<(), SyntaxError> {
        if let ([field], [], []) = (&self.ends[..], &self.members[..], &self.elements[..]) {
            block.set(*field, Some(s.value()?));
            return Ok(());
        }
        for field in &self.below {
            block.set(*field, None);
        }
        self.read(s, layouts, block)
    }

    /// The position of the member with this key.
    fn member(&self, key: Text<'_, [u8]>) -> Option<usize> {
        let raw = std::str::from_utf8(key.raw).ok()?;
        let name = Text { raw, escaped: key.escaped }.decode()?;
        self.members.iter().position(|(known, _)| *known == name)
    }
}

/// The layouts of the objects in a tree of paths; they have the shape of the tree.
#[derive(Debug)]
pub(super) struct Layouts {
    object: Layout,
    members: Vec<Layouts>,
    elements: Vec<Layouts>,
}

/// The subtree with this key, which is added if it is missing.
fn child<'t, K: PartialEq + Clone>(all: &'t mut Vec<(K, PathTree)>, key: &K) -> &'t mut PathTree {
    let at = all.iter().position(|(known, _)| known == key).unwrap_or_else(|| {
        all.push((key.clone(), PathTree::default()));
        all.len() - 1
    });
    &mut all[at].1
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::block::Payload;
    use super::super::path::parse;
    use super::*;

    /// The values of one record.
    fn row<'a>(
        tree: &PathTree,
        layouts: &mut Layouts,
        text: &'a str,
        fields: usize,
    ) -> Option<Vec<Option<&'a [u8]>>> {
        let mut block = Block::new(fields);
        tree.find(text.as_bytes(), layouts, &mut block).ok()?;
        block.end_row(Payload { seq: 1, data: text.as_bytes(), binary: false }, true);
        Some((0..fields).map(|field| block.column(field)[0]).collect())
    }

    fn found<'a>(paths: &[&str], text: &'a str) -> Option<Vec<Option<&'a str>>> {
        let mut tree = PathTree::default();
        for (field, path) in paths.iter().enumerate() {
            tree.insert(&parse(path).unwrap(), field);
        }
        let values = row(&tree, &mut tree.layouts(), text, paths.len())?;
        let text = |value: Option<&'a [u8]>| value.map(|v| std::str::from_utf8(v).unwrap());
        Some(values.into_iter().map(text).collect())
    }

    #[test]
    fn values_by_path() {
        let text = r#" {"b": [10, {"c": "x"}], "a":1 , "d":{"a":{}, "n":null}, "\u0065": 5} "#;
        let paths = ["a", "b[1].c", "b", "b[0]", "d.a", "d.n", "e", "$", "x", "a.b", "d[0]"];
        let all = text.trim();
        let whole = r#"[10, {"c": "x"}]"#;
        let wanted = [
            Some("1"),
            Some("\"x\""),
            Some(whole),
            Some("10"),
            Some("{}"),
            Some("null"),
            Some("5"),
            Some(all),
            None,
            None,
            None,
        ];
        assert_eq!(found(&paths, text).unwrap(), wanted);
        for (at, path) in paths.iter().enumerate() {
            assert_eq!(found(&[path], text).unwrap(), [wanted[at]], "{path}");
        }
        assert_eq!(found(&["$[1]", "[0].a"], r#"[{"a":7},8]"#).unwrap(), [Some("8"), Some("7")]);
        assert_eq!(found(&["a"], "5").unwrap(), [None]);
    }

    #[test]
    fn the_last_of_equal_keys_counts_with_all_below_it() {
        let text = r#"{"a":{"x":1,"y":2},"b":1,"b":2,"a":{"x":3}}"#;
        assert_eq!(found(&["a.x", "a.y", "b"], text).unwrap(), [Some("3"), None, Some("2")]);
        assert_eq!(found(&["a.x", "a"], r#"{"a":{"x":1},"a":5}"#).unwrap(), [None, Some("5")]);
    }

    #[test]
    fn what_is_not_json_has_no_values() {
        for text in ["", "{", r#"{"a":1"#, r#"{"a":1} x"#, r#"{"b":tru,"a":1}"#, "{'a':1}"] {
            assert_eq!(found(&["a"], text), None, "{text}");
        }
        let deep = format!("{}1{}", "[".repeat(200), "]".repeat(200));
        assert_eq!(found(&["a"], &deep), None);
    }

    /// Objects whose keys mostly come in one order, some of them damaged.
    fn records() -> impl Strategy<Value = Vec<String>> {
        let keys = prop::sample::select(vec![
            "a",
            "b",
            "c",
            r"\u0061",
            "d",
            "a name of more than sixteen bytes",
            "a name that is longer than the text that any layout remembers",
        ]);
        let values = prop::sample::select(vec![
            "1",
            "-2.5e3",
            r#""x""#,
            r#""\"\u0041, \"b\":""#,
            r#"[1,{"a":2}]"#,
            r#"{"x":1,"y":{"x":[2]},"x":3}"#,
            r#"{ "y" : {"z":1, "x":"}"} }"#,
            "{}",
            "null",
            "true",
            "01",
        ]);
        let spaces = prop::sample::select(vec!["", "", " ", "\n  "]);
        let damage =
            (any::<prop::sample::Index>(), prop::sample::select(vec!['{', '}', ',', '"', '1']));
        let members = prop::collection::vec((keys, values), 0..7);
        let record = (members, spaces, prop::option::weighted(0.2, damage)).prop_map(
            |(members, space, damage)| {
                let members: Vec<_> = members
                    .iter()
                    .map(|(key, value)| format!("\"{key}\":{space}{value}"))
                    .collect();
                let mut text = format!("{{{}}}", members.join(&format!(",{space}")));
                if let Some((at, byte)) = damage {
                    text.insert(at.index(text.len()), byte);
                }
                text
            },
        );
        prop::collection::vec(record, 1..24)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1000))]

        /// What a layout remembers of earlier records changes neither what is refused nor what is found.
        #[test]
        fn records_are_read_as_if_alone(records in records()) {
            let paths = ["a", "b.x", "c", "a.y.x", "d.y", "d.x", r#"["a name of more than sixteen bytes"]"#];
            let pointers = ["/a", "/b/x", "/c", "/a/y/x", "/d/y", "/d/x", "/a name of more than sixteen bytes"];
            let mut tree = PathTree::default();
            for (field, path) in paths.iter().enumerate() {
                tree.insert(&parse(path).unwrap(), field);
            }
            let mut layouts = tree.layouts();
            for text in &records {
                let values = row(&tree, &mut layouts, text, paths.len());
                let theirs = serde_json::from_str::<serde_json::Value>(text);
                prop_assert_eq!(values.is_some(), theirs.is_ok(), "{}", text);
                let Some((values, theirs)) = values.zip(theirs.ok()) else { continue };
                for (value, pointer) in values.iter().zip(pointers) {
                    let value = value.map(|v| serde_json::from_slice::<serde_json::Value>(v).unwrap());
                    prop_assert_eq!(value.as_ref(), theirs.pointer(pointer), "{} of {}", pointer, text);
                }
            }
        }
    }

    #[test]
    fn objects_may_have_more_members_than_a_layout() {
        let members = |step: usize| -> Vec<_> {
            (0..200).map(|at| at * step % 200).map(|at| format!("\"k{at}\":{at}")).collect()
        };
        let mut tree = PathTree::default();
        tree.insert(&parse("k7").unwrap(), 0);
        tree.insert(&parse("k199").unwrap(), 1);
        let mut layouts = tree.layouts();
        for step in [1, 1, 3, 7, 3, 1, 1] {
            let text = format!("{{{}}}", members(step).join(","));
            let values = row(&tree, &mut layouts, &text, 2).unwrap();
            assert_eq!(values, [Some(&b"7"[..]), Some(b"199")]);
        }
    }
}
