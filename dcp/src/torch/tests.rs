//! Archives and tensors against what torch wrote, and against lying ones.

use std::sync::Arc;

use bytes::Bytes;
use fqn::{Dims, Dtype, Shape};
use proptest::prelude::*;

use super::*;
use crate::pickle::{self, Context, Limits, Policy, Tree, Unknown};
use crate::read_at::ReadAt;

const PLAIN: &[u8] = include_bytes!("testdata/plain.pt");

fn open(bytes: impl Into<Vec<u8>>) -> Result<Archive, ArchiveError> {
    Archive::open(Arc::new(bytes.into()))
}

fn refusal(bytes: impl Into<Vec<u8>>) -> String {
    open(bytes).map(|a| a.records().len()).expect_err("it should be refused").to_string()
}

fn tree_of(archive: &Archive) -> Tree {
    let bytes = archive.data_pickle(1 << 20).unwrap();
    pickle::read(&bytes, &Policy::new(Context::TensorArchive), &Limits::default()).unwrap()
}

fn tensor(tree: &Tree, key: &str) -> Result<Option<Tensor>, TensorError> {
    read_tensor(tree.root().get(key).unwrap())
}

fn plain(tree: &Tree, key: &str) -> TensorRef {
    match tensor(tree, key) {
        Ok(Some(Tensor::Plain(tensor))) => tensor,
        other => panic!("{key}: {other:?}"),
    }
}

