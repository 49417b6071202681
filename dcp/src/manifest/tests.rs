//! Manifests: exact round trips, equal bytes for equal content, and attacks on rows, schema and image.

use bytes::Bytes;
use fqn::{Alias, AxisName, Dims, Dtype, Entry, Fqn, FusionPart, Role, Shape};
use proptest::prelude::*;
use reshard::{Mesh, Region, StageSplit};
use rusqlite::{Connection, MAIN_DB};
use serde_json::json;

use super::*;
use crate::{
    BlockRef, Catalog, Chunk, ChunkList, Chunks, CrcRecord, Encoding, ErrorKind, FileEntry, FileId, Format,
    Location, ObjectEntry, PathPart, ReshardRule, digest::Sha256Digest, fingerprint::Fingerprint,
};

const FILE_SIZE: u64 = 1 << 40;

fn files() -> Vec<FileEntry> {
    let blocks = Some(BlockRef { path: "blocks/0.blocks".to_owned(), root: Sha256Digest::of(b"table") });
    let external = |etag: Option<&str>, mtime_ns| Location::External {
        base: "/mnt/torch".to_owned(),
        etag: etag.map(str::to_owned),
        mtime_ns,
    };
    [
        ("data/0.safetensors", Location::InStep, blocks),
        ("step-1/data/1.safetensors", Location::InRoot, None),
        ("__0_0.distcp", external(Some("\"abc\""), Some(-5)), None),
        ("__1_0.distcp", external(None, None), None),
    ]
    .map(|(path, location, blocks)| FileEntry {
        path: path.to_owned(),
        location,
        size: FILE_SIZE,
        logical: None,
        blocks,
    })
    .to_vec()
}

fn object(key: &str, bytes: &[u8]) -> ObjectEntry {
    ObjectEntry {
        key: key.to_owned(),
        path: vec![PathPart::Key("optim".to_owned()), PathPart::Index(3), PathPart::Key(key.to_owned())],
        encoding: Encoding::Pickle,
        bytes: Bytes::copy_from_slice(bytes),
        preview: Some(json!({ "lr": 0.5, "betas": [1, null] })),
        reshard: ReshardRule::PerDataRank,
    }
}

fn chunk(offsets: &[u64], extents: &[u64], offset: u64) -> Chunk {
    let region = Region::new(offsets, extents).unwrap();
    Chunk { region, file: FileId(0), offset, strides: None, record: None }
}

/// Something of everything that a manifest can hold.
fn sample() -> Manifest {
    let mut catalog = Catalog::new(Format::TorchDcp);
    catalog.variant = "written by torch ≥ 2.4".to_owned();
    catalog.step = Some(1000);
    catalog.extra.insert("save_id".to_owned(), json!({ "z": 1, "a": "x" }));
    catalog.files = files();
    let mut full =
        Entry::new(Fqn::new("layers.0.wqkv.weight").unwrap(), Role::Param, Dtype::BF16, Shape::new(&[8, 6]));
    full.placement = Some("tp:0,dp:0,pp:layer".parse().unwrap());
    (full.layer, full.expert, full.padded_rows) = (Some(0), Some(7), Some(16));
    full.tie = Some(Fqn::new("tok_embeddings.weight").unwrap());
    full.fusion = vec![FusionPart { name: "q".to_owned(), axis: 0, extent: 4 }];
    full.aliases = vec![
        Alias {
            of: "torch-dcp".to_owned(),
            key: "model.layers.0.wqkv".to_owned(),
            path: vec![json!("model"), json!(0)],
        },
        Alias { of: "hf".to_owned(), key: "x".to_owned(), path: Vec::new() },
    ];
    let mut strided = chunk(&[4, 0], &[4, 6], 4096);
    strided.strides = Some(Dims::from_slice(&[1, 4]));
    strided.record = Some(CrcRecord { offset: 4000, len: 200, crc32: u32::MAX });
    let fingerprint = Some(Fingerprint::from_bytes([7; 16]));
    catalog
        .push(full, Chunks { chunks: vec![chunk(&[0, 0], &[4, 6], 64), strided].into(), fingerprint })
        .unwrap();
    let scalar =
        Entry::new(Fqn::new("step").unwrap(), Role::Slot("step".into()), Dtype::F32, Shape::new(&[]));
    catalog.push(scalar, Chunks { chunks: vec![chunk(&[], &[], 8)].into(), fingerprint: None }).unwrap();
    catalog.objects = vec![object("scheduler", b"{}"), object("loader", b"")];
    let mut manifest = Manifest::new(catalog);
    manifest.objects[1] = ObjectPlace::File { file: FileId(1), offset: 64, len: 1 << 20 };
    manifest.catalog.mesh =
        Some(Mesh::new(vec![(AxisName::new("dp").unwrap(), 4), (AxisName::new("tp").unwrap(), 2)]).unwrap());
    manifest.catalog.split = Some(StageSplit::Explicit(vec![3, 4]));
    manifest.origin =
        Some(Origin { format: Format::Pt, variant: "zip".to_owned(), place: "/mnt/model.pt".to_owned() });
    manifest.later.insert("zz_later".to_owned(), json!([1, 2]));
    manifest
}

