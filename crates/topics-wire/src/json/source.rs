//! Texts that a scanner reads, and the strings in them.

use std::borrow::Cow;

use super::text;

/// What a scanner reads: characters, or bytes of a text whose UTF-8 was checked before.
pub trait Source {
    /// The bytes of the text.
    fn bytes(&self) -> &[u8];
    /// A part of the text; empty if there is none.
    fn part(&self, from: usize, to: usize) -> &Self;
}

impl Source for str {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self.as_bytes()
    }

    #[inline]
    fn part(&self, from: usize, to: usize) -> &Self {
        self.get(from..to).unwrap_or_default()
    }
}

impl Source for [u8] {
    #[inline]
    fn bytes(&self) -> &[u8] {
        self
    }

    #[inline]
    fn part(&self, from: usize, to: usize) -> &Self {
        self.get(from..to).unwrap_or_default()
    }
}

/// A string with its escapes.
#[derive(Debug, PartialEq, Eq)]
pub struct Text<'a, S: ?Sized = str> {
    /// The characters between the quotes.
    pub raw: &'a S,
    /// Whether it has escapes.
    pub escaped: bool,
}

impl<S: ?Sized> Clone for Text<'_, S> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<S: ?Sized> Copy for Text<'_, S> {}

impl<'a> Text<'a> {
    /// The string without escapes; `None` with an unpaired surrogate escape.
    pub fn decode(self) -> Option<Cow<'a, str>> {
        if self.escaped { text::unescape(self.raw).map(Cow::Owned) } else { Some(self.raw.into()) }
    }
}
