//! Block tables: round trips, lookups, and every kind of damage by its error.

use proptest::prelude::*;

use super::*;

fn digest(n: usize) -> Sha256Digest {
    Sha256Digest::of(&n.to_le_bytes())
}

fn plain(lengths: &[u32]) -> BlockTable {
    let mut builder = BlockTableBuilder::new();
    for (n, &len) in lengths.iter().enumerate() {
        builder.push(len, len, BlockCodec::None, digest(n)).unwrap();
    }
    builder.finish()
}

fn coded() -> BlockTable {
    let mut builder = BlockTableBuilder::new();
    builder.push(1000, 1000, BlockCodec::None, digest(0)).unwrap();
    builder.push(BLOCK_LEN, 77, BlockCodec::Zstd, digest(1)).unwrap();
    builder.push(500, 40, BlockCodec::Planes4, digest(2)).unwrap();
    builder.finish()
}

#[test]
fn the_encoding_of_version_1_is_frozen() {
    let table = plain(&[16, BLOCK_LEN, 5]);
    let bytes = table.encode();
    assert_eq!(bytes.len(), 32 + 3 * 36);
    assert_eq!(&bytes[..16], b"CKPTBLKS\x01\0\0\0\0\0\0\0");
    assert_eq!(bytes[16..32], [[21, 0, 16, 0, 0, 0, 0, 0], [3, 0, 0, 0, 0, 0, 0, 0]].concat());
    assert_eq!(bytes[32..44], [[16, 0, 0, 0], [0, 0, 16, 0], [5, 0, 0, 0]].concat());
    assert_eq!(&bytes[44..76], digest(0).as_bytes());
    assert_eq!(table.root(), Sha256Digest::of(&bytes));
}

#[test]
fn tables_with_and_without_codecs_read_back() {
    for table in [plain(&[]), plain(&[1]), plain(&[16, BLOCK_LEN, 5]), coded()] {
        assert_eq!(BlockTable::parse(&table.encode()).unwrap(), table);
        let text = serde_json::to_string(&table).unwrap();
        assert_eq!(serde_json::from_str::<BlockTable>(&text).unwrap(), table);
    }
    let block = coded().block(1).unwrap();
    let logical = 1000..1000 + u64::from(BLOCK_LEN);
    assert_eq!((block.stored, block.logical, block.codec), (1000..1077, logical, BlockCodec::Zstd));
}

#[test]
fn bytes_lead_to_the_blocks_that_hold_them() {
    let table = plain(&[10, 20, 30]);
    for (bytes, blocks, around) in [
        (0..60, 0..3, 0..60),
        (0..10, 0..1, 0..10),
        (9..11, 0..2, 0..30),
        (10..30, 1..2, 10..30),
        (59..60, 2..3, 30..60),
        (10..10, 1..1, 10..10),
        (60..60, 3..3, 60..60),
        (55..1000, 2..3, 30..60),
    ] {
        assert_eq!(table.covering(&bytes), blocks, "{bytes:?}");
        assert_eq!(table.around(&bytes), around, "{bytes:?}");
    }
}

#[test]
fn logical_bytes_lead_to_compressed_blocks_and_these_to_what_is_stored() {
    let (table, mib) = (coded(), u64::from(BLOCK_LEN));
    assert_eq!((table.file_len(), table.logical_len()), (1117, 1500 + mib));
    for (bytes, blocks, stored) in [
        (0..1000, 0..1, 0..1000),
        (1000..1001, 1..2, 1000..1077),
        (999..1000 + mib, 0..2, 0..1077),
        (1000 + mib..1001 + mib, 2..3, 1077..1117),
        (1499 + mib..u64::MAX, 2..3, 1077..1117),
        (1500 + mib..u64::MAX, 3..3, 1117..1117),
    ] {
        assert_eq!(table.covering(&bytes), blocks, "{bytes:?}");
        assert_eq!(table.stored_of(&blocks), stored, "{bytes:?}");
    }
    assert_eq!(table.around(&(1200..1300)), 1000..1000 + mib);
}