#[track_caller]
fn assert_same(a: &Manifest, b: &Manifest) {
    let (x, y) = (&a.catalog, &b.catalog);
    assert_eq!((x.format, &x.variant, x.step, &x.extra), (y.format, &y.variant, y.step, &y.extra));
    assert_eq!(x.registry, y.registry);
    assert_eq!(x.tensors, y.tensors);
    assert_eq!(x.files, y.files);
    assert_eq!(x.objects, y.objects);
    assert_eq!((&a.objects, &x.mesh, &x.split, &a.writer), (&b.objects, &y.mesh, &y.split, &b.writer));
    assert_eq!((&a.origin, &a.later), (&b.origin, &b.later));
}

/// The sample's image after these statements, run by an SQLite without our precautions.
fn tampered(statements: &str) -> Vec<u8> {
    let mut db = Connection::open_in_memory().unwrap();
    let image = sample().encode().unwrap().bytes;
    db.deserialize_read_exact(MAIN_DB, &image[..], image.len(), false).unwrap();
    db.execute_batch(statements).unwrap();
    db.serialize(MAIN_DB).unwrap().to_vec()
}

#[test]
fn a_manifest_reads_back_as_it_was() {
    let manifest = sample();
    let encoded = manifest.encode().unwrap();
    let back = Manifest::decode(&encoded.bytes, &encoded.digest).unwrap();
    assert_same(&manifest, &back);
    assert_eq!(back.encode().unwrap(), encoded);
}

#[test]
fn an_empty_manifest_reads_back() {
    let manifest = Manifest::new(Catalog::new(Format::Native));
    assert_same(&manifest, &Manifest::decode_unnamed(&manifest.encode().unwrap().bytes).unwrap());
}

#[test]
fn equal_manifests_have_equal_bytes_and_names() {
    let (a, b) = (sample().encode().unwrap(), sample().encode().unwrap());
    assert_eq!(a, b);
    assert_eq!(manifest_digest(&a.name()), Some(a.digest));
    assert_eq!(manifest_digest("manifest-00.sqlite"), None);
}

#[test]
fn other_bytes_than_the_named_ones_are_refused_before_they_are_looked_at() {
    let encoded = sample().encode().unwrap();
    let error = Manifest::decode(&encoded.bytes[1..], &encoded.digest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Corrupt);
    assert!(error.to_string().contains(&encoded.digest.to_string()), "{error}");
}

#[test]
fn an_sqlite_tool_can_query_a_manifest() {
    let mut db = Connection::open_in_memory().unwrap();
    let image = sample().encode().unwrap().bytes;
    db.deserialize_read_exact(MAIN_DB, &image[..], image.len(), true).unwrap();
    let query = "SELECT fqn || ' ' || dtype || ' ' || shape || ' ' || placement FROM tensors WHERE layer = 0";
    let text: String = db.query_row(query, [], |row| row.get(0)).unwrap();
    assert_eq!(text, "layers.0.wqkv.weight bf16 [8,6] tp:0,dp:0,pp:layer");
}

#[test]
fn the_contract_spells_the_schema_as_it_is() {
    let contract = include_str!("../../FORMAT.md");
    for (table, statement) in schema::TABLES {
        assert!(contract.lines().any(|line| line == statement), "{table}");
    }
    for key in write::META_KEYS {
        assert!(contract.contains(&format!("| `{key}` |")), "{key}");
    }
    for dtype in Dtype::ALL {
        assert!(contract.contains(dtype.name()), "{dtype}");
    }
    for kind in [ReshardRule::Global, ReshardRule::PerDataRank, ReshardRule::PerRank] {
        assert!(contract.contains(&serde_json::to_string(&kind).unwrap().replace('"', "`")), "{kind:?}");
    }
}

