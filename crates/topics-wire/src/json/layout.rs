//! Objects that look like the last ones.

use super::scan::{Scanner, SyntaxError};
use super::source::{Source, Text};

/// What stands before the values of the last objects, byte for byte: `{"id": `, `, "user": `, ….
///
/// Such text was checked when it was learned, and it means the same in every object. So bytes that are
/// equal need no second check, and their key no second search.
#[derive(Debug, Default)]
pub struct Layout {
    members: Vec<Member>,
}

/// The text before a value, and what the caller knows its key as.
#[derive(Clone, Copy, Debug)]
struct Member {
    /// The first 16 bytes of the text, as two numbers, with zeros behind a shorter one.
    head: [u64; 2],
    mask: [u64; 2],
    len: usize,
    id: Option<usize>,
    /// Whether it begins with the brace of the object.
    opens: bool,
    /// The text after its first 16 bytes.
    tail: [u8; Layout::LONGEST - 16],
}

/// Two words compare faster than one vector.
#[inline]
fn words(chunk: &[u8; 16]) -> [u64; 2] {
    let all = u128::from_le_bytes(*chunk);
    [all as u64, (all >> 64) as u64]
}

impl Member {
    fn new(text: &[u8], id: Option<usize>) -> Option<Self> {
        let (len, opens) = (text.len(), text.first() == Some(&b'{'));
        let (mut head, mut tail) = ([0; 16], [0; Layout::LONGEST - 16]);
        for (to, from) in head.iter_mut().chain(&mut tail).zip(text) {
            *to = *from;
        }
        let beyond = 16u32.saturating_sub(u32::try_from(len).ok()?);
        let mask = u128::MAX.checked_shr(8 * beyond)?;
        let (head, mask) = (words(&head), words(&mask.to_le_bytes()));
        (len <= Layout::LONGEST).then_some(Self { head, mask, len, id, opens, tail })
    }

    /// Whether this is the text before a value: the first of an object, or a later one.
    #[inline]
    fn begins(&self, text: &[u8], is_first: bool) -> bool {
        let same = match text.first_chunk::<16>() {
            Some(chunk) => {
                let ([a, b], [c, d], [e, f]) = (words(chunk), self.head, self.mask);
                (((a ^ c) & e) | ((b ^ d) & f)) == 0
            }
            None => self.is_whole(text),
        };
        same && self.opens == is_first && (self.len <= 16 || self.has_tail(text))
    }

    /// The same for less text than 16 bytes.
    #[inline(never)]
    fn is_whole(&self, text: &[u8]) -> bool {
        let head = self.head.iter().flat_map(|word| word.to_le_bytes());
        self.len <= text.len() && head.take(self.len).eq(text.iter().copied().take(self.len))
    }

    #[inline(never)]
    fn has_tail(&self, text: &[u8]) -> bool {
        text.get(16..self.len).is_some_and(|rest| Some(rest) == self.tail.get(..rest.len()))
    }
}

impl Layout {
    /// Members with a longer text are not remembered.
    const LONGEST: usize = 48;
    /// Members that are remembered. One more, and learning begins anew.
    const MOST: usize = 64;
    /// Members that an object may lack between two others.
    const AHEAD: usize = 4;

    /// Remembers the text before a value as the member at `next`, which moves behind it.
    fn learn(&mut self, next: &mut usize, text: &[u8], id: Option<usize>) {
        let Some(member) = Member::new(text, id) else { return };
        if self.members.len() == Self::MOST {
            self.members.clear();
            *next = 0;
        }
        self.members.insert(*next, member);
        *next += 1;
    }
}

impl<'a, S: Source + ?Sized> Scanner<'a, S> {
    /// Like [`Scanner::object`], for objects that mostly have the same keys in the same order. `find`
    /// gives a key its number, and is called for new keys only; `each` must consume the value of a
    /// key with a number, the others are skipped. A layout serves one `find`.
    #[inline]
    pub fn object_by(
        &mut self,
        layout: &mut Layout,
        find: impl Fn(Text<'a, S>) -> Option<usize>,
        mut each: impl FnMut(&mut Self, usize) -> Result<(), SyntaxError>,
    ) -> Result<(), SyntaxError> {
        self.peek();
        self.descend()?;
        let (mut next, mut is_first) = (0, true);
        loop {
            let known = layout.members.get(next).filter(|m| m.begins(self.rest(), is_first));
            let id = match known {
                Some(member) => {
                    next += 1;
                    self.advance(member.len);
                    member.id
                }
                None => match self.other_member(layout, &mut next, is_first, &find)? {
                    Some(id) => id,
                    None => break,
                },
            };
            match id {
                Some(id) => each(self, id)?,
                None => self.skip()?,
            }
            if self.next() == Some(b'}') {
                self.advance(1);
                break;
            }
            is_first = false;
        }
        self.ascend();
        Ok(())
    }

    /// Reads up to a value that is not the expected one. Returns the number of its key, or `None` at
    /// the end of the object.
    #[inline(never)]
    fn other_member(
        &mut self,
        layout: &mut Layout,
        next: &mut usize,
        is_first: bool,
        find: &impl Fn(Text<'a, S>) -> Option<usize>,
    ) -> Result<Option<Option<usize>>, SyntaxError> {
        let text = self.rest();
        let mut ahead = layout.members.iter().enumerate().skip(*next + 1).take(Layout::AHEAD);
        if let Some((at, member)) = ahead.find(|(_, m)| m.begins(text, is_first)) {
            *next = at + 1;
            self.advance(member.len);
            return Ok(Some(member.id));
        }
        if is_first {
            self.expect(b'{', "expected {")?;
        }
        if self.take(b'}') {
            return Ok(None);
        }
        if !is_first {
            self.expect(b',', "expected , or }")?;
        }
        let key = self.key()?;
        self.peek();
        let id = find(key);
        let len = text.len() - self.rest().len();
        layout.learn(next, text.get(..len).unwrap_or_default(), id);
        Ok(Some(id))
    }
}
