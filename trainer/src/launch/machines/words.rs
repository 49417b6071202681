//! What launchers say to each other: one line of JSON each, bounded. Pure.

use std::io::{self, BufRead, Read as _};

use serde::{Deserialize, Serialize};

use super::hello::Hello;
use crate::{
    Error, ErrorKind,
    launch::accord::{Berth, Decision, Seen},
};

/// Longest line; a configuration has about 10 kB.
const LONGEST: u64 = 1 << 20;

/// A line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Word {
    /// To node 0: who this launcher is. The first line of every connection.
    Hello(Box<Hello>),
    /// From node 0: it does not take part, or there is no run.
    Refused(Refusal),
    /// From node 0: start ranks.
    Start(Berth),
    /// To node 0: what became of the ranks here.
    Fell { restart: u32, seen: Seen },
    /// From node 0: end the ranks.
    Stop { restart: u32, said: String },
    /// To node 0: no rank is left here.
    Ended { restart: u32 },
    /// From node 0: what comes next.
    Verdict(Decision),
    /// Still here.
    Beat,
}

/// Why a launcher does not take part, or nobody does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Refusal {
    pub(super) ground: Ground,
    pub(super) said: String,
    pub(super) hint: String,
}

/// What kind of reason it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Ground {
    /// Something does not fit.
    Unfit,
    /// Another launcher, or another program, has what it wants.
    Taken,
    /// Others did not come.
    Alone,
    /// Node 0 could not begin.
    Failed,
}

impl Refusal {
    pub(super) fn new(ground: Ground, said: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { ground, said: said.into(), hint: hint.into() }
    }

    pub(super) fn of(error: &Error) -> Self {
        let ground = match error.kind() {
            ErrorKind::Config => Ground::Unfit,
            ErrorKind::Conflict => Ground::Taken,
            ErrorKind::Peer => Ground::Alone,
            _ => Ground::Failed,
        };
        Self::new(ground, error.to_string(), error.hint_text().unwrap_or_default())
    }

    pub(super) fn error(&self) -> Error {
        let kind = match self.ground {
            Ground::Unfit => ErrorKind::Config,
            Ground::Taken => ErrorKind::Conflict,
            Ground::Alone => ErrorKind::Peer,
            Ground::Failed => ErrorKind::Io,
        };
        let error = Error::new(kind, self.said.clone());
        if self.hint.is_empty() { error } else { error.hint(self.hint.clone()) }
    }
}

/// As a line.
pub(super) fn line(word: &Word) -> io::Result<Vec<u8>> {
    let mut line = serde_json::to_vec(word)?;
    line.push(b'\n');
    Ok(line)
}

/// The next line; none at the end.
///
/// # Errors
/// `InvalidData` for what is no such line, or is too long; else the connection's.
pub(super) fn read(from: &mut impl BufRead) -> io::Result<Option<Word>> {
    let mut line = Vec::new();
    from.take(LONGEST).read_until(b'\n', &mut line)?;
    match line.last() {
        None => Ok(None),
        Some(b'\n') => serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error)),
        Some(_) => Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::launch::{Outcome, accord::Then};

    #[test]
    fn lines_read_back_and_what_is_no_line_is_refused() {
        let words = [
            Word::Fell { restart: 1, seen: Seen::Lost("no \"more\"\n".to_owned()) },
            Word::Verdict(Decision { said: "over".to_owned(), then: Then::End(Outcome::Stopped(15)) }),
            Word::Beat,
        ];
        let mut bytes = Vec::new();
        for word in &words {
            bytes.extend(line(word).unwrap());
        }
        let mut from = bytes.as_slice();
        for word in words {
            assert_eq!(read(&mut from).unwrap(), Some(word));
        }
        assert_eq!(read(&mut from).unwrap(), None);
        for wrong in ["GET / HTTP/1.1\r\n", "\"Beat\"", "{\"Hello\":{}}\n", "\u{0}\n"] {
            let error = read(&mut wrong.as_bytes()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{wrong}");
        }
        let endless = vec![b'['; 3 << 20];
        assert!(read(&mut endless.as_slice()).is_err());
    }
}
