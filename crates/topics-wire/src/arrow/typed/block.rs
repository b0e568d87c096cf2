//! Rows whose values are parsed column by column.

/// The values of up to 64 rows: the text of each, column after column.
#[derive(Debug)]
pub(super) struct Block<'a> {
    texts: Vec<Option<&'a [u8]>>,
    /// The payload of each row, for the columns of what does not fit.
    payloads: Vec<Payload<'a>>,
    /// The rows that are not JSON, as bits.
    not_json: u64,
}

/// The payload of a record.
#[derive(Clone, Copy, Debug)]
pub(super) struct Payload<'a> {
    pub seq: u64,
    pub data: &'a [u8],
    pub binary: bool,
}

impl<'a> Block<'a> {
    /// One bit of an integer for each row.
    pub const ROWS: usize = u64::BITS as usize;

    /// Without rows; each row has this many values.
    pub fn new(fields: usize) -> Self {
        let payloads = Vec::with_capacity(Self::ROWS);
        Self { texts: vec![None; fields * Self::ROWS], payloads, not_json: 0 }
    }

    /// Sets a value of the row that is added next.
    #[inline]
    pub fn set(&mut self, field: usize, text: Option<&'a [u8]>) {
        let row = self.payloads.len();
        self.texts[field * Self::ROWS + row] = text;
    }

    /// Adds the row whose values have been set; a row that is not JSON has none.
    #[inline]
    pub fn end_row(&mut self, payload: Payload<'a>, is_json: bool) {
        if !is_json {
            let row = self.payloads.len();
            self.texts.iter_mut().skip(row).step_by(Self::ROWS).for_each(|text| *text = None);
            self.not_json |= 1 << row;
        }
        self.payloads.push(payload);
    }

    pub fn is_full(&self) -> bool {
        self.payloads.len() == Self::ROWS
    }

    /// The values of a column.
    pub fn column(&self, field: usize) -> &[Option<&'a [u8]>] {
        let from = field * Self::ROWS;
        &self.texts[from..from + self.payloads.len()]
    }

    pub fn payloads(&self) -> &[Payload<'a>] {
        &self.payloads
    }

    pub fn not_json(&self) -> u64 {
        self.not_json
    }

    /// Removes all rows.
    pub fn clear(&mut self) {
        self.texts.fill(None);
        self.payloads.clear();
        self.not_json = 0;
    }
}
