//! Headers and files: what is refused and why, what is kept, arbitrary bytes.

use fqn::{Dtype, Shape};
use proptest::prelude::*;

use super::*;

fn file(json: &str, data: usize) -> Vec<u8> {
    let mut bytes = (json.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(json.as_bytes());
    bytes.resize(bytes.len() + data, 7);
    bytes
}

fn refused(json: &str, data: usize) -> HeaderError {
    Header::read(&file(json, data)).unwrap_err()
}

#[test]
fn a_header_yields_tensors_in_the_order_of_their_bytes_and_keeps_metadata() {
    let json = r#"{"__metadata__":{"format":"pt","x":"y"},"b":{"dtype":"BF16","shape":[2,2],"data_offsets":[4,12]},
        "a":{"dtype":"F32","shape":[],"data_offsets":[0,4]}}  "#;
    let header = Header::read(&file(json, 12)).unwrap();
    assert_eq!(header.tensors.iter().map(|t| t.name.as_str()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(header.tensors[1].offset, header.data_start + 4);
    assert_eq!(
        (header.tensors[1].dtype, header.tensors[1].shape.to_string()),
        (Dtype::BF16, "2x2".to_owned())
    );
    assert_eq!((header.metadata("x"), header.metadata("z")), (Some("y"), None));
}

#[test]
fn a_consolidated_header_without_padding_or_metadata_is_read() {
    let json = r#"{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}"#;
    assert_ne!(json.len() % 8, 0);
    assert_eq!(Header::read(&file(json, 4)).unwrap().tensors.len(), 1);
}

#[test]
fn every_contradiction_is_named() {
    let one = |dtype: &str, shape: &str, range: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{range}}}}}"#)
    };
    assert!(matches!(refused(&one("F32", "[2]", "[0,4]"), 4), HeaderError::Length { .. }));
    assert!(matches!(refused(&one("F32", "[1]", "[4,0]"), 4), HeaderError::Length { .. }));
    assert!(matches!(
        refused(&one("F32", "[18446744073709551615,2]", "[0,4]"), 4),
        HeaderError::Length { .. }
    ));
    assert!(matches!(refused(&one("F4", "[3]", "[0,1]"), 1), HeaderError::Length { .. }));
    assert_eq!(refused(&one("Q3", "[1]", "[0,4]"), 4).to_string(), r#"w: unknown dtype "Q3""#);
    assert_eq!(refused(&one("F32", "[1]", "[4,8]"), 8), HeaderError::Hole { from: 0, to: 4 });
    assert_eq!(refused(&one("F32", "[1]", "[0,4]"), 3), HeaderError::DataCut { promised: 4, held: 3 });
    assert_eq!(refused(&one("F32", "[1]", "[0,4]"), 5), HeaderError::Hole { from: 4, to: 5 });
    assert!(matches!(refused(r#"{"w":{"dtype":"F32"}}"#, 0), HeaderError::Json(_)));
    assert!(matches!(refused("[]", 0), HeaderError::Json(_)));
    assert!(matches!(
        refused(&one("U8", &format!("{:?}", vec![1; 65]), "[0,1]"), 1),
        HeaderError::Rank { rank: 65, .. }
    ));
    assert!(matches!(Header::read(&vec![1, 2]).unwrap_err(), HeaderError::TooShort(2)));
}

#[test]
fn overlapping_tensors_are_refused_by_name() {
    let json = r#"{"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"b":{"dtype":"U8","shape":[4],"data_offsets":[2,6]}}"#;
    assert_eq!(refused(json, 6).to_string(), "b begins at byte 2 of the data, inside a, which ends at 4");
}

#[test]
fn a_name_that_comes_twice_or_steers_a_terminal_is_refused() {
    let twice = r#"{"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    assert_eq!(refused(twice, 0), HeaderError::Duplicate("a".to_owned()));
    let metadata = r#"{"__metadata__":{"k":"1","k":"2"}}"#;
    assert_eq!(refused(metadata, 0), HeaderError::Duplicate("k".to_owned()));
    let steering = r#"{"a\u001b[2J":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    assert!(matches!(refused(steering, 0), HeaderError::Name(_)));
}

#[test]
fn a_header_of_a_gigabyte_is_refused_before_anything_is_allocated() {
    let mut bytes = (1_u64 << 30).to_le_bytes().to_vec();
    assert_eq!(Header::read(&bytes).unwrap_err(), HeaderError::HeaderTooLong(1 << 30));
    bytes[..8].copy_from_slice(&99_000_000_u64.to_le_bytes());
    assert!(matches!(
        Header::read(&bytes).unwrap_err(),
        HeaderError::HeaderCut { claimed: 99_000_000, len: 8 }
    ));
}

#[test]
fn a_dtype_that_the_format_lacks_is_not_written() {
    let error = HeaderBuilder::new().tensor("w", Dtype::C128, &Shape::new(&[1])).unwrap_err();
    assert_eq!(error.to_string(), "w: safetensors has no element type for c128");
}

fn any_tensors() -> impl Strategy<Value = Vec<(String, Dtype, Vec<u64>)>> {
    let dtype = prop::sample::select(vec![Dtype::F32, Dtype::BF16, Dtype::I64, Dtype::Bool, Dtype::F8E4M3FN]);
    prop::collection::btree_map("[a-z.\"\\\\é]{1,12}", (dtype, prop::collection::vec(0_u64..5, 0..4)), 0..8)
        .prop_map(|map| map.into_iter().map(|(name, (dtype, shape))| (name, dtype, shape)).collect())
}

proptest! {
    #[test]
    fn what_is_written_reads_back(tensors in any_tensors()) {
        let mut builder = HeaderBuilder::new();
        for (name, dtype, shape) in &tensors {
            builder.tensor(name, *dtype, &Shape::new(shape)).unwrap();
        }
        let placed = builder.finish().unwrap();
        prop_assert_eq!(&placed, &builder.finish().unwrap());
        let mut bytes = placed.bytes.clone();
        prop_assert_eq!(bytes.len() % 8, 0);
        bytes.resize(usize::try_from(placed.file_size).unwrap(), 0);
        let header = Header::read(&bytes).unwrap();
        prop_assert_eq!(header.metadata("format"), Some("pt"));
        prop_assert_eq!(header.tensors.len(), tensors.len());
        for ((name, dtype, shape), offset) in tensors.iter().zip(&placed.offsets) {
            let read = header.tensors.iter().find(|t| t.name.as_str() == name).unwrap();
            prop_assert_eq!((read.dtype, &read.shape, read.offset), (*dtype, &Shape::new(shape), *offset));
            prop_assert_eq!(offset % dtype.element_bytes().unwrap(), 0);
        }
    }

    #[test]
    fn no_header_makes_the_reader_panic(json in r#"\{("[a-c_]*":(\{("dtype":"(F32|F4|U8)",?)?("shape":\[[0-9,]{0,22}\],?)?("data_offsets":\[[0-9]{0,20},[0-9]{0,20}\])?\}|1|null),?){0,3}\}?"#, data in 0_usize..20) {
        let _ = Header::read(&file(&json, data));
    }

    #[test]
    fn no_bytes_make_the_reader_panic(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let _ = Header::read(&bytes);
    }
}
