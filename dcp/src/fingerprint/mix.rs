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
    let mut state = columns(u128::from(index) | u128::from(bits) << 64);
    for key in ROUND_KEYS {
        state = round(state, columns(key));
    }
    let [a, b, c, d] = state.map(u64::from);
    [a | b << 32, c | d << 32]
}

/// One round on the four columns of the block.
fn round([a, b, c, d]: [u32; 4], key: [u32; 4]) -> [u32; 4] {
    let [k0, k1, k2, k3] = key;
    [column(a, b, c, d) ^ k0, column(b, c, d, a) ^ k1, column(c, d, a, b) ^ k2, column(d, a, b, c) ^ k3]
}

/// The column whose rows ShiftRows takes from these four.
fn column(a: u32, b: u32, c: u32, d: u32) -> u32 {
    let byte = |column: u32, row: usize| usize::from(column.to_le_bytes()[row]);
    TABLES[0][byte(a, 0)] ^ TABLES[1][byte(b, 1)] ^ TABLES[2][byte(c, 2)] ^ TABLES[3][byte(d, 3)]
}

fn columns(block: u128) -> [u32; 4] {
    let mut columns = [0; 4];
    for (column, bytes) in columns.iter_mut().zip(block.to_le_bytes().as_chunks::<4>().0) {
        *column = u32::from_le_bytes(*bytes);
    }
    columns
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
