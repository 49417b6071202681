//! What was damaged, cut, swapped, left over or lied about is noticed and named; what lies elsewhere is told for what it is.

use super::*;

fn on_disk(wholes: &[Whole]) -> (tempfile::TempDir, Root) {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    let source = mem_source(wholes);
    save(&root, &source, &cut(&source, 2)).unwrap();
    (folder, root)
}

fn reopened(folder: &Path, lenient: bool) -> Result<NativeSource> {
    let strictness = if lenient { Strictness::Lenient } else { Strictness::Strict };
    open_in(&Stores::new(), folder.to_str().unwrap(), None, OpenOptions::new().strictness(strictness))
}

/// What reading everything says first.
fn first_error(source: &NativeSource) -> Option<Error> {
    let catalog: &Catalog = source.catalog();
    let read = |(at, entry): (usize, &fqn::Entry)| {
        read_region(source, at, &Region::whole(&entry.shape).unwrap(), Verify::Records).err()
    };
    catalog.registry.entries().iter().enumerate().find_map(read)
}

#[test]
fn damage_is_named_by_file_and_tensor() {
    let wholes = vec![Whole::new("w", Dtype::F32, &[100, 50]), Whole::new("v", Dtype::F32, &[64, 50])];
    let flip = |path: &Path| {
        let mut bytes = std::fs::read(path).unwrap();
        let at = bytes.len() - 4;
        bytes[at] ^= 0x10;
        std::fs::write(path, bytes).unwrap();
    };
    let cut = |path: &Path| {
        let bytes = std::fs::read(path).unwrap();
        std::fs::write(path, &bytes[..bytes.len() - 4]).unwrap();
    };
    let remove = |path: &Path| std::fs::remove_file(path).unwrap();
    for (damage, code) in [
        (&flip as &dyn Fn(&Path), None),
        (&cut, Some(FindingCode::SizeMismatch)),
        (&remove, Some(FindingCode::MissingFile)),
    ] {
        let (folder, root) = on_disk(&wholes);
        let blob = named(&root, "data/r00000").remove(0);
        damage(&folder.path().join(blob.as_ref()));
        let opened = reopened(folder.path(), false).unwrap();
        let error = first_error(&opened).unwrap();
        let short = blob.as_ref().split_once('/').unwrap().1;
        assert!(error.to_string().contains(short), "{error}");
        let found = audit(&opened);
        assert_eq!(found.iter().map(|it| it.1).collect::<Vec<_>>(), code.into_iter().collect::<Vec<_>>());
        assert!(found.iter().all(|it| it.2.as_deref() == Some(short)));
    }
}

#[test]
fn swapped_blobs_and_changed_tables_do_not_pass() {
    let wholes = vec![Whole::new("w", Dtype::F32, &[100, 50]), Whole::new("v", Dtype::F32, &[64, 50])];
    let (folder, root) = on_disk(&wholes);
    let blobs = named(&root, "data/r");
    let paths: Vec<_> = blobs.iter().skip(1).map(|blob| folder.path().join(blob.as_ref())).collect();
    let (a, b) = (std::fs::read(&paths[0]).unwrap(), std::fs::read(&paths[1]).unwrap());
    assert_eq!(a.len(), b.len(), "blobs of one size, so that only digests can tell");
    std::fs::write(&paths[0], &b).unwrap();
    std::fs::write(&paths[1], &a).unwrap();
    let opened = reopened(folder.path(), false).unwrap();
    assert_eq!(first_error(&opened).unwrap().kind(), ErrorKind::Corrupt);

    let table = named(&root, "blocks/r").remove(0);
    let path = folder.path().join(table.as_ref());
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let opened = reopened(folder.path(), false).unwrap();
    let found = opened.audit().unwrap();
    assert_eq!(found[0].code, FindingCode::DigestMismatch);
    assert!(found[0].message.contains(table.as_ref()), "{:?}", found[0]);
}

#[test]
fn files_that_nothing_names_are_orphans() {
    let (folder, root) = on_disk(&wholes());
    let dir = named(&root, "manifest-").remove(0);
    let dir = dir.as_ref().split_once('/').unwrap().0;
    std::fs::write(folder.path().join(dir).join("data/r00000-0000-old.safetensors"), b"x").unwrap();
    let opened = reopened(folder.path(), false).unwrap();
    let orphan =
        (Severity::Warning, FindingCode::OrphanFile, Some("data/r00000-0000-old.safetensors".to_owned()));
    assert_eq!(audit(&opened), [orphan]);
}

