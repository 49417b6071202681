//! Compressed checkpoints from end to end: saved, copied, read, verified and damaged like plain ones.

use fqn::{Dtype, Role};
use reshard::Region;
use safetensors::{SafeTensorError, SafeTensors};

use super::{
    super::{NativeSource, open_in},
    sink,
};
use crate::{
    Cancel, ErrorKind, FindingCode, Result, Silent, Source,
    codec::Codecs,
    digest::{BlockCodec, Sha256Digest},
    engine::{CopyPlan, RunOptions, run, testing::Whole},
    formats::OpenOptions,
    load::Loader,
    manifest::Manifest,
    ops::{
        prepare::{Request, prepare},
        verify::{VerifyOptions, verify},
    },
    save::{
        SavePlan, Session,
        tests::{assert_holds, fingerprints, memory, object, placed, session, spec},
    },
    store::{Root, Stores, object_path},
};

/// Each width of element, moments, what does not compress, what is empty: several blocks of most.
fn wholes() -> Vec<Whole> {
    let row = |name: &str, dtype, shape: &[u64]| placed(Whole::new(name, dtype, shape).smooth(), "tp:1,dp:0");
    let mut moment = row("w", Dtype::F32, &[700, 900]);
    moment.entry.role = Role::ExpAvg;
    vec![
        row("w", Dtype::BF16, &[700, 900]),
        moment,
        row("doubles", Dtype::F64, &[300, 400]),
        row("bytes", Dtype::U8, &[1000, 999]),
        placed(Whole::new("noise", Dtype::F32, &[300, 1000]), "tp:1,dp:0"),
        row("hollow", Dtype::F32, &[0, 4]),
        placed(Whole::new("scalar", Dtype::F32, &[]).smooth(), "replicate"),
    ]
}

fn codecs(text: &str) -> Codecs {
    text.parse().unwrap()
}

fn plan(wholes: &[Whole], mesh: &str, text: &str) -> SavePlan {
    let spec =
        spec(wholes, mesh, 7).coded(codecs(text)).with_objects(vec![object("large", vec![b'x'; 90_000])]);
    SavePlan::new(spec).unwrap()
}

/// Writes all ranks, boxes in this order, and commits.
fn save(session: &Session, wholes: &[Whole], backwards: bool) -> Result<()> {
    std::thread::scope(|scope| {
        let rank = |rank| {
            let writer = session.writer(rank)?;
            let mut boxes: Vec<_> = session.plan().boxes_of(rank).collect();
            if backwards {
                boxes.reverse();
            }
            for (tensor, region) in boxes {
                writer.put(tensor, region, &wholes[tensor].region(region))?;
            }
            writer.finish()
        };
        let ranks: Vec<_> = (0..session.plan().ranks()).map(|it| scope.spawn(move || rank(it))).collect();
        ranks.into_iter().try_for_each(|it| it.join().unwrap().map(drop))
    })?;
    session.commit().map(drop)
}

fn newest(root: &Root) -> Loader {
    Loader::newest(root, &"main".parse().unwrap()).unwrap()
}

fn roots(loader: &Loader) -> Vec<Sha256Digest> {
    loader.catalog().files.iter().map(|file| file.blocks.as_ref().unwrap().root).collect()
}

/// The codecs of all blocks of a checkpoint.
fn used(source: &dyn Source) -> Vec<BlockCodec> {
    let files = 0..u32::try_from(source.catalog().files.len()).unwrap();
    let tables = files.map(|file| source.blocks(crate::FileId(file)).unwrap().unwrap());
    let mut used: Vec<_> =
        tables.flat_map(|it| it.blocks().map(|block| block.codec).collect::<Vec<_>>()).collect();
    used.sort_unstable();
    used.dedup();
    used
}

#[test]
fn what_ranks_save_compressed_is_read_back_and_the_order_of_boxes_makes_no_difference() {
    let wholes = wholes();
    let plain = memory();
    save(&session(&plain, &plan(&wholes, "2x1x2", "none")), &wholes, false).unwrap();
    let plain = newest(&plain);
    assert_eq!(plain.catalog().file_bytes().0, plain.catalog().file_bytes().1);
    for (text, kinds) in [
        ("zstd", vec![BlockCodec::None, BlockCodec::Zstd]),
        (
            "planes",
            vec![
                BlockCodec::None,
                BlockCodec::Zstd,
                BlockCodec::Planes2,
                BlockCodec::Planes4,
                BlockCodec::Planes8,
            ],
        ),
        ("planes,param=none", vec![BlockCodec::None, BlockCodec::Planes4]),
    ] {
        let folder = tempfile::tempdir().unwrap();
        let disk = Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap();
        let (one, other) = (memory(), disk);
        save(&session(&one, &plan(&wholes, "2x1x2", text)), &wholes, false).unwrap();
        save(&session(&other, &plan(&wholes, "2x1x2", text)), &wholes, true).unwrap();
        let (one, other) = (newest(&one), newest(&other));
        assert_eq!(roots(&one), roots(&other), "{text}");
        assert_eq!(fingerprints(&one), fingerprints(&plain), "{text}");
        assert_eq!(used(other.source()), kinds, "{text}");
        assert_eq!(other.catalog().codecs.as_deref(), Some(text));
        let (stored, logical) = other.catalog().file_bytes();
        assert!(stored < logical, "{text}: {stored} of {logical}");
        for loader in [&one, &other] {
            assert_holds(loader, &wholes);
            assert_eq!(loader.object("large").unwrap().bytes.len(), 90_000);
        }
    }
}

