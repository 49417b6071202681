//! What is promised of verifying, on checkpoints in memory.

use fqn::{Dtype, Role};

use super::*;
use crate::{
    Silent,
    engine::testing::{MemSource, Proof, Stored, Whole, grid},
};

fn source(proof: Proof) -> MemSource {
    let tensors: Vec<_> = ["a", "b"]
        .iter()
        .map(|name| {
            let whole = Whole::new(name, Dtype::F32, &[512, 2048]);
            (whole, grid(&[512, 2048], &[2, 1]), Stored::Packed)
        })
        .collect();
    MemSource::new(&tensors, 2, proof)
}

fn check(source: &MemSource) -> VerifyReport {
    verify(source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap()
}

#[test]
fn a_sound_checkpoint_is_read_once_and_what_proved_it_is_told() {
    for (proof, blocks, records) in [(Proof::Blocks, 2, 0), (Proof::Records, 0, 2), (Proof::Nothing, 0, 0)] {
        let source = source(proof);
        let report = check(&source);
        assert!(report.is_sound() && report.findings.is_empty(), "{report:?}");
        let sums = report.checksums;
        assert_eq!((sums.block_files, sums.record_files), (blocks, records));
        assert_eq!(report.bytes, sums.block_bytes + sums.record_bytes);
        assert_eq!(sums.unproven_files, if proof == Proof::Nothing { 2 } else { 0 });
        assert!(source.most_reads() <= 1);
    }
}

#[test]
fn every_flipped_bit_is_named_by_tensor_and_range_and_none_hides_another() {
    let mut source = source(Proof::Blocks);
    // A chunk of 256 rows of 8 KiB is two blocks behind 24 bytes of header.
    source.files[0][24 + 5] ^= 1;
    source.files[1][24 + (1 << 20) + 7] ^= 128;
    source.files[1][24 + (2 << 20)] ^= 1;
    let report = check(&source);
    let told: Vec<_> = report
        .findings
        .iter()
        .map(|it| {
            let (file, tensor, range) = (it.file.as_deref(), it.tensor.as_ref(), it.range.as_deref());
            (it.code, file.unwrap(), tensor.unwrap().to_string(), range.unwrap())
        })
        .collect();
    let wanted = [
        ("blob-0", "a", "[0..128, 0..2048]"),
        ("blob-1", "a", "[384..512, 0..2048]"),
        ("blob-1", "b", "[256..384, 0..2048]"),
    ];
    let wanted =
        wanted.map(|(file, tensor, range)| (FindingCode::BlockMismatch, file, tensor.to_owned(), range));
    assert_eq!(told, wanted);
    assert!(!report.is_sound());
}

#[test]
fn a_damaged_record_is_named_and_so_is_a_file_that_is_cut_short() {
    let mut source = source(Proof::Records);
    source.files[0][30] ^= 1;
    source.files[1].truncate(3 << 20);
    let report = check(&source);
    let codes: Vec<_> = report.findings.iter().map(|it| (it.code, it.file.as_deref().unwrap())).collect();
    assert_eq!(codes[0], (FindingCode::CrcMismatch, "blob-0"));
    assert!(codes[1..].iter().all(|it| *it == (FindingCode::SizeMismatch, "blob-1")));
    assert_eq!(report.findings[0].range.as_deref(), Some("[0..256, 0..2048]"));
}

#[test]
fn gaps_and_overlaps_are_named_by_box() {
    let mut regions = grid(&[8, 8], &[2, 2]);
    regions[3] = Region::new(&[3, 4], &[2, 4]).unwrap();
    let source =
        MemSource::new(&[(Whole::new("w", Dtype::F32, &[8, 8]), regions, Stored::Packed)], 1, Proof::Nothing);
    let told: Vec<_> = check(&source).findings.into_iter().map(|it| (it.code, it.range.unwrap())).collect();
    let wanted = [(FindingCode::Overlap, "[3..4, 4..8]"), (FindingCode::Gap, "[5..8, 4..8]")];
    assert_eq!(told, wanted.map(|(code, range)| (code, range.to_owned())));
    assert_eq!(source.catalog.registry.entries()[0].role, Role::Param);
}

#[test]
fn parts_together_read_everything_once_and_none_of_them_says_that_all_was_read() {
    for (proof, of) in [(Proof::Blocks, 2), (Proof::Blocks, 5), (Proof::Records, 3)] {
        let source = source(proof);
        let whole = check(&source);
        assert!(whole.coverage.complete && whole.coverage.parts.is_none(), "{:?}", whole.coverage);
        let mut sum = Coverage::default();
        for first in 1..=of {
            let subset = Subset::Parts(Parts::new(first, 1, of, 9).unwrap());
            let options = VerifyOptions { subset, ..VerifyOptions::default() };
            let report = verify(&source, &options, &Silent, &Cancel::new()).unwrap();
            let coverage = report.coverage;
            assert!(!coverage.complete && report.is_sound(), "{coverage:?}");
            assert_eq!(coverage.parts, Parts::new(first, 1, of, 9));
            assert_eq!((coverage.of_bytes, coverage.of_units), (whole.bytes, whole.coverage.units));
            assert_eq!(coverage.bytes, report.bytes);
            sum.bytes += coverage.bytes;
            sum.units += coverage.units;
        }
        assert_eq!((sum.bytes, sum.units), (whole.bytes, whole.coverage.units), "{proof:?}");
    }
}

#[test]
fn damage_is_found_by_exactly_one_of_the_parts() {
    for proof in [Proof::Blocks, Proof::Records] {
        let mut source = source(proof);
        let last = source.files[0].len() - 1;
        source.files[0][last] ^= 1;
        let found = |first| {
            let subset = Subset::Parts(Parts::new(first, 1, 4, 0).unwrap());
            let options = VerifyOptions { subset, ..VerifyOptions::default() };
            !verify(&source, &options, &Silent, &Cancel::new()).unwrap().is_sound()
        };
        assert_eq!((1..=4).filter(|first| found(*first)).count(), 1, "{proof:?}");
    }
}

#[test]
fn metadata_alone_is_never_all() {
    let options = VerifyOptions { subset: Subset::Nothing, ..VerifyOptions::default() };
    let report = verify(&source(Proof::Blocks), &options, &Silent, &Cancel::new()).unwrap();
    assert_eq!((report.bytes, report.coverage), (0, Coverage::default()));
}