#[test]
fn a_million_chunks_take_less_than_sixty_five_bytes_each() {
    let many = ChunkList::from(vec![chunk(&[4, 0], &[4, 6], 9); 100_000]);
    let packed = many.packed().unwrap();
    assert!(packed.len() <= 48 * 100_000 + 8, "{}", packed.len());
}

#[test]
fn a_schema_of_its_own_is_refused_before_any_row_is_read() {
    for statements in [
        "CREATE TABLE more (x)",
        "CREATE VIEW more AS SELECT 1",
        "CREATE TRIGGER more AFTER INSERT ON meta BEGIN SELECT 1; END",
        "CREATE INDEX more ON tensors (fqn)",
        "DROP TABLE mesh; VACUUM",
        "DROP TABLE mesh; VACUUM; CREATE VIEW mesh AS SELECT 1 AS position, 'dp' AS axis, 2 AS extent",
        "ALTER TABLE mesh ADD COLUMN more INTEGER",
        "PRAGMA writable_schema = ON; UPDATE sqlite_schema SET sql = 'CREATE TABLE mesh (position, axis, extent)' \
         WHERE name = 'mesh'",
    ] {
        let error = read::manifest_of(&tampered(statements)).unwrap_err();
        assert!(matches!(error, ManifestError::Schema(_)), "{statements}: {error}");
    }
}

#[test]
fn an_image_of_another_kind_is_refused_by_its_header() {
    let good = sample().encode().unwrap().bytes.to_vec();
    // Page size, journal mode, reserved space, page count, free pages, schema format, auto-vacuum, text encoding,
    // application.
    for (at, byte) in
        [(16, 0x20), (18, 2), (19, 2), (20, 8), (31, 99), (39, 1), (47, 3), (55, 1), (59, 2), (71, 0)]
    {
        let mut bad = good.clone();
        bad[at] = byte;
        let error = read::manifest_of(&bad).unwrap_err();
        assert!(matches!(error, ManifestError::Image(_)), "byte {at}: {error}");
    }
    for bad in [&b""[..], b"SQLite format 3\0", &[7; 5000], &good[..good.len() - 1], &good[..4096]] {
        assert!(matches!(read::manifest_of(bad), Err(ManifestError::Image(_))));
    }
}

#[test]
fn pages_that_nothing_accounts_for_are_refused() {
    let freed = tampered("UPDATE objects SET bytes = zeroblob(60000); UPDATE objects SET bytes = NULL");
    let error = read::manifest_of(&freed).unwrap_err();
    assert!(error.to_string().contains("free pages"), "{error}");
    // The same pages, hidden from the header.
    let mut hidden = freed;
    hidden[32..40].fill(0);
    let error = read::manifest_of(&hidden).unwrap_err();
    assert!(matches!(error, ManifestError::Image(_)), "{error}");
}

#[test]
fn a_crowd_of_tensors_in_a_small_image_is_refused_and_what_a_writer_writes_is_read() {
    let crowd = |count: u32| {
        let mut catalog = Catalog::new(Format::Native);
        for at in 0..count {
            let entry =
                Entry::new(Fqn::new(format!("w{at}")).unwrap(), Role::Param, Dtype::F32, Shape::new(&[0]));
            catalog.push(entry, Chunks::default()).unwrap();
        }
        Manifest::new(catalog)
    };
    let few = crowd(20_000).encode().unwrap();
    assert_eq!(Manifest::decode_unnamed(&few.bytes).unwrap().catalog.tensors.len(), 20_000);
    refused(&crowd(300_000));
}

/// Neither written nor read.
fn refused(heavy: &Manifest) {
    let error = heavy.encode().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
    assert!(error.to_string().contains("no reader would take it"), "{error}");
    let error = read::manifest_of(&heavy.image().unwrap()).unwrap_err();
    assert!(matches!(&error, ManifestError::Image(why) if why.contains("bytes of memory")), "{error}");
}