#[test]
fn a_compressed_blob_has_a_readable_header_and_is_no_safetensors_file_and_plain_roles_stay_ones() {
    let (root, wholes) = (memory(), wholes());
    save(&session(&root, &plan(&wholes, "1x1x1", "planes,param=none")), &wholes, false).unwrap();
    let (mut plain, mut coded) = (0, 0);
    for file in &newest(&root).catalog().files {
        let dir = root
            .list_dir(None)
            .unwrap()
            .dirs
            .into_iter()
            .find(|it| it.as_ref().starts_with("step-"))
            .unwrap();
        let bytes = root.get(&object_path(&format!("{dir}/{}", file.path)).unwrap()).unwrap();
        assert_eq!(bytes.len() as u64, file.size);
        let (_, header) = SafeTensors::read_metadata(&bytes)
            .map_or_else(|_| (0, None), |(len, header)| (len, Some(header)));
        if file.is_coded() {
            coded += 1;
            assert!(file.path.ends_with(".coded"), "{}", file.path);
            let error = SafeTensors::deserialize(&bytes).unwrap_err();
            assert!(matches!(error, SafeTensorError::MetadataIncompleteBuffer), "{error}");
            let len = usize::try_from(u64::from_le_bytes(bytes[..8].try_into().unwrap())).unwrap();
            let header: serde_json::Value = serde_json::from_slice(&bytes[8..8 + len]).unwrap();
            assert!(header["w@exp_avg"]["data_offsets"].is_array(), "{header}");
        } else {
            plain += 1;
            assert!(file.path.ends_with(".safetensors") && header.is_some(), "{}", file.path);
            SafeTensors::deserialize(&bytes).unwrap();
        }
    }
    assert_eq!((plain, coded), (2, 1), "parameters, objects; moments");
}

