//! Loading: one decision for a group, boxes that are proven, and damaged checkpoints named before an older one is offered.

use std::path::{Path, PathBuf};

use fqn::{Dtype, TensorId};
use reshard::Region;

use super::*;
use crate::{
    ErrorKind, FindingCode,
    commit::Seq,
    engine::testing::Whole,
    save::tests::{assert_holds, memory, placed, plan, run, save, wholes},
    store::{Root, Stores},
};

#[test]
fn all_load_the_record_that_one_chose_whatever_is_committed_meanwhile() {
    let (root, wholes) = (memory(), wholes());
    save(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    let chosen = Loader::newest(&root, &run()).unwrap();
    save(&root, &wholes, &plan(&wholes, "1x1x1", 2));
    let told = Loader::open_record(&root, chosen.record().clone()).unwrap();
    assert_eq!(told.commit().unwrap().step, 1);
    assert_holds(&told, &wholes);
    let by_revision = Loader::open(&root, &"latest".parse().unwrap()).unwrap();
    assert_eq!(by_revision.commit().unwrap().step, 2);
    assert!(told.check(Level::Full).unwrap().is_empty());

    let epoch = crate::save::begin_epoch(&root, &run(), &Default::default()).unwrap();
    assert_eq!(epoch, 1);
    let record = root.get(&Seq::new(3).unwrap().path()).unwrap();
    let error = Loader::open_record(&root, record.clone()).unwrap_err();
    assert!(error.to_string().contains("record 3 commits no checkpoint"), "{error}");
    let error = Loader::open_record(&root, record.slice(..record.len() - 9)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    let error = Loader::open_record(&memory(), chosen.record().clone()).unwrap_err();
    assert!(error.to_string().contains("the root is incomplete"), "{error}");
}

#[test]
fn tensors_boxes_and_rooms_that_do_not_fit_are_refused_by_name() {
    let (root, wholes) = (memory(), wholes());
    save(&root, &wholes, &plan(&wholes, "2x1x2", 1));
    let loader = Loader::newest(&root, &run()).unwrap();
    let reader = loader.reader();
    let id = TensorId::param("w").unwrap();
    let cut = Region::new(&[29, 0], &[2, 7]).unwrap();
    let error = reader.read_vec(&id, &cut).unwrap_err();
    assert!(error.to_string().contains("lies outside the tensor"), "{error}");
    let cut = Region::new(&[29, 0], &[1, 7]).unwrap();
    let error = reader.read(&id, &cut, &mut [0; 13]).unwrap_err();
    assert!(error.to_string().contains("w[29..30, 0..7] has 14 bytes, room was given for 13"), "{error}");
    let error = reader.read_vec(&TensorId::param("v").unwrap(), &cut).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    let hollow = TensorId::param("hollow").unwrap();
    reader.read(&hollow, &Region::new(&[0, 0], &[0, 4]).unwrap(), &mut []).unwrap();
    assert!(loader.object("cursor").is_none());
    let error = Loader::newest(&root, &"other".parse().unwrap()).unwrap_err();
    assert_eq!(
        (error.kind(), error.hint_text()),
        (ErrorKind::NotFound, Some("there are checkpoints of main"))
    );
}

#[test]
fn readers_and_loaders_are_shared_by_threads() {
    fn shared<T: Send + Sync>() {}
    shared::<Loader>();
    shared::<BoxReader<'static>>();
    shared::<crate::save::Session>();
    shared::<crate::save::Writer>();
    shared::<crate::save::SavePlan>();
}

/// Three checkpoints of steps 1, 2, 3 in a folder.
fn three() -> (tempfile::TempDir, Root, Vec<Whole>) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let wholes = vec![
        placed(Whole::new("w", Dtype::F32, &[100, 50]), "dp:0"),
        placed(Whole::new("v", Dtype::F32, &[64]), "replicate"),
    ];
    for step in 1..=3 {
        save(&root, &wholes, &plan(&wholes, "dp=2", step));
    }
    (folder, root, wholes)
}

/// The only file of a step whose name contains `part`.
pub(super) fn file(folder: &Path, root: &Root, step: u64, part: &str) -> PathBuf {
    let listed = root.list(None).unwrap();
    let step = format!("step-{step:08}-");
    let found =
        listed.iter().find(|it| it.path.as_ref().starts_with(&step) && it.path.as_ref().contains(part));
    folder.join(found.unwrap().path.as_ref())
}

fn flip(path: &Path) {
    let mut bytes = std::fs::read(path).unwrap();
    let at = bytes.len() - 5;
    bytes[at] ^= 4;
    std::fs::write(path, bytes).unwrap();
}

fn cut(path: &Path) {
    let bytes = std::fs::read(path).unwrap();
    std::fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
}

#[test]
fn a_sound_newest_checkpoint_is_found_at_once() {
    let (_folder, root, wholes) = three();
    for level in [Level::Quick, Level::Full] {
        let good = newest_good(&root, &run(), level).unwrap();
        assert!(good.skipped.is_empty());
        let found = good.found.unwrap();
        assert_eq!((found.seq.get(), found.step), (3, 3));
        assert_holds(&Loader::open_record(&root, found.record).unwrap(), &wholes);
    }
    let none = newest_good(&root, &"other".parse().unwrap(), Level::Quick).unwrap();
    assert_eq!(none, NewestGood { found: None, skipped: Vec::new() });
}

#[test]
fn a_damaged_newest_checkpoint_is_named_and_the_one_before_it_is_found() {
    type Damage = (&'static str, fn(&Path), Level, FindingCode);
    let remove: fn(&Path) = |path| std::fs::remove_file(path).unwrap();
    let damages: [Damage; 6] = [
        ("/manifest-", flip, Level::Quick, FindingCode::DigestMismatch),
        ("/manifest-", remove, Level::Quick, FindingCode::MissingFile),
        ("/data/r00001", cut, Level::Quick, FindingCode::SizeMismatch),
        ("/data/r00001", remove, Level::Quick, FindingCode::MissingFile),
        ("/blocks/r00000", flip, Level::Quick, FindingCode::DigestMismatch),
        ("/data/r00000", flip, Level::Full, FindingCode::BlockMismatch),
    ];
    for (part, damage, level, code) in damages {
        let (folder, root, wholes) = three();
        let path = file(folder.path(), &root, 3, part);
        damage(&path);
        let good = newest_good(&root, &run(), level).unwrap();
        let [skipped] = good.skipped.as_slice() else { panic!("{part}: {good:?}") };
        assert_eq!((skipped.seq.get(), skipped.step), (3, 3));
        assert_eq!(skipped.findings[0].code, code, "{part}");
        let name = path.file_name().unwrap().to_str().unwrap();
        let told = format!("{:?}", skipped.findings);
        assert!(told.contains(name), "{name} in {told}");
        let found = good.found.unwrap();
        assert_eq!(found.step, 2);
        assert_holds(&Loader::open_record(&root, found.record).unwrap(), &wholes);
    }
}

#[test]
fn a_record_that_the_folded_state_has_outlived_is_still_the_one_that_it_was() {
    let (folder, root, wholes) = three();
    let mut log = crate::commit::Log::open(&root).unwrap();
    for nth in 0..70 {
        let tag = crate::commit::Tag { name: format!("t{nth}").parse().unwrap(), checkpoint: Seq::FIRST };
        let draft = log.draft(&run(), crate::commit::Action::Tag(tag)).unwrap();
        log.append(&draft).unwrap();
    }
    let path = |number: u64| folder.path().join(Seq::new(number).unwrap().path().as_ref());
    let (first, second) = (std::fs::read(path(1)).unwrap(), std::fs::read(path(2)).unwrap());
    std::fs::write(path(1), &second).unwrap();
    std::fs::write(path(2), &first).unwrap();
    for revision in ["seq:1", "seq:2"] {
        let error = Loader::open(&root, &revision.parse().unwrap()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
        assert!(error.to_string().contains("another record"), "{error}");
    }
    assert_holds_unaudited(&Loader::open(&root, &"seq:3".parse().unwrap()).unwrap(), &wholes);
    std::fs::copy(path(1), path(3)).unwrap();
    let good = newest_good(&root, &run(), Level::Quick).unwrap();
    assert!(good.found.is_none(), "{good:?}");
    assert_eq!(good.skipped.len(), 3);
}

fn assert_holds_unaudited(loader: &Loader, wholes: &[Whole]) {
    for whole in wholes {
        let all = Region::whole(&whole.entry.shape).unwrap();
        assert_eq!(loader.reader().read_vec(&whole.entry.id(), &all).unwrap(), whole.bytes);
    }
}

#[test]
fn when_all_are_damaged_all_are_named_and_none_is_found() {
    let (folder, root, _) = three();
    for step in 1..=3 {
        flip(&file(folder.path(), &root, step, "/data/r00001"));
    }
    let quick = newest_good(&root, &run(), Level::Quick).unwrap();
    assert_eq!(quick.found.unwrap().step, 3, "a quick look reads no tensor's bytes");
    let full = newest_good(&root, &run(), Level::Full).unwrap();
    assert!(full.found.is_none());
    assert_eq!(full.skipped.iter().map(|it| it.step).collect::<Vec<_>>(), [3, 2, 1]);
    let named = full.skipped.iter().flat_map(|it| &it.findings).filter(|it| it.tensor.is_some()).count();
    assert!(named >= 3, "{full:?}");
}
