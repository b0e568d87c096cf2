//! The JSON scanner.
//!
//! Stricter than common parsers: it refuses control characters, invalid `\u` digits, leading zeros, a
//! byte order mark and text after the value. It keeps duplicate keys, numbers of any size and unpaired
//! surrogate escapes as they were sent.

use super::source::{Source, Text};
use super::text;

/// Maximum nesting of a request body.
pub const MAX_DEPTH: u32 = 128;

/// The nesting of a record's `data` in a write body: `{"records":[{"data":…`. Data that arrives
/// without such a body starts at this depth, so that one bound holds for all stored data.
pub const DATA_DEPTH: u32 = 3;

/// Why a text is not JSON, and where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SyntaxError {
    /// Byte offset.
    pub at: usize,
    /// What is wrong there.
    pub what: &'static str,
}

impl std::fmt::Display for SyntaxError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "not valid JSON: {} at byte {}", self.what, self.at)
    }
}

/// Checks that the bytes are UTF-8.
pub(crate) fn utf8(bytes: &[u8]) -> Result<&str, SyntaxError> {
    simdutf8::basic::from_utf8(bytes)
        .or_else(|_| std::str::from_utf8(bytes))
        .map_err(|e| SyntaxError { at: e.valid_up_to(), what: "invalid UTF-8" })
}

/// A position in a text.
#[derive(Debug)]
pub struct Scanner<'a, S: ?Sized = str> {
    src: &'a S,
    at: usize,
    depth: u32,
}

impl<S: ?Sized> Clone for Scanner<'_, S> {
    fn clone(&self) -> Self {
        Self { ..*self }
    }
}

type Scanned<T> = Result<T, SyntaxError>;

impl<'a> Scanner<'a> {
    /// At the start of a body.
    pub fn new(bytes: &'a [u8]) -> Scanned<Self> {
        Ok(Self::at_depth(utf8(bytes)?, 0))
    }
}

impl<'a, S: Source + ?Sized> Scanner<'a, S> {
    /// At the start of a text that counts as part of a body, `depth` levels down.
    pub fn at_depth(src: &'a S, depth: u32) -> Self {
        Self { src, at: 0, depth }
    }

    pub(super) fn fail<T>(&self, what: &'static str) -> Scanned<T> {
        Err(SyntaxError { at: self.at, what })
    }

    #[inline]
    pub(super) fn next(&self) -> Option<u8> {
        self.src.bytes().get(self.at).copied()
    }