#[test]
fn columns_that_grow_a_hundredfold_when_they_are_decoded_are_refused_and_not_written() {
    let wide: [fn(&mut Manifest); 4] = [
        |it| drop(it.catalog.extra.insert("wide".to_owned(), json!(vec![0; 500_000]))),
        |it| drop(it.later.insert("deep".to_owned(), json!(vec![json!([0]); 300_000]))),
        |it| it.catalog.objects[0].preview = Some(json!(vec![json!({"": 0}); 150_000])),
        |it| {
            let mut registry = fqn::Registry::new();
            for (at, entry) in it.catalog.registry.entries().iter().cloned().enumerate() {
                let mut entry = entry;
                if at == 0 {
                    let alias =
                        |key: u32| Alias { of: String::new(), key: key.to_string(), path: vec![json!(0); 9] };
                    entry.aliases = (0..150_000).map(alias).collect();
                }
                registry.push(entry).unwrap();
            }
            it.catalog.registry = registry;
        },
    ];
    for widen in wide {
        let mut manifest = sample();
        widen(&mut manifest);
        refused(&manifest);
    }
}

#[test]
fn a_large_checkpoint_with_names_in_another_format_is_well_within_what_readers_take() {
    let mut catalog = Catalog::new(Format::Native);
    catalog.files = files();
    let print: Fingerprint = "0123456789abcdef".repeat(2).parse().unwrap();
    for at in 0..10_000_u32 {
        let name = format!("model.layers.{at}.mlp.experts.17.gate_proj.weight");
        let mut entry = Entry::new(Fqn::new(&name).unwrap(), Role::ExpAvg, Dtype::F32, Shape::new(&[8, 8]));
        entry.placement = Some("tp:0,dp:0,pp:layer".parse().unwrap());
        let path = ["optimizer", "state", name.as_str(), "exp_avg"].map(|it| json!(it)).to_vec();
        entry.aliases = vec![Alias { of: "torch-dcp".to_owned(), key: format!("optimizer.{name}"), path }];
        let chunks = ChunkList::from(vec![chunk(&[0, 0], &[8, 8], 0)]);
        catalog.push(entry, Chunks { fingerprint: Some(print), chunks }).unwrap();
    }
    let image = Manifest::new(catalog).encode().unwrap().bytes;
    // However many of them: the part of the bound that does not grow is left to what is small.
    let weight = weight::weight(&image::open(&image).unwrap()).unwrap();
    assert!(weight < 4 * image.len() as u64, "{weight} of {}", image.len());
}

#[test]
fn later_versions_and_unknown_features_say_so() {
    for statements in [
        "PRAGMA user_version = 2",
        "UPDATE meta SET value = '[2,0]' WHERE key = 'version'",
        "UPDATE meta SET value = '[\"erasure\"]' WHERE key = 'features'",
    ] {
        let error = Manifest::decode_unnamed(&tampered(statements)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unsupported, "{statements}: {error}");
        assert!(error.hint_text().is_some());
    }
}

#[test]
fn a_later_minor_version_is_read_and_its_keys_are_kept() {
    let image = tampered(
        "UPDATE meta SET value = '[1,9]' WHERE key = 'version'; INSERT INTO meta VALUES ('new', '7')",
    );
    let manifest = Manifest::decode_unnamed(&image).unwrap();
    assert_eq!(manifest.later["new"], json!(7));
}