#[test]
fn a_manifest_that_is_missing_or_changed_is_named() {
    let (folder, root) = on_disk(&wholes());
    let manifest = named(&root, "manifest-").remove(0);
    let path = folder.path().join(manifest.as_ref());
    let good = std::fs::read(&path).unwrap();
    let mut bad = good.clone();
    bad[5000] ^= 1;
    std::fs::write(&path, &bad).unwrap();
    let error = reopened(folder.path(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(manifest.as_ref()), "{error}");
    std::fs::remove_file(&path).unwrap();
    let error = reopened(folder.path(), true).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(
        error.to_string().contains("incomplete") && error.to_string().contains(manifest.as_ref()),
        "{error}"
    );
}

#[test]
fn a_step_by_itself_is_sealed_and_beneath_its_root_committed() {
    let wholes = wholes();
    let (folder, root) = on_disk(&wholes);
    let dir = named(&root, "manifest-").remove(0);
    let step = folder.path().join(dir.as_ref().split_once('/').unwrap().0);
    let opened = reopened(&step, false).unwrap();
    assert!(opened.commit().is_some() && opened.catalog().variant.ends_with("committed as seq 1"));
    std::fs::rename(folder.path().join("commits"), folder.path().join("elsewhere")).unwrap();
    let opened = reopened(&step, false).unwrap();
    assert!(opened.commit().is_none());
    assert!(opened.catalog().variant.contains("sealed"), "{}", opened.catalog().variant);
    check(&opened, &wholes);
    assert_eq!(audit(&opened), [(Severity::Note, FindingCode::Uncommitted, None)]);
    let error = reopened(folder.path(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(error.hint_text().unwrap().contains("step-00000070-"), "{error:?}");
}

#[test]
fn a_record_of_another_root_makes_it_mixed() {
    let (one, other) = (on_disk(&wholes()), on_disk(&wholes()));
    let source = mem_source(&wholes());
    save(&other.1, &source, &cut(&source, 3)).unwrap();
    let record = Seq::new(2).unwrap().path();
    std::fs::copy(other.0.path().join(record.as_ref()), one.0.path().join(record.as_ref())).unwrap();
    let error = reopened(one.0.path(), false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(record.as_ref()), "{error}");
}

#[test]
fn large_objects_are_proven_when_they_are_read() {
    let source = mem_source(&wholes());
    let mut plan = cut(&source, 1);
    objects(&mut plan.spec);
    let folder = tempfile::tempdir().unwrap();
    let root = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
    save(&root, &source, &plan).unwrap();
    let blob = named(&root, "data/objects").remove(0);
    let path = folder.path().join(blob.as_ref());
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 100;
    bytes[at] ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let error = reopened(folder.path(), false).unwrap_err();
    assert!(
        error.to_string().contains("object large: ") && error.to_string().contains("data/objects-"),
        "{error}"
    );
    let lenient = reopened(folder.path(), true).unwrap();
    let unread = (Severity::Error, FindingCode::BlockMismatch, None);
    assert_eq!(audit(&lenient), [unread.clone(), unread], "both lie in the damaged block");
}

#[test]
fn a_hostile_manifest_is_named_however_well_it_is_digested() {
    let (folder, root) = on_disk(&wholes());
    let good = root.get(&named(&root, "manifest-").remove(0)).unwrap();
    let mut swapped = good.to_vec();
    let text = b"CREATE TABLE meta";
    let at = swapped.windows(text.len()).position(|it| it == text).unwrap();
    swapped[at + 13..at + 17].copy_from_slice(b"evil");
    for bytes in [b"not a database".to_vec(), good[..good.len() - 4096].to_vec(), swapped] {
        let step = tempfile::tempdir().unwrap();
        let name = crate::manifest::manifest_name(&Sha256Digest::of(&bytes));
        std::fs::write(step.path().join(&name), &bytes).unwrap();
        let error = reopened(step.path(), true).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        assert!(error.to_string().contains(&name), "{error}");
    }
    drop(folder);
}
