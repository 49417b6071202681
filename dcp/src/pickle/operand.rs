//! What follows an opcode: lengths, lines, literals, each compared with what is left before it is trusted.

use super::error::PickleErrorKind as Kind;
use super::machine::Machine;
use super::text;

impl<'a> Machine<'a> {
    pub(super) fn take(&mut self, len: u64) -> Result<&'a [u8], Kind> {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let left = rest.len();
        let taken = usize::try_from(len).ok().and_then(|len| rest.get(..len));
        let taken = taken.ok_or(Kind::Truncated { op: self.op, wanted: len, left: left as u64 })?;
        self.at += taken.len();
        Ok(taken)
    }

    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], Kind> {
        let bytes = self.take(N as u64)?;
        bytes.try_into().map_err(|_| Kind::Truncated {
            op: self.op,
            wanted: N as u64,
            left: bytes.len() as u64,
        })
    }

    /// A line without its end.
    pub(super) fn line(&mut self) -> Result<&'a [u8], Kind> {
        let rest = self.input.get(self.at..).unwrap_or_default();
        let Some(len) = rest.iter().position(|b| *b == b'\n') else {
            return Err(Kind::Truncated {
                op: self.op,
                wanted: rest.len() as u64 + 1,
                left: rest.len() as u64,
            });
        };
        let line = self.take(len as u64)?;
        self.take(1)?;
        Ok(line)
    }

    pub(super) fn len1(&mut self) -> Result<u64, Kind> {
        self.array().map(|[b]| u64::from(b))
    }

    pub(super) fn len4(&mut self) -> Result<u64, Kind> {
        self.array().map(|b| u64::from(u32::from_le_bytes(b)))
    }

    pub(super) fn len8(&mut self) -> Result<u64, Kind> {
        self.array().map(u64::from_le_bytes)
    }

    pub(super) fn signed_len4(&mut self) -> Result<u64, Kind> {
        let len = self.array().map(i32::from_le_bytes)?;
        u64::try_from(len).map_err(|_| self.literal("a negative length"))
    }

    pub(super) fn protocol(&mut self) -> Result<(), Kind> {
        match self.array()? {
            [0..=5] => Ok(()),
            [newer] => Err(Kind::Protocol(newer)),
        }
    }

    /// Frames only tell how much to read ahead; but one that passes the end tells that bytes are missing.
    pub(super) fn frame(&mut self) -> Result<(), Kind> {
        let wanted = self.len8()?;
        let left = self.input.len().saturating_sub(self.at) as u64;
        if wanted > left { Err(Kind::Truncated { op: self.op, wanted, left }) } else { Ok(()) }
    }

    pub(super) fn int(&mut self, value: i64) -> Result<(), Kind> {
        self.make(|a| a.int(value))
    }

    pub(super) fn big_int(&mut self, len: u64) -> Result<(), Kind> {
        let bytes = self.take(len)?;
        self.make(|a| a.big_int(bytes))
    }

    pub(super) fn decimal_int(&mut self) -> Result<(), Kind> {
        match self.line()? {
            b"01" => self.make(|a| a.bool(true)),
            b"00" => self.make(|a| a.bool(false)),
            digits => self.decimal(digits),
        }
    }

    pub(super) fn decimal_long(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        self.decimal(line.strip_suffix(b"L").unwrap_or(line))
    }

    pub(super) fn decimal(&mut self, digits: &[u8]) -> Result<(), Kind> {
        let bytes = text::decimal(digits).map_err(|why| self.literal(why))?;
        self.make(|a| a.big_int(&bytes))
    }

    pub(super) fn decimal_float(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let value = std::str::from_utf8(line).ok().and_then(|t| t.trim().parse().ok());
        let value = value.ok_or_else(|| self.literal("something else than a float"))?;
        self.make(|a| a.float(value))
    }

    pub(super) fn unicode(&mut self, len: u64) -> Result<(), Kind> {
        let bytes = self.take(len)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => self.make(|a| a.str(text)),
            Err(_) if text::is_wild_utf8(bytes) => self.make(|a| a.wild_str(bytes)),
            Err(_) => Err(self.literal("text that is not UTF-8")),
        }
    }

    /// A str of Python 2: text where it is UTF-8 (as torch's `load` reads it), bytes otherwise.
    pub(super) fn old_string(&mut self, len: u64) -> Result<(), Kind> {
        let bytes = self.take(len)?;
        self.old_text(bytes)
    }

    pub(super) fn old_text(&mut self, bytes: &[u8]) -> Result<(), Kind> {
        match std::str::from_utf8(bytes) {
            Ok(text) => self.make(|a| a.str(text)),
            Err(_) => self.make(|a| a.bytes(bytes)),
        }
    }

    pub(super) fn quoted_string(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let bytes = text::unquote(line).map_err(|why| self.literal(why))?;
        self.arena.budget.charge(bytes.len())?;
        self.old_text(&bytes)
    }

    pub(super) fn escaped_unicode(&mut self) -> Result<(), Kind> {
        let line = self.line()?;
        let bytes = text::raw_unicode(line).map_err(|why| self.literal(why))?;
        self.arena.budget.charge(bytes.len())?;
        match std::str::from_utf8(&bytes) {
            Ok(text) => self.make(|a| a.str(text)),
            Err(_) => self.make(|a| a.wild_str(&bytes)),
        }
    }

    pub(super) fn bytes(&mut self, len: u64) -> Result<(), Kind> {
        let bytes = self.take(len)?;
        self.make(|a| a.bytes(bytes))
    }

    pub(super) fn byte_array(&mut self, len: u64) -> Result<(), Kind> {
        let bytes = self.take(len)?;
        self.make(|a| a.byte_array(bytes))
    }
}
