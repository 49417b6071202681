//! From inputs that are known to others: bytes and structure changed by chance.

use parsers::Target;

use crate::chance::Chance;

/// Longest input that is made.
const LONGEST: usize = 256 << 10;

const NUMBERS: [u64; 12] = [
    0,
    1,
    0x7f,
    0xff,
    0x7fff,
    0xffff,
    0x7fff_ffff,
    0xffff_ffff,
    1 << 32,
    i64::MAX as u64,
    u64::MAX - 7,
    u64::MAX,
];

/// The next input.
pub(super) fn input(target: &Target, seeds: &[Vec<u8>], chance: &mut Chance) -> Vec<u8> {
    let mut bytes = chance.of(seeds).cloned().unwrap_or_default();
    for _ in 0..=chance.below(5) {
        change(&mut bytes, target, seeds, chance);
        bytes.truncate(LONGEST);
    }
    match target.mend {
        Some(mend) if chance.below(2) == 0 => mend(bytes),
        _ => bytes,
    }
}

fn change(bytes: &mut Vec<u8>, target: &Target, seeds: &[Vec<u8>], chance: &mut Chance) {
    let at = chance.index(bytes.len() + 1);
    let len = chance.index((bytes.len() - at).min(64) + 1);
    match chance.below(12) {
        0 => flip(bytes, chance),
        1 => set(bytes, at, &[chance.next().to_le_bytes()[0]]),
        2 => set(bytes, at, &number(chance).to_le_bytes()),
        3 => set(bytes, at, &number(chance).to_le_bytes()[..4]),
        4 => bytes.truncate(at),
        5 => drop(bytes.drain(at..at + len)),
        6 => insert(bytes, at, &chance.next().to_le_bytes()),
        7 => {
            let again = bytes.get(at..at + len).unwrap_or_default().to_vec();
            insert(bytes, at, &again);
        }
        8 => {
            let other = chance.of(seeds).cloned().unwrap_or_default();
            let from = chance.index(other.len() + 1);
            bytes.truncate(at);
            bytes.extend(other.get(from..).unwrap_or_default());
        }
        9 => digits(bytes, chance),
        10 => {
            let word = chance.of(target.words).copied().unwrap_or("\0");
            insert(bytes, at, word.as_bytes());
        }
        _ => {
            let word = chance.of(target.words).copied().unwrap_or("{");
            set(bytes, at, word.as_bytes());
        }
    }
}

fn number(chance: &mut Chance) -> u64 {
    match chance.below(3) {
        0 => chance.below(4096),
        _ => chance.of(&NUMBERS).copied().unwrap_or(0),
    }
}

fn flip(bytes: &mut [u8], chance: &mut Chance) {
    let at = chance.index(bytes.len());
    let bit = 1 << chance.below(8);
    bytes.get_mut(at).into_iter().for_each(|byte| *byte ^= bit);
}

fn set(bytes: &mut [u8], at: usize, what: &[u8]) {
    bytes.iter_mut().skip(at).zip(what).for_each(|(to, from)| *to = *from);
}

fn insert(bytes: &mut Vec<u8>, at: usize, what: &[u8]) {
    let tail = bytes.split_off(at.min(bytes.len()));
    bytes.extend(what);
    bytes.extend(tail);
}

/// Another number where a number is written in digits.
fn digits(bytes: &mut Vec<u8>, chance: &mut Chance) {
    let starts: Vec<usize> = (0..bytes.len())
        .filter(|at| {
            let is_digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
            is_digit(*at) && !at.checked_sub(1).is_some_and(is_digit)
        })
        .take(4096)
        .collect();
    let Some(start) = chance.of(&starts).copied() else { return };
    let end = (start..bytes.len())
        .find(|at| !bytes.get(*at).is_some_and(u8::is_ascii_digit))
        .unwrap_or(bytes.len());
    let text = number(chance).to_string();
    bytes.splice(start..end, text.into_bytes());
}
