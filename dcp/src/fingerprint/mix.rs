//! The portable mix: four AES rounds by table lookup, the meaning of every other implementation.
//!
//! Tables are built at compile time from the S-box formula, so that nothing here is copied from a listing.

/// The first 64 bytes of the fractional part of π, as four round keys.
pub(super) const ROUND_KEYS: [u128; 4] = [
    0x243f_6a88_85a3_08d3_1319_8a2e_0370_7344_u128.swap_bytes(),
    0xa409_3822_299f_31d0_082e_fa98_ec4e_6c89_u128.swap_bytes(),
    0x4528_21e6_38d0_1377_be54_66cf_34e9_0c6c_u128.swap_bytes(),
    0xc0ac_29b7_c97c_50dd_3f84_d5b5_b547_0917_u128.swap_bytes(),
];

/// `tables[row][x]`: what the byte `x`, standing in `row` after ShiftRows, adds to its column through SubBytes and
/// MixColumns. The byte of row 0 is the lowest of the word.
static TABLES: [[u32; 256]; 4] = tables();

/// The two lanes that the element `(index, bits)` adds to a sum.
pub(super) fn mix(index: u64, bits: u64) -> [u64; 2] {
    let mut block = u128::from(index) | u128::from(bits) << 64;
    for key in ROUND_KEYS {
        block = round(block, key);
    }
    [low(block), low(block >> 64)]
}

fn round(block: u128, key: u128) -> u128 {
    let mut mixed = 0;
    for column in 0..4 {
        let word = (0..4).fold(0, |word, row| {
            let byte = block >> (32 * ((column + row) % 4) + 8 * row) & 0xff;
            word ^ TABLES[row][byte as usize]
        });
        mixed |= u128::from(word) << (32 * column);
    }
    mixed ^ key
}

#[expect(clippy::cast_possible_truncation, reason = "the low half is what is asked for")]
fn low(block: u128) -> u64 {
    block as u64
}

const fn tables() -> [[u32; 256]; 4] {
    let mut tables = [[0; 256]; 4];
    let mut x = 0_u8;
    loop {
        let s = substitute(x);
        let column = u32::from_le_bytes([double(s), s, s, double(s) ^ s]);
        tables[0][x as usize] = column;
        tables[1][x as usize] = column.rotate_left(8);
        tables[2][x as usize] = column.rotate_left(16);
        tables[3][x as usize] = column.rotate_left(24);
        if x == u8::MAX {
            return tables;
        }
        x += 1;
    }
}

/// SubBytes of one byte: the inverse in GF(2⁸), then the affine map.
const fn substitute(x: u8) -> u8 {
    let mut y = 1;
    let mut power = 0;
    while power < 254 {
        y = multiply(y, x);
        power += 1;
    }
    y ^ y.rotate_left(1) ^ y.rotate_left(2) ^ y.rotate_left(3) ^ y.rotate_left(4) ^ 0x63
}

const fn multiply(mut a: u8, mut b: u8) -> u8 {
    let mut product = 0;
    while b != 0 {
        if b & 1 != 0 {
            product ^= a;
        }
        a = double(a);
        b >>= 1;
    }
    product
}

const fn double(a: u8) -> u8 {
    (a << 1) ^ (if a & 0x80 == 0 { 0 } else { 0x1b })
}
