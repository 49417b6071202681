//! As much of HTTP/1.1 as a client of ours sends: bodies with a length, connections that are used again.

use std::collections::BTreeMap;
use std::io::{self, BufRead, Write};
use std::net::TcpStream;

/// No part of an upload in a test is larger.
const LONGEST_BODY: usize = 256 << 20;

/// A request.
#[derive(Debug)]
pub(super) struct Request {
    pub(super) method: String,
    /// Decoded, without the slash in front: `bucket/name`.
    pub(super) path: String,
    pub(super) query: BTreeMap<String, String>,
    /// Names in lower case.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) body: Vec<u8>,
}

impl Request {
    /// Whether it is a create of one object: only one that must not be there.
    pub(super) fn creates(&self) -> bool {
        self.method == "PUT" && self.headers.contains_key("x-goog-if-generation-match")
    }

    pub(super) fn shows(&self, token: &str) -> bool {
        self.headers.get("authorization").and_then(|value| value.strip_prefix("Bearer ")) == Some(token)
    }
}

/// The next request of a connection; none at its end.
pub(super) fn read(reader: &mut impl BufRead) -> io::Result<Option<Request>> {
    let Some(first) = line(reader)? else { return Ok(None) };
    let mut words = first.split(' ');
    let (Some(method), Some(target)) = (words.next(), words.next()) else {
        return Err(bad("no request line"));
    };
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let mut headers = BTreeMap::new();
    while let Some(header) = line(reader)?.filter(|header| !header.is_empty()) {
        let (name, value) = header.split_once(':').ok_or_else(|| bad("a header without a colon"))?;
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(Ok(0), |length| length.parse::<usize>());
    let length =
        length.ok().filter(|length| *length <= LONGEST_BODY).ok_or_else(|| bad("no length that is taken"))?;
    if headers.contains_key("transfer-encoding") {
        return Err(bad("a body without a length"));
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body)?;
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    // In a query a plus is a space.
    let query = pairs.map(|(key, value)| (decoded(key), decoded(&value.replace('+', " ")))).collect();
    let path = decoded(path.trim_start_matches('/'));
    Ok(Some(Request { method: method.to_owned(), path, query, headers, body }))
}

fn line(reader: &mut impl BufRead) -> io::Result<Option<String>> {
    let mut line = String::new();
    if reader.read_line(&mut line)? == 0 {
        return Ok(None);
    }
    Ok(Some(line.trim_end_matches(['\r', '\n']).to_owned()))
}

fn bad(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, why.to_owned())
}

/// `%41` is `A`.
pub(super) fn decoded(text: &str) -> String {
    let (mut bytes, mut rest) = (Vec::new(), text.as_bytes());
    while let Some((first, after)) = rest.split_first() {
        let hex = after.get(..2).and_then(|hex| std::str::from_utf8(hex).ok());
        match (first, hex.and_then(|hex| u8::from_str_radix(hex, 16).ok())) {
            (b'%', Some(byte)) => {
                bytes.push(byte);
                rest = after.get(2..).unwrap_or_default();
            }
            _ => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// Text within XML.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// A response.
#[derive(Debug, Default)]
pub(super) struct Response {
    pub(super) status: u16,
    pub(super) headers: Vec<(&'static str, String)>,
    pub(super) body: Vec<u8>,
}

impl Response {
    pub(super) fn new(status: u16) -> Self {
        Self { status, ..Self::default() }
    }

    pub(super) fn xml(text: &str) -> Self {
        Self {
            status: 200,
            body: format!("<?xml version='1.0' encoding='UTF-8'?>{text}").into(),
            ..Self::default()
        }
    }

    pub(super) fn failure(status: u16, code: &str, message: &str) -> Self {
        let failure = Self::xml(&format!("<Error><Code>{code}</Code><Message>{message}</Message></Error>"));
        Self { status, ..failure }
    }

    pub(super) fn with(mut self, name: &'static str, value: impl Into<String>) -> Self {
        self.headers.push((name, value.into()));
        self
    }

    /// For a head, the length is told and the body is not sent.
    pub(super) fn write(&self, mut connection: &TcpStream, head: bool) -> io::Result<()> {
        let mut text = format!("HTTP/1.1 {} -\r\nContent-Length: {}\r\n", self.status, self.body.len());
        for (name, value) in &self.headers {
            text += &format!("{name}: {value}\r\n");
        }
        text += "\r\n";
        connection.write_all(text.as_bytes())?;
        connection.write_all(if head { &[] } else { &self.body })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_is_read_with_its_name_decoded() {
        let text = b"PUT /b/a%2Fb%20c%25?uploads&x=1+2%2B HTTP/1.1\r\nContent-Length: 3\r\nX-Y: z \r\n\r\nabcGET / HTTP/1.1\r\n\r\n";
        let mut reader = &text[..];
        let request = read(&mut reader).unwrap().unwrap();
        assert_eq!((request.method.as_str(), request.path.as_str()), ("PUT", "b/a/b c%"));
        assert_eq!(request.query, [("uploads".into(), String::new()), ("x".into(), "1 2+".into())].into());
        assert_eq!((request.headers["x-y"].as_str(), request.body.as_slice()), ("z", &b"abc"[..]));
        assert_eq!(read(&mut reader).unwrap().unwrap().method, "GET");
        assert!(read(&mut reader).unwrap().is_none());
    }
}
