//! Sealing real checkpoints and made-up ones: what is sealed reads back, and what changes afterwards is noticed.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    time::{Duration, SystemTime},
};

use fqn::{Dtype, Role};
use reshard::Region;

use super::{SealOptions, SealReport, seal};
use crate::{
    Cancel, ErrorKind, FindingCode, Result, Severity, Silent, Source,
    engine::{
        RunOptions, Verify, read_region,
        testing::{MemSource, Proof, Stored, Whole, grid},
    },
    fingerprint::FingerprintSum,
    formats::{
        self, OpenOptions, Strictness,
        native::{NativeSource, open_in},
    },
    ops::verify::{VerifyOptions, verify},
    store::{Root, Stores},
};

fn options(base: &Path) -> SealOptions {
    SealOptions::new(base.to_str().unwrap(), "main".parse().unwrap())
}

fn sealed(source: &dyn Source, base: &Path, root: &Path) -> Result<SealReport> {
    let root = Root::create(root.to_str().unwrap(), &Stores::new()).unwrap();
    seal(source, &root, &options(base), &RunOptions::default(), &Silent, &Cancel::new())
}

fn opened(root: &Path, strictness: Strictness) -> NativeSource {
    open_in(&Stores::new(), root.to_str().unwrap(), None, OpenOptions::new().strictness(strictness)).unwrap()
}

/// Every file below a folder with its bytes.
fn contents(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut found = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            found.extend(contents(&path));
        } else {
            found.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    found
}

/// Both hold the same bytes, and the sealed one's fingerprints are those of the bytes.
fn same(native: &NativeSource, foreign: &dyn Source) {
    assert_eq!(native.catalog().registry, foreign.catalog().registry);
    assert_eq!(native.catalog().objects, foreign.catalog().objects);
    for (at, (entry, chunks)) in native.catalog().iter().enumerate() {
        let whole = Region::whole(&entry.shape).unwrap();
        let bytes = read_region(native, at, &whole, Verify::Records).unwrap();
        assert_eq!(bytes, read_region(foreign, at, &whole, Verify::None).unwrap(), "{}", entry.id());
        let mut sum = FingerprintSum::default();
        sum.add_region(entry.dtype, &entry.shape, &whole, &bytes).unwrap();
        assert_eq!(chunks.fingerprint, Some(sum.finish(entry.dtype, &entry.shape)), "{}", entry.id());
    }
}

#[test]
fn real_checkpoints_are_sealed_without_touching_them() {
    for name in ["torch_dcp/fsdp2_tp2", "hf/llama_sharded", "hf/llama_tied"] {
        let (path, into) = (fixtures::path(name), tempfile::tempdir().unwrap());
        let before = contents(&path);
        let foreign = formats::open(&path, OpenOptions::new()).unwrap();
        let report = sealed(foreign.as_ref(), &path, into.path()).unwrap();
        assert_eq!(report.bytes_read, report.bytes_hashed, "{name}: every byte is read once");
        assert_eq!(report.bytes_hashed, foreign.catalog().files.iter().map(|file| file.size).sum::<u64>());
        assert_eq!(contents(&path), before, "{name}");
        let native = opened(into.path(), Strictness::Strict);
        same(&native, foreign.as_ref());
        assert_eq!(native.audit().unwrap(), [], "{name}");
        assert_eq!(native.catalog().format, foreign.catalog().format);
        let again = sealed(foreign.as_ref(), &path, into.path()).unwrap();
        assert!(again.before && again.committed.sequence == Some(1), "{name}");
        assert_eq!(again.fingerprints, report.fingerprints);
    }
}

/// A checkpoint in a folder: chunks packed, strided and in records, tied bytes and bytes that lie across each other.
fn made_up(proof: Proof) -> (MemSource, tempfile::TempDir) {
    let tensors = [
        (Whole::new("a", Dtype::BF16, &[700, 900]), vec![2, 3], Stored::Packed),
        (Whole::new("b", Dtype::F32, &[40, 30]), vec![2, 1], Stored::Transposed),
        (Whole::new("c", Dtype::C128, &[9, 7, 5]), vec![1, 2, 2], Stored::Gaps),
        (Whole::new("d", Dtype::U8, &[1]), vec![1], Stored::Packed),
        (Whole::new("e", Dtype::F64, &[3, 500]), vec![1, 1], Stored::Packed),
    ];
    let tensors: Vec<_> = tensors
        .into_iter()
        .map(|(whole, parts, stored)| {
            let regions = grid(&whole.entry.shape, &parts);
            (whole, regions, stored)
        })
        .collect();
    let mut source = MemSource::new(&tensors, 2, proof);
    let mut tied = source.catalog.registry.entries()[4].clone();
    tied.role = Role::Master;
    let chunks = source.catalog.tensors[4].clone();
    source.catalog.push(tied, chunks).unwrap();
    let folder = tempfile::tempdir().unwrap();
    for (at, bytes) in source.files.iter().enumerate() {
        fs::write(folder.path().join(format!("blob-{at}")), bytes).unwrap();
    }
    (source, folder)
}

