//! CRC-32C (Castagnoli, reflected 0x82F63B78), and the mask that record files put over it.

const POLYNOMIAL: u32 = 0x82F6_3B78;
const TABLE: [u32; 256] = table();

const fn table() -> [u32; 256] {
    let mut table = [0; 256];
    let mut index: u32 = 0;
    while index < 256 {
        let mut value = index;
        let mut bit = 0;
        while bit < 8 {
            value = if value & 1 == 1 { (value >> 1) ^ POLYNOMIAL } else { value >> 1 };
            bit += 1;
        }
        table[index as usize] = value;
        index += 1;
    }
    table
}

fn crc32c(bytes: &[u8]) -> u32 {
    let next = |crc: u32, byte: &u8| {
        let index = (crc ^ u32::from(*byte)) & 0xff;
        TABLE.get(index as usize).copied().unwrap_or(0) ^ (crc >> 8)
    };
    !bytes.iter().fold(!0, next)
}

/// Turned and shifted, so that a checksum of data that holds checksums is still one.
pub(super) fn masked(bytes: &[u8]) -> u32 {
    crc32c(bytes).rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_check_values_of_rfc_3720_come_out() {
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc32c(&[0xff; 32]), 0x62a8_ab43);
    }
}
