//! Finds the values of all paths in one pass over a JSON text.

use crate::json::{DATA_DEPTH, Scanner, SyntaxError, Text};

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

    /// Stores the text of each field's value in `values`. Of members with the same key the last one
    /// counts, as in most parsers.
    pub fn find<'a>(
        &self,
        data: &'a [u8],
        values: &mut [Option<&'a str>],
    ) -> Result<(), SyntaxError> {
        let text = crate::json::utf8(data)?;
        let mut s = Scanner::at_depth(text, DATA_DEPTH);
        self.read(&mut s, values)?;
        s.end()
    }

    fn read<'a>(
        &self,
        s: &mut Scanner<'a>,
        values: &mut [Option<&'a str>],
    ) -> Result<(), SyntaxError> {
        if !self.ends.is_empty() {
            let is_leaf = self.members.is_empty() && self.elements.is_empty();
            let text = if is_leaf { s.value()? } else { s.clone().value()? };
            for field in &self.ends {
                values[*field] = Some(text);
            }
            if is_leaf {
                return Ok(());
            }
        }
        match s.peek() {
            Some(b'{') if !self.members.is_empty() => {
                // Most records have the same keys in the same order.
                let mut next = 0;
                s.object(|s, key| match self.member(key, &mut next) {
                    Some(found) => found.replace(s, values),
                    None => s.skip(),
                })
            }
            Some(b'[') if !self.elements.is_empty() => {
                s.array(|s, index| match self.elements.iter().find(|(at, _)| *at == index) {
                    Some((_, found)) => found.replace(s, values),
                    None => s.skip(),
                })
            }
            _ => s.skip(),
        }
    }

    /// Reads a value that replaces an earlier one with the same key.
    fn replace<'a>(
        &self,
        s: &mut Scanner<'a>,
        values: &mut [Option<&'a str>],
    ) -> Result<(), SyntaxError> {
        for field in &self.below {
            values[*field] = None;
        }
        self.read(s, values)
    }

    /// The member with this key; the search begins at `next`, which moves behind it.
    fn member(&self, key: Text<'_>, next: &mut usize) -> Option<&Self> {
        let (before, from) = self.members.split_at_checked(*next)?;
        let decoded = if key.escaped { Some(key.decode()?) } else { None };
        let name = decoded.as_deref().unwrap_or(key.raw);
        let at = from.iter().chain(before).position(|(known, _)| known == name)?;
        let at = (at + *next) % self.members.len();
        *next = at + 1;
        self.members.get(at).map(|(_, found)| found)
    }
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
    use super::super::path::parse;
    use super::*;

    fn found<'a>(paths: &[&str], text: &'a str) -> Option<Vec<Option<&'a str>>> {
        let mut tree = PathTree::default();
        for (field, path) in paths.iter().enumerate() {
            tree.insert(&parse(path).unwrap(), field);
        }
        let mut values = vec![None; paths.len()];
        tree.find(text.as_bytes(), &mut values).ok().map(|()| values)
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
}