#[test]
fn rows_that_break_a_rule_are_named() {
    for (statements, place) in [
        ("UPDATE files SET path = '../x' WHERE id = 0", "file 0"),
        ("UPDATE files SET path = '/etc/passwd' WHERE id = 1", "file 1"),
        ("UPDATE files SET blocks = 'a/../b' WHERE id = 0", "file 0"),
        ("UPDATE files SET blocks_root = NULL WHERE id = 0", "file 0"),
        ("UPDATE files SET blocks_root = 'xyz' WHERE id = 0", "file 0"),
        ("UPDATE files SET size = -1 WHERE id = 2", "file 2"),
        ("UPDATE files SET location = 'moon' WHERE id = 0", "file 0"),
        ("UPDATE files SET etag = 'x' WHERE id = 0", "file 0"),
        ("UPDATE files SET base = 'relative' WHERE id = 2", "file 2"),
        ("UPDATE files SET id = 9 WHERE id = 3", "file 9"),
        ("UPDATE files SET path = 'data/' || char(27) || '[2J' WHERE id = 0", "file 0"),
        ("UPDATE files SET path = 'data/a' || char(0) || 'b' WHERE id = 0", "file 0"),
        ("UPDATE files SET blocks = 'blocks/' || char(10) WHERE id = 0", "file 0"),
        ("UPDATE files SET base = '/mnt/' || char(27) WHERE id = 2", "file 2"),
        ("UPDATE tensors SET fqn = 'w' || char(27) || '[2J' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET fqn = 'w' || char(0) WHERE id = 0", "tensor"),
        ("UPDATE tensors SET tie = 'w' || char(10) WHERE id = 0", "tensor"),
        ("UPDATE tensors SET fqn = '' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET dtype = 'f33' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET role = 'king' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET shape = '[8,-6]' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET shape = '[8,6,1]' WHERE id = 0", "tensor"),
        (
            "UPDATE tensors SET shape = '[18446744073709551615,2]', chunks = zeroblob(8) WHERE id = 0",
            "tensor",
        ),
        ("UPDATE tensors SET placement = 'tp' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET layer = -1 WHERE id = 0", "tensor"),
        ("UPDATE tensors SET layer = 4294967296 WHERE id = 0", "tensor"),
        ("UPDATE tensors SET fingerprint = '00' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET chunks = x'ffffffff00000000' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET chunks = x'00000000ff000000' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET chunks = x'' WHERE id = 0", "tensor"),
        ("UPDATE tensors SET fqn = 'step', role = 'slot:step' WHERE id = 0", "tensor"),
        ("UPDATE aliases SET tensor = 77 WHERE position = 0", "alias"),
        ("UPDATE aliases SET position = 5 WHERE position = 1", "alias"),
        ("INSERT INTO aliases VALUES (77, 0, 'x', 'y', NULL)", "aliases"),
        ("UPDATE mesh SET extent = 0", "mesh"),
        ("UPDATE mesh SET axis = 'dp'", "mesh"),
        ("UPDATE objects SET path = '[null]' WHERE id = 0", "object 0"),
        ("UPDATE objects SET encoding = 'yaml' WHERE id = 0", "object 0"),
        ("UPDATE objects SET bytes = zeroblob(65537) WHERE id = 0", "object 0"),
        ("UPDATE objects SET bytes = x'00' WHERE id = 1", "object 1"),
        ("UPDATE objects SET file = 9 WHERE id = 1", "object 1"),
        ("UPDATE objects SET start = 9223372036854775807 WHERE id = 1", "object 1"),
        ("UPDATE meta SET value = '{' WHERE key = 'writer'", "meta \"writer\""),
        ("UPDATE meta SET value = '7' WHERE key = 'checkpoint'", "meta \"checkpoint\""),
        ("DELETE FROM meta WHERE key = 'extra'", "meta \"extra\""),
    ] {
        match read::manifest_of(&tampered(statements)) {
            Err(ManifestError::Row { place: found, .. }) => {
                assert!(found.contains(place), "{statements}: {found}");
            }
            other => panic!("{statements}: {other:?}"),
        }
    }
}

#[test]
fn chunks_that_lie_outside_their_tensor_or_file_are_refused() {
    for statements in [
        "UPDATE tensors SET shape = '[4,6]' WHERE id = 0",
        "UPDATE files SET size = 10 WHERE id = 0",
        "DELETE FROM files; UPDATE objects SET bytes = x'', file = NULL, start = NULL, length = NULL",
    ] {
        let error = Manifest::decode_unnamed(&tampered(statements)).unwrap_err();
        assert!(matches!(error.kind(), ErrorKind::Corrupt | ErrorKind::Internal), "{statements}: {error}");
    }
}

#[test]
fn what_no_reader_would_take_is_not_written() {
    let broken: [fn(&mut Manifest); 7] = [
        |it| it.catalog.files[0].path = "../x".to_owned(),
        |it| it.catalog.files[0].size = u64::MAX,
        |it| it.catalog.objects[0].bytes = Bytes::from(vec![0; INLINE_OBJECT_LIMIT + 1]),
        |it| it.objects[1] = ObjectPlace::File { file: FileId(99), offset: 0, len: 1 },
        |it| it.objects.truncate(1),
        |it| drop(it.later.insert("writer".to_owned(), json!(1))),
        |it| {
            it.catalog.files[2].location =
                Location::External { base: "x".to_owned(), etag: None, mtime_ns: None }
        },
    ];
    for (n, breaks) in broken.iter().enumerate() {
        let mut manifest = sample();
        breaks(&mut manifest);
        assert_eq!(manifest.encode().unwrap_err().kind(), ErrorKind::Incompatible, "{n}");
    }
}

