//! From a manifest to rows: one function a table, in the order of the format.

use rusqlite::{Connection, params};
use serde::Serialize;
use serde_json::{Value, json};

use fqn::{Entry, Role};

use super::{
    INLINE_OBJECT_LIMIT, Manifest, ManifestError, ObjectPlace, check_base, check_path, image,
    read::MAX_RANK,
    schema::{CODED_BLOCKS, CODED_KEY, MANIFEST_VERSION},
    weight,
};
use crate::{Chunks, FileEntry, Location, ObjectEntry, digest::Sha256Digest};

type Result<T> = std::result::Result<T, ManifestError>;

/// The SQLite image of a manifest whose catalog has been checked, and its digest.
pub(super) fn image_of(manifest: &Manifest) -> Result<(Vec<u8>, Sha256Digest)> {
    let db = tables_of(manifest)?;
    match weight::excess(&db, image::size(&db)?)? {
        None => image::finish(db),
        Some(why) => Err(ManifestError::Unwritable(format!("no reader would take it: {why}"))),
    }
}

/// The same, whether a reader would take it or not.
#[cfg(any(test, feature = "testing"))]
pub(super) fn any_image_of(manifest: &Manifest) -> Result<Vec<u8>> {
    Ok(image::finish(tables_of(manifest)?)?.0)
}

fn tables_of(manifest: &Manifest) -> Result<Connection> {
    let db = image::create()?;
    write_meta(&db, manifest)?;
    write_mesh(&db, manifest)?;
    write_files(&db, &manifest.catalog.files)?;
    write_tensors(&db, manifest)?;
    write_objects(&db, manifest)?;
    Ok(db)
}

/// Keys of `meta` that this version writes; anything else is of a later one.
pub(super) const META_KEYS: [&str; 7] =
    ["checkpoint", "extra", "features", "format", "origin", "version", "writer"];

fn write_meta(db: &Connection, manifest: &Manifest) -> Result<()> {
    let catalog = &manifest.catalog;
    let coded: Vec<(usize, u64)> =
        catalog.files.iter().enumerate().filter_map(|(id, file)| Some((id, file.logical?))).collect();
    let known = [
        json!({ "format": catalog.format, "variant": catalog.variant, "step": catalog.step, "split": catalog.split }),
        Value::Object(catalog.extra.clone()),
        if coded.is_empty() { json!([]) } else { json!([CODED_BLOCKS]) },
        json!("ckpt manifest"),
        json!(manifest.origin),
        json!([MANIFEST_VERSION.0, MANIFEST_VERSION.1]),
        json!(manifest.writer),
    ];
    let mut insert = db.prepare("INSERT INTO meta VALUES (?1, ?2)")?;
    for (key, value) in META_KEYS.iter().zip(&known) {
        insert.execute(params![key, value.to_string()])?;
    }
    if !coded.is_empty() {
        insert.execute(params![CODED_KEY, json!({ "files": coded, "rules": catalog.codecs }).to_string()])?;
    }
    for (key, value) in &manifest.later {
        if META_KEYS.contains(&key.as_str()) || key == CODED_KEY {
            return Err(ManifestError::Unwritable(format!("a second meta key {key:?}")));
        }
        insert.execute(params![key, value.to_string()])?;
    }
    Ok(())
}

fn write_mesh(db: &Connection, manifest: &Manifest) -> Result<()> {
    let mut insert = db.prepare("INSERT INTO mesh VALUES (?1, ?2, ?3)")?;
    for (at, (axis, extent)) in manifest.catalog.mesh.iter().flat_map(|mesh| mesh.axes()).enumerate() {
        insert.execute(params![number(at as u64)?, axis.as_str(), number(*extent)?])?;
    }
    Ok(())
}

fn write_files(db: &Connection, files: &[FileEntry]) -> Result<()> {
    let mut insert = db.prepare("INSERT INTO files VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)")?;
    for (id, file) in files.iter().enumerate() {
        let checked = |path: &str| check_path(path).map_err(|why| unwritable(&format!("file {path:?}"), why));
        checked(&file.path)?;
        file.blocks.iter().try_for_each(|blocks| checked(&blocks.path))?;
        let (kind, base, etag, mtime) = match &file.location {
            Location::InStep => ("step", None, None, None),
            Location::InRoot => ("root", None, None, None),
            Location::External { base, etag, mtime_ns } => ("external", Some(base), etag.as_ref(), *mtime_ns),
        };
        if let Some(base) = base {
            check_base(base).map_err(|why| unwritable(&format!("base {base:?}"), why))?;
        }
        let (blocks, root) = file.blocks.as_ref().map(|it| (&it.path, it.root.to_string())).unzip();
        let (id, size) = (number(id as u64)?, number(file.size)?);
        insert.execute(params![id, file.path, kind, size, base, etag, mtime, blocks, root])?;
    }
    Ok(())
}

fn write_tensors(db: &Connection, manifest: &Manifest) -> Result<()> {
    for (id, (entry, chunks)) in manifest.catalog.iter().enumerate() {
        let id = number(id as u64)?;
        write_tensor(db, id, entry, chunks)?;
        write_aliases(db, id, entry)?;
    }
    Ok(())
}