#[test]
fn strided_tied_and_recorded_bytes_get_the_fingerprints_of_their_tensors() {
    for proof in [Proof::Nothing, Proof::Records] {
        let ((source, folder), into) = (made_up(proof), tempfile::tempdir().unwrap());
        let report = sealed(&source, folder.path(), into.path()).unwrap();
        assert_eq!(report.gathered, 2, "only the strided ones are read again");
        assert_eq!(report.records > 0, proof == Proof::Records);
        for (entry, chunks) in source.catalog.iter() {
            let found = report.fingerprints.iter().find(|(id, _)| *id == entry.id()).unwrap();
            assert_eq!(Some(found.1), chunks.fingerprint, "{}", entry.id());
        }
        same(&opened(into.path(), Strictness::Strict), &source);
    }
}

#[test]
fn bytes_that_lie_across_each_other_are_read_by_themselves() {
    let ((mut source, folder), into) = (made_up(Proof::Nothing), tempfile::tempdir().unwrap());
    let mut view = Whole::new("view", Dtype::U8, &[7]).entry;
    view.role = Role::Other;
    let mut chunks = source.catalog.tensors[4].clone();
    let mut whole = chunks.chunks.get(0).unwrap();
    whole.region = Region::whole(&view.shape).unwrap();
    whole.offset += 3;
    chunks.chunks = vec![whole].into();
    chunks.fingerprint = None;
    source.catalog.push(view, chunks).unwrap();
    let report = sealed(&source, folder.path(), into.path()).unwrap();
    assert_eq!(report.gathered, 5);
    same(&opened(into.path(), Strictness::Strict), &source);
}

#[test]
fn a_flipped_bit_in_a_record_stops_the_seal_and_is_named() {
    let ((mut source, folder), into) = (made_up(Proof::Records), tempfile::tempdir().unwrap());
    let at = usize::try_from(source.catalog.tensors[0].chunks.get(0).unwrap().offset).unwrap() + 10;
    source.files[0][at] ^= 4;
    let error = sealed(&source, folder.path(), into.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().starts_with("blob-0: bytes ") && error.to_string().contains(" a "), "{error}");
    let root = Root::open(into.path().to_str().unwrap(), &Stores::new()).unwrap();
    assert_eq!(root.list(None).unwrap(), [], "nothing is written");
}

#[test]
fn a_gap_stops_the_seal() {
    let ((mut source, folder), into) = (made_up(Proof::Nothing), tempfile::tempdir().unwrap());
    let chunks = &mut source.catalog.tensors[0].chunks;
    *chunks = chunks.iter().enumerate().filter(|(at, _)| *at != 2).map(|(_, chunk)| chunk).collect();
    let error = sealed(&source, folder.path(), into.path()).unwrap_err();
    assert_eq!(
        (error.kind(), error.to_string().starts_with("a: no chunk holds")),
        (ErrorKind::Corrupt, true)
    );
}

#[test]
fn files_that_are_none_of_their_own_are_refused_with_what_to_do() {
    let ((mut source, folder), into) = (made_up(Proof::Nothing), tempfile::tempdir().unwrap());
    source.catalog.files[1].path = "blob-0@24 (inflated)".to_owned();
    let error = sealed(&source, folder.path(), into.path()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.hint_text().unwrap().contains("ckpt convert"));
}

/// Changes a file, and gives it the time that it had a minute later.
fn change(path: &Path, change: impl FnOnce(&mut Vec<u8>)) {
    let mut bytes = fs::read(path).unwrap();
    change(&mut bytes);
    fs::write(path, bytes).unwrap();
    let file = fs::File::options().write(true).open(path).unwrap();
    file.set_modified(SystemTime::now() + Duration::from_secs(60)).unwrap();
}

#[test]
fn a_file_that_changed_after_the_seal_is_refused_and_its_damage_is_named() {
    let ((source, folder), into) = (made_up(Proof::Nothing), tempfile::tempdir().unwrap());
    sealed(&source, folder.path(), into.path()).unwrap();
    let at = usize::try_from(source.catalog.tensors[0].chunks.get(0).unwrap().offset).unwrap() + 10;
    change(&folder.path().join("blob-0"), |bytes| bytes[at] ^= 1);
    let native = opened(into.path(), Strictness::Strict);
    let whole = Region::whole(&native.catalog().registry.entries()[0].shape).unwrap();
    let error = read_region(&native, 0, &whole, Verify::None).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains("blob-0: changed since it was sealed"), "{error}");

    let lenient = opened(into.path(), Strictness::Lenient);
    let report = verify(&lenient, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
    let errors: Vec<_> = report.findings.iter().filter(|it| it.severity == Severity::Error).collect();
    assert_eq!(errors.len(), 1, "{errors:?}");
    assert_eq!(errors[0].code, FindingCode::BlockMismatch);
    assert_eq!(errors[0].tensor.as_ref().unwrap().to_string(), "a");
    assert!(report.findings.iter().any(|it| it.code == FindingCode::StaleFile));
}

#[test]
fn files_that_are_cut_or_gone_after_the_seal_are_named() {
    for gone in [false, true] {
        let ((source, folder), into) = (made_up(Proof::Nothing), tempfile::tempdir().unwrap());
        sealed(&source, folder.path(), into.path()).unwrap();
        let path = folder.path().join("blob-1");
        if gone {
            fs::remove_file(&path).unwrap();
        } else {
            change(&path, |bytes| bytes.truncate(100));
        }
        let native = opened(into.path(), Strictness::Strict);
        let wanted = if gone { FindingCode::MissingFile } else { FindingCode::SizeMismatch };
        let found = native.audit().unwrap();
        assert_eq!((found.len(), found[0].code, found[0].file.as_deref()), (1, wanted, Some("blob-1")));
    }
}
