//! Reading compressed files: any box as from a plain file, only the blocks around it, and blocks that lie are named.

use std::sync::Arc;

use fqn::Dtype;
use proptest::prelude::*;
use reshard::Region;

use super::{
    super::{RegionReader, Verify, read_region},
    testing::{MemSource, Proof, Stored, Whole, grid},
};
use crate::{
    Cancel, ErrorKind, FindingCode, Silent,
    codec::Encoder,
    digest::{BLOCK_LEN, BlockCodec, BlockTable, BlockTableBuilder, Sha256Digest},
    ops::verify::{VerifyOptions, verify},
};

/// A source whose files are compressed, where that gains anything.
fn coded(whole: &Whole, cuts: &[u64], codec: BlockCodec) -> MemSource {
    let regions = grid(&whole.entry.shape, cuts);
    let mut source = MemSource::new(&[(whole.clone(), regions, Stored::Packed)], 2, Proof::Blocks);
    for file in 0..2 {
        let plain = source.tables[file].clone().unwrap();
        let (mut encoder, mut table, mut bytes) =
            (Encoder::new().unwrap(), BlockTableBuilder::new(), Vec::new());
        for (number, block) in plain.blocks().enumerate() {
            let range =
                usize::try_from(block.stored.start).unwrap()..usize::try_from(block.stored.end).unwrap();
            let part = &source.files[file][range];
            let codec = if number == 0 { BlockCodec::None } else { codec };
            let (codec, stored) = encoder.encode(codec, part).unwrap();
            push(&mut table, part.len(), codec, stored);
            bytes.extend_from_slice(stored);
        }
        replace(&mut source, file, bytes, table.finish());
    }
    source
}

fn push(table: &mut BlockTableBuilder, logical: usize, codec: BlockCodec, stored: &[u8]) {
    let [logical, len] = [logical, stored.len()].map(|len| u32::try_from(len).unwrap());
    table.push(logical, len, codec, Sha256Digest::of(stored)).unwrap();
}

fn replace(source: &mut MemSource, file: usize, bytes: Vec<u8>, table: BlockTable) {
    let entry = &mut source.catalog.files[file];
    (entry.size, entry.logical) = (table.file_len(), table.is_coded().then(|| table.logical_len()));
    source.seen.lock().unwrap()[file] = vec![0; bytes.len()];
    source.files[file] = bytes;
    source.tables[file] = Some(Arc::new(table));
}

/// The source with one block of file 1 stored as these bytes instead, with their digest.
fn with_block(mut source: MemSource, number: usize, stored: &[u8]) -> MemSource {
    let before = source.tables[1].clone().unwrap();
    let (mut table, mut bytes) = (BlockTableBuilder::new(), Vec::new());
    for (at, block) in before.blocks().enumerate() {
        let range = usize::try_from(block.stored.start).unwrap()..usize::try_from(block.stored.end).unwrap();
        let part = if at == number { stored.to_vec() } else { source.files[1][range].to_vec() };
        push(
            &mut table,
            usize::try_from(block.logical.end - block.logical.start).unwrap(),
            block.codec,
            &part,
        );
        bytes.extend(part);
    }
    replace(&mut source, 1, bytes, table.finish());
    source
}

fn large() -> Whole {
    Whole::new("w", Dtype::F32, &[1000, 1500]).smooth()
}

fn whole(source: &MemSource) -> Region {
    Region::whole(&source.catalog.registry.entries()[0].shape).unwrap()
}

#[test]
fn ten_rows_of_a_thousand_read_the_blocks_around_them_and_no_more() {
    let all = large();
    let source = coded(&all, &[1, 1], BlockCodec::Planes4);
    let (stored, logical) = source.catalog.file_bytes();
    assert!(stored < logical * 9 / 10, "{stored} of {logical}");
    for verify in [Verify::Records, Verify::None] {
        let rows = Region::new(&[500, 0], &[10, 1500]).unwrap();
        let reader = RegionReader::new(&source, verify);
        let mut bytes = vec![0; usize::try_from(reader.bytes(0, &rows).unwrap()).unwrap()];
        reader.read_into(0, &rows, &mut bytes).unwrap();
        assert_eq!(bytes, all.region(&rows));
        let (read, _) = reader.counts();
        assert!(read > 0 && read <= 2 * u64::from(BLOCK_LEN), "{read}");
    }
}