#[test]
fn a_flipped_bit_is_named_by_block_and_range() {
    let mut builder = BlockTableBuilder::new();
    builder.push(3, 3, BlockCodec::None, Sha256Digest::of(b"abc")).unwrap();
    builder.push(3, 3, BlockCodec::None, Sha256Digest::of(b"def")).unwrap();
    let table = builder.finish();
    assert_eq!(table.check(1, b"def"), Ok(()));
    let mismatch = table.check(1, b"deg").unwrap_err();
    assert_eq!((mismatch.block, mismatch.range.clone()), (1, 3..6));
    assert!(mismatch.to_string().starts_with("bytes 3..6 (block 1) hash to"), "{mismatch}");
    assert!(table.check(2, b"").is_err());
}

#[test]
fn blocks_that_break_a_rule_are_refused() {
    for (logical, stored, codec) in [
        (0, 0, BlockCodec::None),
        (5, 0, BlockCodec::Zstd),
        (BLOCK_LEN + 1, BLOCK_LEN + 1, BlockCodec::None),
        (5, 4, BlockCodec::None),
        (5, 5, BlockCodec::Zstd),
        (5, u32::MAX, BlockCodec::Planes4),
    ] {
        let error = BlockTableBuilder::new().push(logical, stored, codec, digest(0)).unwrap_err();
        assert!(matches!(error, BlockTableError::Block { block: 0, .. }), "{error}");
    }
}

#[test]
fn every_kind_of_damage_to_a_table_has_its_error() {
    let good = coded().encode();
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        BlockTable::parse(&bytes).unwrap_err()
    };
    assert_eq!(BlockTable::parse(b""), Err(BlockTableError::Magic));
    assert_eq!(BlockTable::parse(&good[..20]), Err(BlockTableError::Length { expected: 32, found: 20 }));
    assert!(matches!(BlockTable::parse(&good[..good.len() - 1]), Err(BlockTableError::Length { .. })));
    assert!(serde_json::from_str::<BlockTable>("\"4\"").is_err());
    assert!(matches!(with(0, b'X'), BlockTableError::Magic));
    assert!(matches!(with(8, 2), BlockTableError::Version { major: 2, .. }));
    assert!(matches!(with(12, 3), BlockTableError::Version { flags: 3, .. }));
    assert!(matches!(with(12, 0), BlockTableError::Length { .. }));
    assert!(matches!(with(16, 0), BlockTableError::Sum { .. }));
    assert!(matches!(with(31, 0xff), BlockTableError::Length { .. }));
    assert!(matches!(with(32 + 24 + 1, 9), BlockTableError::Block { block: 1, .. }));
    // Columns for codecs without a codec would be a second encoding of a plain table.
    let mut plain_as_coded = coded();
    plain_as_coded.coded = vec![(1000, BlockCodec::None), (1077, BlockCodec::None), (1117, BlockCodec::None)];
    assert!(BlockTable::parse(&plain_as_coded.encode()).is_err());
}

proptest! {
    #[test]
    fn a_changed_table_never_reads_as_the_same(at in any::<prop::sample::Index>(), bit in 0_u32..8) {
        let table = coded();
        let mut bytes = table.encode();
        let at = at.index(bytes.len());
        bytes[at] ^= 1_u8 << bit;
        // Only the minor version may differ without harm.
        if !(10..12).contains(&at) {
            prop_assert_ne!(BlockTable::parse(&bytes), Ok(table));
        }
    }

    #[test]
    fn bytes_from_anywhere_are_a_table_or_an_error(
        mut bytes in prop::collection::vec(any::<u8>(), 0..200), counted in any::<bool>(),
    ) {
        if counted && bytes.len() >= 32 {
            bytes[..16].copy_from_slice(b"CKPTBLKS\x01\0\0\0\0\0\0\0");
        }
        if let Ok(table) = BlockTable::parse(&bytes) {
            prop_assert_eq!(table.encode(), bytes);
        }
    }
}
