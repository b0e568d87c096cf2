//! Reading and writing one setting of any kind.

use std::fmt;
use std::time::Duration;

use pyo3::prelude::*;
use topics_engine::AutoCreate;

/// The value of a setting.
#[derive(Clone, Debug, PartialEq, Eq, IntoPyObject, FromPyObject)]
pub(crate) enum Value {
    Flag(bool),
    Number(u64),
    Text(String),
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(on) => on.fmt(f),
            Self::Number(n) => n.fmt(f),
            Self::Text(text) => write!(f, "{text:?}"),
        }
    }
}

/// A type whose values are words.
pub(super) trait Choice: Copy + PartialEq + 'static {
    const WORDS: &'static [(&'static str, Self)];
}

/// A value of some [`Choice`].
pub(super) trait Word {
    fn words(&self) -> Vec<&'static str>;
    fn get(&self) -> &'static str;
    /// False if no value has this word.
    fn set(&mut self, word: &str) -> bool;
}

impl<T: Choice> Word for T {
    fn words(&self) -> Vec<&'static str> {
        T::WORDS.iter().map(|(word, _)| *word).collect()
    }

    fn get(&self) -> &'static str {
        T::WORDS.iter().find(|(_, value)| value == self).map_or("", |(word, _)| word)
    }

    fn set(&mut self, word: &str) -> bool {
        let found = T::WORDS.iter().find(|(known, _)| *known == word);
        found.map(|(_, value)| *self = *value).is_some()
    }
}

/// The field that a setting reads and writes, by kind.
pub(super) enum Slot<'a> {
    Count32(&'a mut u32),
    Count64(&'a mut u64),
    Count(&'a mut usize),
    Bytes64(&'a mut u64),
    Bytes(&'a mut usize),
    Millis(&'a mut Duration),
    /// `None` is the word `never`.
    Window(&'a mut Option<Duration>),
    Flag(&'a mut bool),
    Text(&'a mut String),
    Words(&'a mut dyn Word),
    AutoCreate(&'a mut AutoCreate),
}

impl Slot<'_> {
    /// The kind in words: `count`, `size` (bytes), `duration` (milliseconds), `window` (a
    /// duration or `never`), `flag`, `text`, `words` (one of several) or `names` (true, false, or a list of
    /// names and prefixes).
    pub(super) fn kind(&self) -> &'static str {
        match self {
            Self::Count32(_) | Self::Count64(_) | Self::Count(_) => "count",
            Self::Bytes64(_) | Self::Bytes(_) => "size",
            Self::Millis(_) => "duration",
            Self::Window(_) => "window",
            Self::Flag(_) => "flag",
            Self::Text(_) => "text",
            Self::Words(_) => "words",
            Self::AutoCreate(_) => "names",
        }
    }

    /// The words of a kind `words`.
    pub(super) fn words(&self) -> Vec<&'static str> {
        match self {
            Self::Words(word) => word.words(),
            _ => vec![],
        }
    }

    pub(super) fn get(&self) -> Value {
        match self {
            Self::Count32(n) => Value::Number(u64::from(**n)),
            Self::Count64(n) | Self::Bytes64(n) => Value::Number(**n),
            Self::Count(n) | Self::Bytes(n) => Value::Number(**n as u64),
            Self::Millis(d) => Value::Number(millis(**d)),
            Self::Window(Some(d)) => Value::Number(millis(*d)),
            Self::Window(None) => Value::Text(NEVER.into()),
            Self::Flag(on) => Value::Flag(**on),
            Self::Text(text) => Value::Text((*text).clone()),
            Self::Words(word) => Value::Text(word.get().into()),
            Self::AutoCreate(AutoCreate::On) => Value::Text("true".into()),
            Self::AutoCreate(AutoCreate::Off) => Value::Text("false".into()),
            Self::AutoCreate(AutoCreate::Patterns(list)) => Value::Text(list.join(",")),
        }
    }

    /// Sets the field; the error says which values are allowed.
    pub(super) fn set(&mut self, value: Value) -> Result<(), String> {
        match (self, value) {
            (Self::Count32(to), Value::Number(n)) => {
                **to = u32::try_from(n).map_err(|_| "must be below 2^32")?;
            }
            (Self::Count64(to) | Self::Bytes64(to), Value::Number(n)) => **to = n,
            (Self::Count(to) | Self::Bytes(to), Value::Number(n)) => {
                **to = usize::try_from(n).map_err(|_| "is too large")?;
            }
            (Self::Millis(to), Value::Number(n)) => **to = Duration::from_millis(n),
            (Self::Window(to), Value::Number(n)) => **to = Some(Duration::from_millis(n)),
            (Self::Window(to), Value::Text(text)) if text == NEVER => **to = None,
            (Self::Flag(to), Value::Flag(on)) => **to = on,
            (Self::Text(to), Value::Text(text)) => **to = text,
            (Self::Words(to), Value::Text(text)) => {
                if !to.set(&text) {
                    return Err(one_of(&to.words()));
                }
            }
            (Self::AutoCreate(to), Value::Flag(on)) => {
                **to = if on { AutoCreate::On } else { AutoCreate::Off };
            }
            (Self::AutoCreate(to), Value::Text(text)) => **to = auto_create(&text),
            (Self::Window(_), _) => {
                return Err(format!("must be an integer of at least 0, or {NEVER}"));
            }
            (Self::Flag(_), _) => return Err("must be true or false".into()),
            (Self::Text(_), _) => return Err("must be a string".into()),
            (Self::Words(of), _) => return Err(one_of(&of.words())),
            (Self::AutoCreate(_), _) => {
                return Err("must be true, false, or a list of names and prefixes with *".into());
            }
            _ => return Err("must be an integer of at least 0".into()),
        }
        Ok(())
    }
}

/// A window without an end.
const NEVER: &str = "never";

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

fn one_of(words: &[&str]) -> String {
    format!("must be one of {}", words.join(", "))
}

fn auto_create(text: &str) -> AutoCreate {
    match text {
        "true" | "1" => AutoCreate::On,
        "false" | "0" => AutoCreate::Off,
        list => {
            let patterns = list.split(',').map(|p| p.trim().to_owned());
            AutoCreate::Patterns(patterns.filter(|p| !p.is_empty()).collect())
        }
    }
}
