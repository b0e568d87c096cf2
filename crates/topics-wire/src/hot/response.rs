//! The bytes of a response, as the ASGI application's server writes them.

use std::io::Write;

/// Optional header fields of a response.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtraHeaders {
    /// `Retry-After`, in seconds.
    pub retry_after: Option<u64>,
    /// `Connection: close`.
    pub close: bool,
}

/// The head of a JSON response. `status` is the status line and `common` the header lines of every
/// response, each with CR LF; `length` is the number of bytes of the body.
#[must_use]
pub fn response_head(status: &[u8], common: &[u8], extra: ExtraHeaders, length: usize) -> Vec<u8> {
    let mut out = Vec::with_capacity(status.len() + common.len() + 128);
    out.extend_from_slice(status);
    out.extend_from_slice(common);
    out.extend_from_slice(b"content-type: application/json\r\ncontent-length: ");
    // Writing to a vector cannot fail.
    let _ = write!(out, "{length}\r\n");
    if let Some(seconds) = extra.retry_after {
        let _ = write!(out, "retry-after: {seconds}\r\n");
    }
    if extra.close {
        out.extend_from_slice(b"connection: close\r\n");
    }
    out.extend_from_slice(b"\r\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn responses() {
        let plain =
            response_head(b"HTTP/1.1 200 OK\r\n", b"date: d\r\n", ExtraHeaders::default(), 2);
        assert_eq!(
            String::from_utf8(plain).unwrap(),
            "HTTP/1.1 200 OK\r\ndate: d\r\ncontent-type: application/json\r\n\
             content-length: 2\r\n\r\n"
        );
        let extra = ExtraHeaders { retry_after: Some(3), close: true };
        let refused = response_head(b"HTTP/1.1 429 X\r\n", b"", extra, 0);
        assert_eq!(
            String::from_utf8(refused).unwrap(),
            "HTTP/1.1 429 X\r\ncontent-type: application/json\r\ncontent-length: 0\r\n\
             retry-after: 3\r\nconnection: close\r\n\r\n"
        );
    }
}