#[test]
fn a_long_read_takes_many_blocks_at_once() {
    let all = large();
    let source = coded(&all, &[1, 1], BlockCodec::Planes4);
    let reader = RegionReader::new(&source, Verify::Records);
    let mut bytes = vec![0; all.bytes.len()];
    reader.read_into(0, &whole(&source), &mut bytes).unwrap();
    assert_eq!(bytes, all.bytes);
    let (read, calls) = reader.counts();
    assert!(read <= source.catalog.files[0].size && calls <= 3, "{read} in {calls}");
}

#[test]
fn a_flipped_bit_of_a_compressed_block_is_found_and_named_by_what_it_holds() {
    let mut source = coded(&large(), &[2, 1], BlockCodec::Planes4);
    let block = source.tables[1].as_ref().unwrap().block(2).unwrap();
    let at = usize::try_from(block.stored.start).unwrap() + 77;
    source.files[1][at] ^= 4;
    let error = read_region(&source, 0, &whole(&source), Verify::Records).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    // Rows 500 on are in file 1, 1 MiB of which is 174.76 rows.
    let told = error.to_string();
    assert!(told.contains("blob-1") && told.contains("it holds w [67"), "{told}");
    assert!(told.contains(&format!("bytes {}..{}", block.stored.start, block.stored.end)), "{told}");
    let report = verify(&source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
    assert_eq!((finding.code, finding.file.as_deref()), (FindingCode::BlockMismatch, Some("blob-1")));
    assert!(finding.range.as_ref().is_some_and(|range| range.contains("[67")), "{finding:?}");
    assert_eq!(report.checksums.block_bytes, source.catalog.file_bytes().0, "every stored byte was proven");
}

#[test]
fn blocks_that_are_not_what_their_table_says_are_refused_whatever_their_digest() {
    let source = || coded(&large(), &[2, 1], BlockCodec::Planes4);
    let frame = |len: usize| zstd::bulk::compress(&vec![7; len], 1).unwrap();
    for (stored, told) in [
        (frame(1 << 21), "another length"),
        (frame(1000), "another length"),
        (vec![1; 900], "no zstd frame"),
        ([frame(1 << 20), vec![0]].concat(), "behind the end"),
        (frame(1 << 20)[..20].to_vec(), "cut short or damaged"),
    ] {
        let source = with_block(source(), 1, &stored);
        for verify in [Verify::Records, Verify::None] {
            let error = read_region(&source, 0, &whole(&source), verify).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let text = error.to_string();
            for part in ["blob-1", "block 1", told, "it holds w [500..67"] {
                assert!(text.contains(part), "{part}: {text}");
            }
        }
    }
}

#[test]
fn a_table_of_other_lengths_than_the_catalog_says_or_none_at_all_is_refused() {
    let lied = |lie: fn(&mut MemSource)| {
        let mut source = coded(&large(), &[2, 1], BlockCodec::Zstd);
        source = if source.catalog.files[1].is_coded() {
            source
        } else {
            coded(&large(), &[2, 1], BlockCodec::Planes4)
        };
        lie(&mut source);
        [Verify::Records, Verify::None].map(|verify| {
            let error = read_region(&source, 0, &whole(&source), verify).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            error.to_string()
        })
    };
    for (lie, told) in [
        (
            (|it| it.catalog.files[1].logical = Some(4_000_000)) as fn(&mut MemSource),
            "logical bytes, the catalog 4000000",
        ),
        (|it| it.catalog.files[1].size -= 1, "its block table holds"),
        (|it| it.tables[1] = None, "without the block table"),
    ] {
        for text in lied(lie) {
            assert!(text.contains(told) && text.contains("blob-1"), "{text}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn any_box_of_a_compressed_tensor_is_that_of_the_plain_one(
        dtype in prop::sample::select(vec![Dtype::U8, Dtype::BF16, Dtype::F32, Dtype::F64, Dtype::C128]),
        cuts in prop::sample::select(vec![[1_u64, 1], [3, 1], [1, 3], [2, 2]]),
        at in (0_u64..700, 0_u64..300), len in (1_u64..700, 1_u64..300), verify in any::<bool>(),
    ) {
        let shape = [700, 300];
        let all = Whole::new("w", dtype, &shape).smooth();
        let codec = crate::codec::Codec::Planes.of_blocks(dtype);
        let source = coded(&all, &cuts, codec);
        prop_assert!(source.catalog.files.iter().any(crate::FileEntry::is_coded));
        let extents = [len.0.min(shape[0] - at.0), len.1.min(shape[1] - at.1)];
        let region = Region::new(&[at.0, at.1], &extents).unwrap();
        let verify = if verify { Verify::Records } else { Verify::None };
        prop_assert_eq!(read_region(&source, 0, &region, verify).unwrap(), all.region(&region));
    }
}