    /// What has not been read.
    #[inline]
    pub(super) fn rest(&self) -> &'a [u8] {
        self.src.bytes().get(self.at..).unwrap_or_default()
    }

    /// Skips bytes that end before a character or at the end.
    #[inline]
    pub(super) fn advance(&mut self, bytes: usize) {
        self.at += bytes;
    }

    #[inline]
    fn slice(&self, from: usize) -> &'a S {
        self.src.part(from, self.at)
    }

    #[inline]
    fn space(&mut self) {
        while let Some(b' ' | b'\n' | b'\r' | b'\t') = self.next() {
            self.at += 1;
        }
    }

    /// The first byte of the next token, without consuming it.
    #[inline]
    pub fn peek(&mut self) -> Option<u8> {
        self.space();
        self.next()
    }

    /// Refuses anything but whitespace.
    pub fn end(&mut self) -> Scanned<()> {
        match self.peek() {
            None => Ok(()),
            Some(_) => self.fail("unexpected text after the value"),
        }
    }

    pub(super) fn expect(&mut self, byte: u8, what: &'static str) -> Scanned<()> {
        if self.peek() != Some(byte) {
            return self.fail(what);
        }
        self.at += 1;
        Ok(())
    }

    /// Consumes `byte` if it is next.
    pub(super) fn take(&mut self, byte: u8) -> bool {
        let found = self.peek() == Some(byte);
        self.at += usize::from(found);
        found
    }

    pub(super) fn descend(&mut self) -> Scanned<()> {
        self.depth += 1;
        if self.depth > MAX_DEPTH { self.fail("nesting deeper than 128 levels") } else { Ok(()) }
    }

    pub(super) fn ascend(&mut self) {
        self.depth -= 1;
    }

    /// Reads an object: `each` gets a key and must consume its value.
    pub fn object<E: From<SyntaxError>>(
        &mut self,
        mut each: impl FnMut(&mut Self, Text<'a, S>) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'{', "expected {")?;
        self.descend()?;
        if !self.take(b'}') {
            loop {
                let key = self.key()?;
                each(self, key)?;
                if self.take(b'}') {
                    break;
                }
                self.expect(b',', "expected , or }")?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads an array: `each` gets an index and must consume its element.
    pub fn array<E: From<SyntaxError>>(
        &mut self,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), E>,
    ) -> Result<(), E> {
        self.expect(b'[', "expected [")?;
        self.descend()?;
        if !self.take(b']') {
            for i in 0.. {
                each(self, i)?;
                if self.take(b']') {
                    break;
                }
                self.expect(b',', "expected , or ]")?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    pub(super) fn key(&mut self) -> Scanned<Text<'a, S>> {
        let key = self.string()?;
        self.expect(b':', "expected :")?;
        Ok(key)
    }

    pub fn string(&mut self) -> Scanned<Text<'a, S>> {
        self.expect(b'"', "expected a string")?;
        let from = self.at;
        let escaped = self.string_rest()?;
        let raw = self.src.part(from, self.at - 1);
        Ok(Text { raw, escaped })
    }

    /// Any value: its text, without surrounding whitespace.
    #[inline]
    pub fn value(&mut self) -> Scanned<&'a S> {
        let first = self.peek();
        let from = self.at;
        self.consume(first)?;
        Ok(self.slice(from))
    }

    /// Skips any value.
    #[inline]
    pub fn skip(&mut self) -> Scanned<()> {
        let first = self.peek();
        self.consume(first)
    }

    #[inline(always)]
    fn consume(&mut self, first: Option<u8>) -> Scanned<()> {
        if first != Some(b'"') {
            return self.other_value(first);
        }
        self.at = text::plain_run(self.src.bytes(), self.at + 1);
        if self.next() != Some(b'"') {
            return self.string_rest().map(drop);
        }
        self.at += 1;
        Ok(())
    }

    /// Any value but a string.
    #[inline(never)]
    fn other_value(&mut self, first: Option<u8>) -> Scanned<()> {
        match first {
            Some(b'{' | b'[') => self.container(),
            first => self.scalar(first),
        }
    }

    /// An array or an object.
    fn container(&mut self) -> Scanned<()> {
        let outside = self.depth;
        // One bit per level: 1 is an object.
        let mut objects: u128 = 0;
        loop {
            match self.peek() {
                Some(b'{') => {
                    self.at += 1;
                    self.descend()?;
                    if !self.take(b'}') {
                        objects = (objects << 1) | 1;
                        self.key()?;
                        continue;
                    }
                    self.depth -= 1;
                }
                Some(b'[') => {
                    self.at += 1;
                    self.descend()?;
                    if !self.take(b']') {
                        objects <<= 1;
                        continue;
                    }
                    self.depth -= 1;
                }
                first => self.scalar(first)?,
            }
            // After a value: close the containers that end here.
            loop {
                if self.depth == outside {
                    return Ok(());
                }
                let in_object = objects & 1 == 1;
                match self.peek() {
                    Some(b',') => {
                        self.at += 1;
                        if in_object {
                            self.key()?;
                        }
                        break;
                    }
                    Some(b'}') if in_object => self.at += 1,
                    Some(b']') if !in_object => self.at += 1,
                    _ => return self.fail("expected , or the end of the array or object"),
                }
                objects >>= 1;
                self.depth -= 1;
            }
        }
    }

    #[inline]
    fn scalar(&mut self, first: Option<u8>) -> Scanned<()> {
        match first {
            Some(b'"') => {
                self.at += 1;
                self.string_rest().map(drop)
            }
            Some(b'-' | b'0'..=b'9') => self.number(),
            Some(b't') => self.word("true"),
            Some(b'f') => self.word("false"),
            Some(b'n') => self.word("null"),
            Some(_) => self.fail("expected a value"),
            None => self.fail("expected a value, found the end"),
        }
    }

    fn word(&mut self, word: &'static str) -> Scanned<()> {
        if !self.rest().starts_with(word.as_bytes()) {
            return self.fail("expected a value");
        }
        self.at += word.len();
        Ok(())
    }

    #[inline]
    fn digits(&mut self) -> Scanned<()> {
        let count = self.rest().iter().take_while(|byte| byte.is_ascii_digit()).count();
        self.at += count;
        if count == 0 { self.fail("expected a digit") } else { Ok(()) }
    }

    #[inline]
    fn number(&mut self) -> Scanned<()> {
        self.at += usize::from(self.next() == Some(b'-'));
        if self.next() == Some(b'0') {
            self.at += 1;
            if let Some(b'0'..=b'9') = self.next() {
                return self.fail("a number with a leading zero");
            }
        } else {
            self.digits()?;
        }
        if self.next() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if let Some(b'e' | b'E') = self.next() {
            self.at += 1;
            self.at += usize::from(matches!(self.next(), Some(b'+' | b'-')));
            self.digits()?;
        }
        Ok(())
    }

    /// Consumes the rest of a string after its opening quote. Returns whether it has escapes.
    fn string_rest(&mut self) -> Scanned<bool> {
        let mut escaped = false;
        loop {
            self.at = text::plain_run(self.src.bytes(), self.at);
            match self.next() {
                Some(b'"') => {
                    self.at += 1;
                    return Ok(escaped);
                }
                Some(b'\\') => {
                    escaped = true;
                    self.escape()?;
                }
                Some(_) => return self.fail("unescaped control character in a string"),
                None => return self.fail("unterminated string"),
            }
        }
    }

    fn escape(&mut self) -> Scanned<()> {
        let rest = self.rest().get(1..).unwrap_or_default();
        let length = match rest {
            [b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't', ..] => 2,
            [b'u', a, b, c, d, ..] if [a, b, c, d].iter().all(|x| x.is_ascii_hexdigit()) => 6,
            _ => return self.fail("invalid escape in a string"),
        };
        self.at += length;
        Ok(())
    }
}