#[test]
fn records_of_a_real_archive_are_found_in_place() {
    let archive = open(PLAIN).unwrap();
    assert_eq!(archive.folder(), "plain/");
    assert_eq!(archive.crc_state(), CrcState::Recorded);
    let names: Vec<&str> = archive.records().iter().map(|r| r.name.as_str()).collect();
    assert_eq!(names[..5], ["data.pkl", ".format_version", ".storage_alignment", "byteorder", "data/0"]);
    for record in archive.records() {
        assert_eq!(archive.payload_offset(record).unwrap() % ALIGNMENT, 0, "{}", record.name);
        archive.check(record, |_| ()).unwrap();
    }
    let mut values = vec![0; 48];
    archive.section(archive.record("data/0").unwrap()).unwrap().read_exact_at(0, &mut values).unwrap();
    let floats: Vec<f32> = values.chunks(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    assert_eq!(floats, (0_u8..12).map(f32::from).collect::<Vec<_>>());
}

#[test]
fn a_flipped_bit_is_named_by_record() {
    let whole = open(PLAIN).unwrap();
    for record in whole.records().iter().filter(|r| r.len > 0) {
        let mut bytes = PLAIN.to_vec();
        bytes[usize::try_from(whole.payload_offset(record).unwrap()).unwrap()] ^= 1;
        let damaged = open(bytes).unwrap();
        let error = damaged.check(damaged.record(&record.name).unwrap(), |_| ()).unwrap_err();
        assert!(error.to_string().starts_with(&format!("record {:?} is damaged", record.name)), "{error}");
    }
}

#[test]
fn an_archive_without_crcs_says_so_and_is_read() {
    let archive = open(include_bytes!("testdata/nocrc.pt").to_vec()).unwrap();
    assert_eq!(archive.crc_state(), CrcState::Disabled);
    assert_eq!(plain(&tree_of(&archive), "w").shape, Shape::new(&[2]));
}

#[test]
fn what_is_no_archive_is_refused_with_what_to_do() {
    let legacy = refusal(include_bytes!("testdata/legacy.pt").to_vec());
    assert!(legacy.contains("before 1.6") && legacy.contains("save it again"), "{legacy}");
    let script = refusal(include_bytes!("testdata/script.pt").to_vec());
    assert!(script.contains("TorchScript") && script.contains("torch.jit.load"), "{script}");
    for (bytes, word) in [
        (Vec::new(), "empty"),
        (vec![0; 600], "zeros"),
        (b"\x80\x02N.".to_vec(), "bare pickle"),
        (b"PK\x05\x06".to_vec(), "without records"),
        ([vec![b'x'; 257], b"ustar\x0000".to_vec()].concat(), "tar"),
        (b"\x40\0\0\0\0\0\0\0{\"a\":1}".to_vec(), "safetensors"),
        (b"hello".to_vec(), "does not begin"),
    ] {
        let error = refusal(bytes);
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn tensors_of_a_real_archive_are_described() {
    let archive = open(PLAIN).unwrap();
    let tree = tree_of(&archive);
    let w = plain(&tree, "w");
    assert_eq!((w.dtype, w.offset, &w.shape, &*w.storage.key), (Dtype::F32, 0, &Shape::new(&[3, 4]), "0"));
    assert!(w.is_contiguous() && !w.is_parameter && !w.requires_grad);
    let transposed = plain(&tree, "transposed");
    assert_eq!((&*transposed.strides, &transposed.storage), (&[1, 4][..], &w.storage));
    assert!(!transposed.is_contiguous());
    let rows = plain(&tree, "rows");
    assert_eq!((rows.offset, rows.byte_offset(), &rows.storage), (4, 16, &w.storage));
    let expanded = plain(&tree, "expanded");
    assert_eq!((&*expanded.strides, expanded.storage.bytes), (&[0][..], 4));
    assert_eq!(plain(&tree, "empty").shape, Shape::new(&[0, 3]));
    assert_eq!(plain(&tree, "scalar").shape, Shape::new(&[]));
    assert_eq!(plain(&tree, "f8").dtype, Dtype::F8E4M3FN);
    assert_eq!((plain(&tree, "u16").dtype, plain(&tree, "u16").storage.bytes), (Dtype::U16, 6));
    let param = plain(&tree, "param");
    assert_eq!((param.dtype, param.is_parameter, param.requires_grad), (Dtype::BF16, true, true));
    assert_eq!((plain(&tree, "frozen").is_parameter, plain(&tree, "frozen").requires_grad), (true, false));
    assert_eq!(tensor(&tree, "step"), Ok(None));
    for (_, value) in tree.root().as_mapping().unwrap() {
        if let Some(Tensor::Plain(tensor)) = read_tensor(value).unwrap() {
            let record = archive.record(&format!("data/{}", tensor.storage.key)).unwrap();
            assert_eq!(record.len, tensor.storage.bytes);
        }
    }
}

#[test]
fn parts_of_a_distributed_tensor_tell_the_whole() {
    let files: [&[u8]; 4] = [
        include_bytes!("testdata/shard_0.pt"),
        include_bytes!("testdata/shard_1.pt"),
        include_bytes!("testdata/shard_2.pt"),
        include_bytes!("testdata/shard_3.pt"),
    ];
    for (rank, file) in files.into_iter().enumerate() {
        let rank = rank as u64;
        let tree = tree_of(&open(file).unwrap());
        let Ok(Some(Tensor::Sharded(a))) = tensor(&tree, "a") else { panic!("a") };
        assert_eq!(
            (&a.spec.shape, a.spec.dtype, &*a.spec.mesh_shape),
            (&Shape::new(&[5, 4]), Dtype::F32, &[2, 2][..])
        );
        assert_eq!(a.spec.mesh_names.as_deref(), Some(&["dp".to_owned(), "tp".to_owned()][..]));
        assert_eq!(a.spec.placements, [TorchPlacement::Shard { dim: 0 }, TorchPlacement::Replicate]);
        assert_eq!(
            (a.spec.rank, a.spec.coordinate),
            (Some(rank), Some(Dims::from_slice(&[rank / 2, rank % 2])))
        );
        assert_eq!(a.spec.ranks, MeshRanks::Listed(vec![0, 1, 2, 3]));
        assert_eq!(a.local.shape, Shape::new(&[if rank < 2 { 3 } else { 2 }, 4]));
        let Ok(Some(Tensor::Sharded(b))) = tensor(&tree, "b") else { panic!("b") };
        assert_eq!(b.spec.placements, [TorchPlacement::Replicate, TorchPlacement::Shard { dim: 1 }]);
        assert_eq!((b.local.shape, b.local.is_parameter), (Shape::new(&[5, 2]), false));
        let Ok(Some(Tensor::Sharded(p))) = tensor(&tree, "p") else { panic!("p") };
        assert!(p.local.is_parameter);
    }
}

#[test]
fn tensors_that_are_not_read_are_refused_by_name() {
    for (file, key, word) in [
        (&include_bytes!("testdata/conj.pt")[..], "z", "resolve_conj"),
        (include_bytes!("testdata/sparse.pt"), "s", "to_dense"),
        (include_bytes!("testdata/quantized.pt"), "q", "dequantize"),
    ] {
        let error = tensor(&tree_of(&open(file).unwrap()), key).unwrap_err();
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_view_beyond_its_storage_is_refused() {
    let view = |count: u64, offset: u64, shape: [u64; 2], strides: [u64; 2]| {
        let text = format!(
            "ctorch._utils\n_rebuild_tensor_v2\n((Vstorage\nctorch\nFloatStorage\nV0\nVcpu\nL{count}L\ntQL{offset}L\n\
             (L{}L\nL{}L\nt(L{}L\nL{}L\ntI00\nNtR.",
            shape[0], shape[1], strides[0], strides[1]
        );
        let policy = Policy::new(Context::TensorArchive);
        let tree = pickle::read(text.as_bytes(), &policy, &Limits::default()).unwrap();
        read_tensor(tree.root())
    };
    let max = i64::MAX.cast_unsigned();
    assert!(matches!(view(12, 0, [3, 4], [4, 1]), Ok(Some(_))));
    assert!(matches!(view(0, 0, [0, max], [max, max]), Ok(Some(_))));
    for (count, offset, shape, strides) in [
        (11, 0, [3, 4], [4, 1]),
        (12, 1, [3, 4], [4, 1]),
        (12, 0, [3, 4], [5, 1]),
        (12, 0, [max, 2], [1, 1]),
        (12, 0, [2, 2], [max, max]),
        (12, max, [3, 4], [4, 1]),
        (max, 0, [3, 4], [4, 1]),
    ] {
        assert!(view(count, offset, shape, strides).is_err(), "{count} {offset} {shape:?} {strides:?}");
    }
}

#[test]
fn every_prefix_of_an_archive_is_refused() {
    for len in 0..PLAIN.len() {
        assert!(open(&PLAIN[..len]).is_err(), "{len} bytes");
    }
}

/// Puts the pieces of a layout and its payloads together.
fn assemble(layout: &ArchiveLayout, payloads: &[Vec<u8>]) -> Vec<u8> {
    let crcs: Vec<u32> = payloads.iter().map(|p| crc32fast::hash(p)).collect();
    let mut out = vec![0xee; usize::try_from(layout.total_len()).unwrap()];
    let mut written = vec![false; out.len()];
    let payloads =
        payloads.iter().enumerate().map(|(i, p)| (layout.payload_offset(i).unwrap(), Bytes::from(p.clone())));
    for (at, piece) in layout.head().into_iter().chain(payloads).chain(layout.tail(&crcs).unwrap()) {
        let at = usize::try_from(at).unwrap();
        for (i, byte) in piece.iter().enumerate() {
            assert!(!written[at + i], "byte {} is written twice", at + i);
            (out[at + i], written[at + i]) = (*byte, true);
        }
    }
    assert!(written.iter().all(|w| *w), "every byte of the archive is written");
    out
}

#[test]
fn the_layout_is_torchs_own_byte_for_byte() {
    let archive = open(PLAIN).unwrap();
    let pickle = Bytes::from(archive.read("data.pkl", 1 << 20).unwrap());
    let read = |i: usize| {
        let mut bytes = Vec::new();
        archive
            .record(&format!("data/{i}"))
            .map(|r| archive.check(r, |p| bytes.extend_from_slice(p)).unwrap());
        bytes
    };
    let count = archive.records().iter().filter(|r| r.name.starts_with("data/")).count();
    let payloads: Vec<Vec<u8>> = (0..count).map(read).collect();
    let lens: Vec<u64> = payloads.iter().map(|p| p.len() as u64).collect();
    let layout = ArchiveLayout::new("plain", pickle, &lens).unwrap();
    let mut ours = assemble(&layout, &payloads);
    let mut theirs = PLAIN.to_vec();
    // The serialization id is an opaque digest, and its CRC follows it in two places.
    for (bytes, archive) in [(&mut ours, None), (&mut theirs, Some(&archive))] {
        let opened = open(bytes.clone()).unwrap();
        let archive = archive.unwrap_or(&opened);
        let id = archive.record(".data/serialization_id").unwrap();
        let at = usize::try_from(archive.payload_offset(id).unwrap()).unwrap();
        bytes[at..at + 48].fill(0);
        let crc = id.crc32.to_le_bytes();
        let second = bytes.windows(4).rposition(|w| w == crc).unwrap();
        bytes[second..second + 4].fill(0);
    }
    assert!(
        ours == theirs,
        "the archives differ from byte {:?}",
        ours.iter().zip(&theirs).position(|(a, b)| a != b)
    );
}

#[test]
fn a_storage_beyond_four_gigabytes_gets_wide_fields() {
    let layout = ArchiveLayout::new("archive", Bytes::from_static(b"N."), &[5 << 30, 7]).unwrap();
    // Only the ends exist: a source that is zero wherever nothing was written.
    struct Sparse(Vec<(u64, Bytes)>, u64);
    impl ReadAt for Sparse {
        fn len(&self) -> u64 {
            self.1
        }
        fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
            for (i, byte) in buf.iter_mut().enumerate() {
                let at = offset + i as u64;
                let piece = self.0.iter().find(|(start, p)| (*start..start + p.len() as u64).contains(&at));
                *byte = piece.map_or(0, |(start, p)| p[usize::try_from(at - start).unwrap()]);
            }
            Ok(())
        }
    }
    let pieces: Vec<_> = layout.head().into_iter().chain(layout.tail(&[1, 2]).unwrap()).collect();
    let archive = Archive::open(Arc::new(Sparse(pieces, layout.total_len()))).unwrap();
    let big = archive.record("data/0").unwrap();
    assert_eq!((big.len, big.crc32), (5 << 30, 1));
    assert_eq!(archive.payload_offset(big).unwrap(), layout.payload_offset(0).unwrap());
    let after = archive.record("data/1").unwrap();
    assert_eq!((after.len, after.crc32), (7, 2));
    assert_eq!(archive.payload_offset(after).unwrap(), layout.payload_offset(1).unwrap());
    assert!(layout.payload_offset(1).unwrap() > 5 << 30);
}

fn small() -> (ArchiveLayout, Vec<u8>) {
    let layout = ArchiveLayout::new("a", Bytes::from_static(b"\x80\x02N."), &[3]).unwrap();
    let bytes = assemble(&layout, &[b"abc".to_vec()]);
    (layout, bytes)
}

/// Replaces every occurrence of `from` by `to`, of the same length.
fn replaced(bytes: &[u8], from: &[u8], to: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    for at in 0..=bytes.len() - from.len() {
        if bytes[at..].starts_with(from) {
            out[at..at + from.len()].copy_from_slice(to);
        }
    }
    out
}

#[test]
fn names_with_tricks_are_refused() {
    let (_, bytes) = small();
    for (from, to, word) in [
        (&b"a/data/0"[..], &b"a/../../"[..], "climbs"),
        (b"a/data/0", b"/etc/abc", "climbs"),
        (b"a/data/0", b"a/da\na/0", "control"),
        (b"a/data/0", b"a\\data\\0", "backslash"),
        (b"a/data/0", b"a/da\xffa/0", "UTF-8"),
        (b"a/data/0", b"b/data/0", "outside"),
        (b"a/byteorder", b"a/data/////", "climbs"),
    ] {
        let error = refusal(replaced(&bytes, from, to));
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn doubled_and_overlapping_records_are_refused() {
    let layout = ArchiveLayout::new("a", Bytes::from_static(b"\x80\x02N."), &[3, 3]).unwrap();
    let bytes = assemble(&layout, &[b"abc".to_vec(), b"def".to_vec()]);
    let twice = refusal(replaced(&bytes, b"a/data/1", b"a/data/0"));
    assert!(twice.contains("two records of this name"), "{twice}");
    // In the directory, let the second storage begin where the first does.
    let directory = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    let entries: Vec<usize> =
        (directory..bytes.len() - 4).filter(|at| bytes[*at..].starts_with(b"PK\x01\x02")).collect();
    let mut over = bytes.clone();
    over.copy_within(entries[4] + 42..entries[4] + 46, entries[5] + 42);
    assert!(refusal(over).contains("run into"));
    // And let it be longer than what is there.
    let mut long = bytes.clone();
    for field in [20, 24] {
        long[entries[5] + field..entries[5] + field + 4].copy_from_slice(&0x00ff_ffff_u32.to_le_bytes());
    }
    assert!(refusal(long).contains("run into"));
}

#[test]
fn end_records_that_lie_are_refused() {
    let (_, bytes) = small();
    let find = |signature: &[u8]| bytes.windows(4).rposition(|w| w == signature).unwrap();
    let end64 = find(b"PK\x06\x06");
    let locator = find(b"PK\x06\x07");
    let end = find(b"PK\x05\x06");
    for (at, value) in [
        (end64 + 24, u64::MAX),
        (end64 + 32, u64::MAX),
        (end64 + 32, 6),
        (end64 + 40, u64::MAX),
        (end64 + 40, 1),
        (end64 + 48, u64::MAX),
        (end64 + 48, 0),
        (locator + 8, u64::MAX),
        (locator + 8, 0),
    ] {
        let mut lying = bytes.clone();
        lying[at..at + 8].copy_from_slice(&value.to_le_bytes());
        refusal(lying);
    }
    for (at, value) in [(end + 8, 6_u16), (end + 10, 6), (end + 4, 1)] {
        let mut lying = bytes.clone();
        lying[at..at + 2].copy_from_slice(&value.to_le_bytes());
        refusal(lying);
    }
}

#[test]
fn compressed_and_encrypted_records_are_refused_with_what_to_do() {
    let (_, bytes) = small();
    let entry = bytes.windows(4).position(|w| w == b"PK\x01\x02").unwrap();
    for (field, value, word) in [(10, 8_u8, "zip -0"), (10, 12, "save it again"), (8, 9, "decrypt")] {
        let mut other = bytes.clone();
        other[entry + field] = value;
        let error = refusal(other);
        assert!(error.contains(word) && error.contains("data.pkl"), "{error}");
    }
}

#[test]
fn big_endian_archives_are_refused() {
    let (_, bytes) = small();
    let mut big = replaced(&bytes, b"little", b"big   ");
    let (old, new) = (crc32fast::hash(b"little").to_le_bytes(), crc32fast::hash(b"big   ").to_le_bytes());
    big = replaced(&big, &old, &new);
    let error = open(big).unwrap().data_pickle(100).unwrap_err().to_string();
    assert!(error.contains("big-endian"), "{error}");
}

#[test]
fn local_headers_that_contradict_the_directory_are_refused() {
    let (_, bytes) = small();
    let whole = open(bytes.clone()).unwrap();
    let header = usize::try_from(whole.record("data/0").unwrap().header).unwrap();
    for (field, byte) in [(0, b'X'), (26, 1), (29, 0xff), (31, b'z')] {
        let mut other = bytes.clone();
        other[header + field] = byte;
        let archive = open(other).unwrap();
        assert!(archive.section(archive.record("data/0").unwrap()).is_err(), "field {field}");
    }
}

#[test]
fn what_is_composed_is_read_back_as_the_same_tensors() {
    for &dtype in Dtype::ALL {
        let mut composer = Composer::new();
        let Some(first) = composer.tensor(dtype, &Shape::new(&[2, 3]), true) else {
            assert!(dtype.torch_name().is_none() || dtype.element_bytes().is_none(), "{dtype}");
            continue;
        };
        let second = composer.tensor(dtype, &Shape::new(&[]), false).unwrap();
        let second = composer.parameter(second, true);
        let (mut arena, storages) = composer.into_parts();
        let keys = [arena.str("a"), arena.str("b")];
        let root = arena.dict(&[(keys[0], first), (keys[1], second)]);
        let bytes = pickle::write(&arena.finish(root).unwrap(), pickle::Protocol::V2).unwrap();
        let tree = pickle::read(&bytes, &Policy::new(Context::TensorArchive), &Limits::default()).unwrap();
        let (a, b) = (plain(&tree, "a"), plain(&tree, "b"));
        assert_eq!(
            (a.dtype, &a.shape, &*a.strides, &*a.storage.key),
            (dtype, &Shape::new(&[2, 3]), &[3, 1][..], "0")
        );
        assert_eq!((a.storage.bytes, b.storage.bytes), (storages[0], storages[1]));
        assert_eq!(
            (a.requires_grad, a.is_parameter, b.is_parameter, &*b.storage.key),
            (true, false, true, "1")
        );
    }
}

proptest! {
    #[test]
    fn a_damaged_archive_never_panics(at in any::<prop::sample::Index>(), byte in any::<u8>(), tail in any::<bool>()) {
        let (_, small) = small();
        let mut bytes = if tail { small } else { PLAIN.to_vec() };
        let at = at.index(bytes.len());
        bytes[at] = byte;
        if let Ok(archive) = open(bytes) {
            for record in archive.records() {
                let _ = archive.check(record, |_| ());
            }
            if let Ok(pickle) = archive.read("data.pkl", 1 << 20) {
                let policy = Policy::new(Context::TensorArchive).unknown(Unknown::Inert);
                if let Ok(tree) = pickle::read(&pickle, &policy, &Limits::default()) {
                    for (_, value) in tree.root().as_mapping().into_iter().flatten() {
                        let _ = read_tensor(value);
                    }
                }
            }
        }
    }

    #[test]
    fn any_layout_is_read_back(pickle in prop::collection::vec(any::<u8>(), 0..300), storages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 0..8)) {
        let lens: Vec<u64> = storages.iter().map(|s| s.len() as u64).collect();
        let layout = ArchiveLayout::new("model", Bytes::from(pickle.clone()), &lens).unwrap();
        let archive = open(assemble(&layout, &storages)).unwrap();
        prop_assert_eq!(archive.read("data.pkl", 1000).unwrap(), pickle);
        for (i, storage) in storages.iter().enumerate() {
            let record = archive.record(&format!("data/{i}")).unwrap();
            let mut bytes = Vec::new();
            archive.check(record, |p| bytes.extend_from_slice(p)).unwrap();
            prop_assert_eq!(&bytes, storage);
            prop_assert_eq!(archive.payload_offset(record).unwrap() % ALIGNMENT, 0);
        }
    }
}