#[test]
fn a_stopped_compressed_save_goes_on_and_other_bytes_are_refused() {
    let (root, wholes) = (memory(), wholes());
    let plan = plan(&wholes, "2x1x2", "planes");
    let first = session(&root, &plan).writer(1).unwrap();
    for (tensor, region) in plan.boxes_of(1) {
        first.put(tensor, region, &wholes[tensor].region(region)).unwrap();
    }
    first.finish().unwrap();
    let mut changed = wholes.clone();
    changed[0].bytes.iter_mut().for_each(|byte| *byte ^= 1);
    let again = session(&root, &plan);
    let writer = again.writer(1).unwrap();
    let (tensor, region) = plan.boxes_of(1).next().unwrap();
    let error = writer.put(tensor, region, &changed[tensor].region(region)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    save(&again, &wholes, true).unwrap();
    assert_holds(&newest(&root), &wholes);
}

/// Copies a checkpoint to another root on another mesh, compressed as said.
fn copied(
    source: &NativeSource,
    mesh: &str,
    text: &str,
    options: &RunOptions,
) -> (Stores, Result<NativeSource>) {
    let stores = Stores::new();
    let root = Root::create("memory://run", &stores).unwrap();
    let mut request = Request::new(crate::Format::Native);
    (request.to, request.codecs) = (Some(mesh.parse().unwrap()), codecs(text));
    let copy: CopyPlan = prepare(source.catalog(), &request).unwrap().copy;
    let done = run(source, &mut sink(&root), &copy, options, &Silent, &Cancel::new());
    let opened = done.and_then(|(_, report)| {
        assert_eq!(report.proven, copy.spec.tensors.len());
        open_in(&stores, "memory://run", None, OpenOptions::new())
    });
    (stores, opened)
}

#[test]
fn from_compressed_to_plain_to_compressed_on_other_meshes_every_fingerprint_stays() {
    let (stores, wholes) = (Stores::new(), wholes());
    let root = Root::create("memory://run", &stores).unwrap();
    save(&session(&root, &plan(&wholes, "4x1x2", "planes")), &wholes, false).unwrap();
    let first = open_in(&stores, "memory://run", None, OpenOptions::new()).unwrap();
    let prints = |source: &NativeSource| -> Vec<_> {
        let each = source.catalog().iter();
        each.map(|(entry, chunks)| (entry.id().to_string(), chunks.fingerprint)).collect()
    };
    for (threads, memory) in [(1, 32 << 20), (8, 256 << 20)] {
        let options = RunOptions {
            threads: std::num::NonZeroUsize::new(threads).unwrap(),
            max_memory: memory,
            ..RunOptions::default()
        };
        let (_plain, second) = copied(&first, "8x1x1", "none", &options);
        let second = second.unwrap();
        assert!(!second.catalog().files.iter().any(crate::FileEntry::is_coded));
        let (_coded, third) = copied(&second, "1x1x2", "planes", &options);
        let third = third.unwrap();
        assert!(third.catalog().files.iter().any(crate::FileEntry::is_coded));
        let (_again, fourth) = copied(&third, "2x1x2", "zstd", &options);
        for source in [&second, &third, &fourth.unwrap()] {
            assert_eq!(prints(source), prints(&first));
            let report = verify(source, &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
            assert_eq!(report.findings, []);
        }
    }
}

#[test]
fn a_bound_too_small_for_compressing_is_refused_before_anything_is_written() {
    let (stores, wholes) = (Stores::new(), wholes());
    let root = Root::create("memory://run", &stores).unwrap();
    save(&session(&root, &plan(&wholes, "1x1x1", "planes")), &wholes, false).unwrap();
    let first = open_in(&stores, "memory://run", None, OpenOptions::new()).unwrap();
    let options = RunOptions { max_memory: 16 << 20, ..RunOptions::default() };
    let (_, refused) = copied(&first, "1x1x2", "planes", &options);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Incompatible);
}

#[test]
fn a_flipped_bit_in_each_compressed_blob_is_found_and_named() {
    let folder = tempfile::tempdir().unwrap();
    let (root, wholes) = (Root::create(folder.path().to_str().unwrap(), &Stores::new()).unwrap(), wholes());
    let session = session(&root, &plan(&wholes, "2x1x1", "planes"));
    save(&session, &wholes, false).unwrap();
    let loader = newest(&root);
    let files = loader.catalog().files.iter().zip(0_u32..).filter(|(file, _)| file.is_coded());
    for (file, id) in files {
        let path = folder.path().join(session.attempt().as_str()).join(&file.path);
        let whole = std::fs::read(&path).unwrap();
        let table = loader.source().blocks(crate::FileId(id)).unwrap().unwrap();
        let block = table.blocks().find(|block| block.codec != BlockCodec::None).unwrap();
        let mut bytes = whole.clone();
        bytes[usize::try_from(block.stored.end).unwrap() - 5] ^= 0x20;
        std::fs::write(&path, &bytes).unwrap();
        let damaged = newest(&root);
        let report = verify(damaged.source(), &VerifyOptions::default(), &Silent, &Cancel::new()).unwrap();
        let [finding] = report.findings.as_slice() else { panic!("{:?}", report.findings) };
        assert_eq!((finding.code, finding.file.as_ref()), (FindingCode::BlockMismatch, Some(&file.path)));
        let range = finding.range.clone().unwrap();
        let held = damaged.catalog().iter().find_map(|(entry, chunks)| {
            let here = chunks.chunks.iter().filter(|chunk| chunk.file.0 == id);
            here.clone()
                .any(|chunk| chunk.offset == block.logical.start && !chunk.region.is_empty())
                .then(|| entry.id())
        });
        assert_eq!(finding.tensor, held, "{range}");
        let tensor = held.unwrap();
        let at = wholes.iter().find(|whole| whole.entry.id() == tensor).unwrap();
        let all = Region::whole(&at.entry.shape).unwrap();
        let error = damaged.reader().read_vec(&tensor, &all).unwrap_err().to_string();
        assert!(
            error.contains(&file.path) && error.contains(&format!("it holds {tensor} {range}")),
            "{error}"
        );
        std::fs::write(&path, whole).unwrap();
    }
}

#[test]
fn a_manifest_that_lies_about_compressed_files_is_refused() {
    let (root, wholes) = (memory(), wholes());
    save(&session(&root, &plan(&wholes, "1x1x1", "planes")), &wholes, false).unwrap();
    let catalog = newest(&root).catalog().clone();
    let again = |edit: fn(&mut Manifest)| {
        let mut manifest = Manifest::new(catalog.clone());
        manifest.catalog.objects.clear();
        manifest.objects.clear();
        edit(&mut manifest);
        manifest.encode().and_then(|encoded| Manifest::decode(&encoded.bytes, &encoded.digest))
    };
    let read = again(|_| ()).unwrap();
    assert_eq!(read.catalog.files, catalog.files);
    assert_eq!(read.catalog.codecs.as_deref(), Some("planes"));
    for edit in [
        |it: &mut Manifest| first_coded(it).logical = Some(u64::from(u32::MAX) << 30),
        |it: &mut Manifest| first_coded(it).blocks = None,
        |it: &mut Manifest| first_coded(it).size = 0,
        |it: &mut Manifest| it.catalog.codecs = Some("x".repeat(5000)),
    ] {
        let error = again(edit).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{error}");
    }
    assert!(matches!(
        again(|it| drop(it.later.insert("coded".to_owned(), 1.into()))),
        Err(error) if error.kind() == ErrorKind::Incompatible
    ));
}

fn first_coded(manifest: &mut Manifest) -> &mut crate::FileEntry {
    manifest.catalog.files.iter_mut().find(|file| file.is_coded()).unwrap()
}