fn write_tensor(db: &Connection, id: i64, entry: &Entry, chunks: &Chunks) -> Result<()> {
    let name = || entry.id().to_string();
    let rank = entry.shape.rank();
    if rank > MAX_RANK {
        return Err(unwritable(&name(), format!("{rank} dimensions; at most {MAX_RANK} are kept")));
    }
    let packed = chunks.chunks.packed();
    let packed =
        packed.ok_or_else(|| unwritable(&name(), "more than 2^32 chunks, or boxes of another rank"))?;
    let fusion = (!entry.fusion.is_empty()).then(|| text(&entry.fusion)).transpose()?;
    let mut insert = db.prepare_cached(
        "INSERT INTO tensors VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
    )?;
    insert.execute(params![
        id,
        entry.fqn.as_str(),
        checked_role(&entry.role)?,
        entry.dtype.name(),
        text(&entry.shape)?,
        entry.placement.as_ref().map(ToString::to_string),
        entry.layer,
        entry.expert,
        entry.tie.as_ref().map(fqn::Fqn::as_str),
        fusion,
        entry.padded_rows.map(number).transpose()?,
        chunks.fingerprint.map(|it| it.to_string()),
        packed.as_ref(),
    ])?;
    Ok(())
}

/// A role's text, if it reads back: a slot's name comes from an optimizer.
fn checked_role(role: &Role) -> Result<String> {
    let text = role.to_string();
    match text.parse::<Role>() {
        Ok(back) if back == *role => Ok(text),
        _ => Err(ManifestError::Unwritable(format!("role {:?}", text.escape_default().to_string()))),
    }
}

fn write_aliases(db: &Connection, tensor: i64, entry: &Entry) -> Result<()> {
    let mut insert = db.prepare_cached("INSERT INTO aliases VALUES (?1, ?2, ?3, ?4, ?5)")?;
    for (at, alias) in entry.aliases.iter().enumerate() {
        let path = (!alias.path.is_empty()).then(|| text(&alias.path)).transpose()?;
        insert.execute(params![tensor, number(at as u64)?, alias.of, alias.key, path])?;
    }
    Ok(())
}

fn write_objects(db: &Connection, manifest: &Manifest) -> Result<()> {
    let objects = &manifest.catalog.objects;
    if objects.len() != manifest.objects.len() {
        return Err(ManifestError::Unwritable(format!(
            "{} objects at {} places",
            objects.len(),
            manifest.objects.len()
        )));
    }
    objects.iter().zip(&manifest.objects).enumerate().try_for_each(|(id, (object, place))| {
        write_object(db, number(id as u64)?, object, *place, &manifest.catalog.files)
    })
}

fn write_object(
    db: &Connection,
    id: i64,
    object: &ObjectEntry,
    place: ObjectPlace,
    files: &[FileEntry],
) -> Result<()> {
    let (bytes, at) = match place {
        ObjectPlace::Inline if object.bytes.len() > INLINE_OBJECT_LIMIT => {
            let problem = format!("{} bytes inline, at most {INLINE_OBJECT_LIMIT} are", object.bytes.len());
            return Err(unwritable(&format!("object {:?}", object.key), problem));
        }
        ObjectPlace::Inline => (Some(&object.bytes[..]), None),
        ObjectPlace::File { file, offset, len } => {
            if !lies_in(files, file.0, offset, len) {
                return Err(unwritable(
                    &format!("object {:?}", object.key),
                    "its bytes don't lie in its file",
                ));
            }
            (None, Some((file.0, number(offset)?, number(len)?)))
        }
    };
    let path: Vec<Value> = object.path.iter().map(crate::PathPart::to_json).collect();
    let preview = object.preview.as_ref().map(Value::to_string);
    let mut insert =
        db.prepare_cached("INSERT INTO objects VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)")?;
    insert.execute(params![
        id,
        object.key,
        text(&path)?,
        word(&object.encoding)?,
        word(&object.reshard)?,
        preview,
        bytes,
        at.map(|it| it.0),
        at.map(|it| it.1),
        at.map(|it| it.2),
    ])?;
    Ok(())
}

/// Whether a range lies within a file of the catalog, which isn't compressed: objects lie in plain files.
pub(super) fn lies_in(files: &[FileEntry], file: u32, offset: u64, len: u64) -> bool {
    let file = usize::try_from(file).ok().and_then(|at| files.get(at));
    file.is_some_and(|file| !file.is_coded() && offset.checked_add(len).is_some_and(|end| end <= file.size))
}

fn unwritable(place: &str, problem: impl std::fmt::Display) -> ManifestError {
    ManifestError::Unwritable(format!("{place}: {problem}"))
}

/// A number as SQLite keeps them.
fn number(number: u64) -> Result<i64> {
    i64::try_from(number).map_err(|_| ManifestError::Unwritable(format!("{number}, which is above 2^63 - 1")))
}

fn text(value: &impl Serialize) -> Result<String> {
    serde_json::to_string(value).map_err(|error| ManifestError::Unwritable(error.to_string()))
}

/// The text of a value whose JSON is one string.
fn word(value: &impl Serialize) -> Result<String> {
    match serde_json::to_value(value) {
        Ok(Value::String(word)) => Ok(word),
        other => Err(ManifestError::Unwritable(format!("{other:?} where a word is expected"))),
    }
}