fn any_chunk(rank: usize) -> impl Strategy<Value = Chunk> {
    let dims = || prop::collection::vec(0_u64..50, rank);
    let record = prop::option::of((0_u64..1 << 40, any::<u64>(), any::<u32>()));
    (dims(), dims(), prop::option::of(dims()), 0_u32..4, 0_u64..1 << 30, record).prop_map(
        |(offsets, extents, strides, file, offset, record)| Chunk {
            region: Region::new(&offsets, &extents).unwrap(),
            file: FileId(file),
            offset,
            strides: strides.map(|it| Dims::from_slice(&it)),
            record: record.map(|(offset, len, crc32)| CrcRecord { offset, len, crc32 }),
        },
    )
}

prop_compose! {
    fn any_tensor()(rank in 0_usize..5)(
        rank in Just(rank),
        role in prop::sample::select(vec![Role::Param, Role::Buffer, Role::ExpAvg, Role::Other, Role::Slot("s t".into())]),
        dtype in prop::sample::select(vec![Dtype::F32, Dtype::BF16, Dtype::F8E4M3FN, Dtype::C128, Dtype::Bool]),
        layer in prop::option::of(any::<u32>()),
        padded in prop::option::of(0_u64..1 << 62),
        keys in prop::collection::vec("\\PC{0,8}", 0..3),
        fingerprint in prop::option::of(any::<[u8; 16]>()),
        chunks in prop::collection::vec(any_chunk(rank), 0..6),
    ) -> (Entry, Chunks) {
        let mut entry = Entry::new(Fqn::new("x").unwrap(), role, dtype, Shape::new(&vec![100; rank]));
        (entry.layer, entry.padded_rows) = (layer, padded);
        entry.aliases = keys
            .into_iter()
            .map(|key| Alias { of: "pt".to_owned(), path: vec![json!(key)], key })
            .collect();
        (entry, Chunks { chunks: chunks.into(), fingerprint: fingerprint.map(Fingerprint::from_bytes) })
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_manifest_reads_back_as_it_was_and_encodes_to_the_same_bytes(
        tensors in prop::collection::vec(any_tensor(), 0..6),
        objects in prop::collection::vec(("\\PC{0,8}", prop::collection::vec(any::<u8>(), 0..99)), 0..4),
        step in prop::option::of(any::<u64>()),
    ) {
        let mut manifest = sample();
        for (n, (mut entry, chunks)) in tensors.into_iter().enumerate() {
            entry.fqn = Fqn::new(format!("layers.{n}.weight")).unwrap();
            manifest.catalog.push(entry, chunks).unwrap();
        }
        for (key, bytes) in objects {
            manifest.catalog.objects.push(object(&key, &bytes));
            manifest.objects.push(ObjectPlace::Inline);
        }
        manifest.catalog.step = step;
        let encoded = manifest.encode().unwrap();
        let back = Manifest::decode(&encoded.bytes, &encoded.digest).unwrap();
        assert_same(&manifest, &back);
        prop_assert_eq!(back.encode().unwrap(), encoded);
    }

    #[test]
    fn a_damaged_image_is_a_manifest_or_an_error(
        damage in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..20),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut image = sample().encode().unwrap().bytes.to_vec();
        for (at, byte) in damage {
            let at = at.index(image.len());
            image[at] = byte;
        }
        if let Some(cut) = cut {
            image.truncate(cut.index(image.len() / 4096 + 1) * 4096);
        }
        if let Err(error) = Manifest::decode_unnamed(&image) {
            prop_assert!(!error.to_string().is_empty());
        }
    }

    #[test]
    fn packed_chunks_from_anywhere_are_a_list_or_an_error(
        rank in 0_usize..4, mut column in prop::collection::vec(any::<u8>(), 0..200), count in 0_u8..4, columns in 0_u8..4,
    ) {
        if column.len() >= 8 {
            column[..8].copy_from_slice(&[count, 0, 0, 0, columns, 0, 0, 0]);
        }
        if let Ok(list) = ChunkList::from_packed(rank, column.clone()) {
            prop_assert_eq!(list.packed().unwrap().into_owned(), &column[..]);
            let chunks: Vec<Chunk> = list.iter().collect();
            prop_assert_eq!(chunks.len(), usize::from(count), "every record is a chunk");
            prop_assert_eq!(ChunkList::from(chunks).packed().unwrap().into_owned(), &column[..]);
        }
    }
}
