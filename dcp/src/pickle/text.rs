//! The literals of protocol 0, and text that is not quite UTF-8.

/// Most digits of a decimal int: converting is quadratic, and CPython draws the same line.
const MAX_DIGITS: usize = 4300;

/// A decimal int as little-endian two's complement.
pub(super) fn decimal(text: &[u8]) -> Result<Vec<u8>, &'static str> {
    let (negative, digits) = match text {
        [b'-', digits @ ..] => (true, digits),
        [b'+', digits @ ..] | digits => (false, digits),
    };
    if digits.is_empty() || !digits.iter().all(u8::is_ascii_digit) {
        return Err("something else than an int");
    }
    if digits.len() > MAX_DIGITS {
        return Err("an int of more than 4300 digits");
    }
    let mut limbs: Vec<u32> = Vec::new();
    for chunk in digits.chunks(9) {
        let (mut scale, mut carry) = (1_u64, 0_u64);
        for digit in chunk {
            (scale, carry) = (scale * 10, carry * 10 + u64::from(digit - b'0'));
        }
        for limb in &mut limbs {
            let [a, b, c, d, e, f, g, h] = (u64::from(*limb) * scale + carry).to_le_bytes();
            *limb = u32::from_le_bytes([a, b, c, d]);
            carry = u64::from(u32::from_le_bytes([e, f, g, h]));
        }
        limbs.extend(u32::try_from(carry).ok().filter(|c| *c > 0));
    }
    let mut bytes: Vec<u8> = limbs.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.push(0);
    if negative {
        negate(&mut bytes);
    }
    Ok(bytes)
}

fn negate(bytes: &mut [u8]) {
    let mut carry = true;
    for byte in bytes {
        (*byte, carry) = (!*byte).overflowing_add(u8::from(carry));
    }
}

/// The bytes of a quoted Python 2 str literal.
pub(super) fn unquote(line: &[u8]) -> Result<Vec<u8>, &'static str> {
    let ([b'\'', inner @ .., b'\''] | [b'"', inner @ .., b'"']) = line else {
        return Err("a string without quotes");
    };
    let mut out = Vec::with_capacity(inner.len());
    let mut rest = inner;
    while let [first, tail @ ..] = rest {
        rest = tail;
        if *first == b'\\' { rest = unescape(tail, &mut out)? } else { out.push(*first) }
    }
    Ok(out)
}

/// One escape after its backslash; returns what follows it.
fn unescape<'a>(text: &'a [u8], out: &mut Vec<u8>) -> Result<&'a [u8], &'static str> {
    let (byte, rest) = match text {
        [b'x', high, low, rest @ ..] => (hex(&[*high, *low]).and_then(|v| u8::try_from(v).ok()), rest),
        [b'n', rest @ ..] => (Some(b'\n'), rest),
        [b'r', rest @ ..] => (Some(b'\r'), rest),
        [b't', rest @ ..] => (Some(b'\t'), rest),
        [b'0', rest @ ..] => (Some(0), rest),
        [quoted @ (b'\\' | b'\'' | b'"'), rest @ ..] => (Some(*quoted), rest),
        _ => (None, text),
    };
    out.push(byte.ok_or("an escape that Python does not write")?);
    Ok(rest)
}

fn hex(digits: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(digits).ok().filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    u32::from_str_radix(text, 16).ok()
}

/// Python's `raw-unicode-escape`: Latin-1 with `\uXXXX` and `\UXXXXXXXX`, into extended UTF-8.
pub(super) fn raw_unicode(line: &[u8]) -> Result<Vec<u8>, &'static str> {
    let mut out = Vec::with_capacity(line.len());
    let mut rest = line;
    while let [first, tail @ ..] = rest {
        let digits = match (first, tail.first()) {
            (b'\\', Some(b'u')) => 4,
            (b'\\', Some(b'U')) => 8,
            _ => 0,
        };
        if digits == 0 {
            push_code(u32::from(*first), &mut out)?;
            rest = tail;
        } else {
            let code = tail.get(1..=digits).and_then(hex).ok_or("a \\u escape without its digits")?;
            push_code(code, &mut out)?;
            rest = tail.get(1 + digits..).unwrap_or_default();
        }
    }
    Ok(out)
}

/// Appends a code point, lone surrogates included, as extended UTF-8.
fn push_code(code: u32, out: &mut Vec<u8>) -> Result<(), &'static str> {
    if let Some(c) = char::from_u32(code) {
        out.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes());
        return Ok(());
    }
    if code > 0xffff {
        return Err("a code point beyond Unicode");
    }
    let [low, high, ..] = code.to_le_bytes();
    out.extend_from_slice(&[0xe0 | high >> 4, 0x80 | (high & 0x0f) << 2 | low >> 6, 0x80 | low & 0x3f]);
    Ok(())
}

/// Whether `bytes` are UTF-8 but for lone surrogates (Python's `surrogatepass`).
pub(super) fn is_wild_utf8(bytes: &[u8]) -> bool {
    let mut rest = bytes;
    loop {
        let Err(error) = std::str::from_utf8(rest) else { return true };
        match rest.get(error.valid_up_to()..) {
            Some([0xed, 0xa0..=0xbf, 0x80..=0xbf, tail @ ..]) => rest = tail,
            _ => return false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decimal_ints_become_twos_complement() {
        for value in
            [0_i128, 1, -1, 255, 256, -128, -129, i128::from(i64::MAX), i128::from(i64::MIN), 1 << 100]
        {
            let bytes = decimal(value.to_string().as_bytes()).unwrap();
            let fill = if value < 0 { 0xff } else { 0 };
            let mut wide = [fill; 16];
            wide[..bytes.len().min(16)].copy_from_slice(&bytes[..bytes.len().min(16)]);
            assert_eq!(i128::from_le_bytes(wide), value);
        }
        assert!(decimal(b"12x").is_err() && decimal(b"").is_err() && decimal(&[b'9'; 4301]).is_err());
    }

    #[test]
    fn text_with_lone_surrogates_is_told_from_broken_text() {
        assert!(is_wild_utf8(b"a\xed\xb3\xbfb") && is_wild_utf8("é".as_bytes()));
        assert!(!is_wild_utf8(b"\xff") && !is_wild_utf8(b"\xed\xb3"));
        assert_eq!(raw_unicode(b"a\\udcffb").unwrap(), b"a\xed\xb3\xbfb");
        assert_eq!(raw_unicode(b"\\u00e9\xe9").unwrap(), "éé".as_bytes());
        assert!(raw_unicode(b"\\u12").is_err() && raw_unicode(b"\\UFFFFFFFF").is_err());
    }

    #[test]
    fn quoted_strings_lose_their_escapes() {
        assert_eq!(unquote(b"'a\\n\\x00\\\\b\\''").unwrap(), b"a\n\0\\b'");
        assert!(unquote(b"'").is_err() && unquote(b"'\\q'").is_err() && unquote(b"abc").is_err());
    }
}
