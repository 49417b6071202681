//! From rows to a manifest: every number, name and reference is checked on the way.

use std::{fmt::Display, str::FromStr};

use bytes::Bytes;
use fqn::{Alias, AxisName, Dtype, Entry, Fqn, Role, Shape};
use reshard::{Mesh, StageSplit};
use rusqlite::{Connection, Row, Rows};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::{
    INLINE_OBJECT_LIMIT, Manifest, ManifestError, ObjectPlace, UNDERSTOOD_FEATURES, check_base, check_path,
    image,
    schema::{CODED_BLOCKS, CODED_KEY, MANIFEST_VERSION},
    weight,
    write::{META_KEYS, lies_in},
};
use crate::{
    BlockRef, Catalog, ChunkList, Chunks, FileEntry, FileId, Format, Location, ObjectEntry, PathPart,
    digest::BLOCK_LEN,
};

type Result<T> = std::result::Result<T, ManifestError>;

/// Most dimensions of a tensor.
pub(super) const MAX_RANK: usize = 64;

/// The manifest in an image that came from anywhere; the catalog's own invariants are the caller's to check.
pub(super) fn manifest_of(bytes: &[u8]) -> Result<Manifest> {
    let db = image::open(bytes)?;
    if let Some(why) = weight::excess(&db, bytes.len() as u64)? {
        return Err(ManifestError::Image(why));
    }
    let mut meta = Meta { rows: read_meta(&db)?, features: Vec::new() };
    meta.check_version()?;
    let checkpoint: Checkpoint = meta.take("checkpoint")?;
    let mut catalog = Catalog::new(checkpoint.format);
    (catalog.variant, catalog.step, catalog.extra) =
        (checkpoint.variant, checkpoint.step, meta.take("extra")?);
    (catalog.mesh, catalog.split) = (read_mesh(&db)?, checkpoint.split);
    catalog.files = read_files(&db)?;
    catalog.codecs = meta.take_coded(&mut catalog.files)?;
    make_room(&db, &mut catalog)?;
    read_tensors(&db, &mut catalog)?;
    let (objects, places) = read_objects(&db, &catalog.files)?.into_iter().unzip();
    catalog.objects = objects;
    let (writer, origin) = (meta.take("writer")?, meta.take("origin")?);
    Ok(Manifest { catalog, objects: places, writer, origin, later: meta.rows })
}

#[derive(serde::Deserialize)]
struct Checkpoint {
    format: Format,
    variant: String,
    step: Option<u64>,
    split: Option<StageSplit>,
}

/// Which files have compressed blocks, and why.
#[derive(serde::Deserialize)]
struct Coded {
    files: Vec<(u32, u64)>,
    rules: Option<String>,
}

/// Most bytes of the rules of compression.
const LONGEST_RULES: usize = 4096;

/// Rows of `meta` not yet taken.
struct Meta {
    rows: Map<String, Value>,
    features: Vec<String>,
}

impl Meta {
    fn take<T: DeserializeOwned>(&mut self, key: &str) -> Result<T> {
        // Shifting keeps later keys in order, so that they are written again as they were.
        let value = self.rows.shift_remove(key).ok_or_else(|| bad(&format!("meta {key:?}"), "is missing"))?;
        serde_json::from_value(value).map_err(|why| bad(&format!("meta {key:?}"), why))
    }

    fn check_version(&mut self) -> Result<()> {
        let format: String = self.take("format")?;
        if format != "ckpt manifest" {
            return Err(bad("meta \"format\"", format!("{format:?}")));
        }
        let (major, _minor): (u32, u32) = self.take("version")?;
        if major != MANIFEST_VERSION.0 {
            return Err(ManifestError::Version(major));
        }
        let features: Vec<String> = self.take("features")?;
        let unknown = features.iter().find(|feature| !UNDERSTOOD_FEATURES.contains(&feature.as_str()));
        if let Some(feature) = unknown {
            return Err(ManifestError::Feature(feature.clone()));
        }
        self.features = features;
        Ok(())
    }

    /// The logical bytes of files with compressed blocks, as `[file, bytes]`: there exactly if the feature is. By which rules they
    /// were, which is for people.
    fn take_coded(&mut self, files: &mut [FileEntry]) -> Result<Option<String>> {
        let wrong = |problem: &str| bad(&format!("meta {CODED_KEY:?}"), problem);
        let said = self.features.iter().any(|feature| feature == CODED_BLOCKS);
        if said != self.rows.contains_key(CODED_KEY) {
            return Err(wrong("and its feature don't come together"));
        }
        if !said {
            return Ok(None);
        }
        let Coded { files: coded, rules } = self.take(CODED_KEY)?;
        if rules.as_ref().is_some_and(|rules| rules.len() > LONGEST_RULES) {
            return Err(wrong("has rules that are too long"));
        }
        if coded.is_empty() || !coded.is_sorted_by(|(one, _), (next, _)| one < next) {
            return Err(wrong("names no files, or not in order"));
        }
        for (id, logical) in coded {
            let file = usize::try_from(id).ok().and_then(|at| files.get_mut(at));
            let file = file.ok_or_else(|| wrong("names a file that isn't there"))?;
            // Each block is at most 1 MiB and stored as one byte at least.
            let most = file.size.saturating_mul(u64::from(BLOCK_LEN));
            if logical <= file.size || logical > most || file.blocks.is_none() {
                return Err(bad(
                    &format!("file {id}"),
                    format!("{} bytes can't decode to {logical}", file.size),
                ));
            }
            file.logical = Some(logical);
        }
        Ok(rules)
    }
}

fn read_meta(db: &Connection) -> Result<Map<String, Value>> {
    let rows = collect(db, "SELECT key, value FROM meta ORDER BY key", |row| {
        let (key, value): (String, String) = (row.get(0)?, row.get(1)?);
        let value = serde_json::from_str(&value).map_err(|why| bad(&format!("meta {key:?}"), why))?;
        Ok((key, value))
    })?;
    debug_assert!(META_KEYS.is_sorted());
    Ok(rows.into_iter().collect())
}

fn read_mesh(db: &Connection) -> Result<Option<Mesh>> {
    let mut expected = 0..;
    let axes = collect(db, "SELECT position, axis, extent FROM mesh ORDER BY position", |row| {
        in_order("mesh", row, &mut expected)?;
        let axis: String = row.get(1)?;
        let place = format!("mesh axis {axis:?}");
        Ok((AxisName::new(&axis).map_err(|why| bad(&place, why))?, unsigned(&place, row.get(2)?)?))
    })?;
    if axes.is_empty() {
        return Ok(None);
    }
    Mesh::new(axes).map(Some).map_err(|why| bad("mesh", why))
}

fn read_files(db: &Connection) -> Result<Vec<FileEntry>> {
    let mut expected = 0..;
    let query =
        "SELECT id, path, location, size, base, etag, mtime_ns, blocks, blocks_root FROM files ORDER BY id";
    collect(db, query, |row| {
        let place = in_order("file", row, &mut expected)?;
        let path: String = row.get(1)?;
        check_path(&path).map_err(|why| bad(&place, why))?;
        let blocks = match (row.get::<_, Option<String>>(7)?, row.get::<_, Option<String>>(8)?) {
            (None, None) => None,
            (Some(path), Some(root)) => {
                check_path(&path).map_err(|why| bad(&place, why))?;
                Some(BlockRef { path, root: parsed(&place, &root)? })
            }
            _ => return Err(bad(&place, "a block table without its root, or the reverse")),
        };
        let (location, size) = (location(&place, row)?, unsigned(&place, row.get(3)?)?);
        Ok(FileEntry { path, location, size, logical: None, blocks })
    })
}

fn location(place: &str, row: &Row<'_>) -> Result<Location> {
    let kind: String = row.get(2)?;
    let (base, etag, mtime_ns): (Option<String>, Option<String>, Option<i64>) =
        (row.get(4)?, row.get(5)?, row.get(6)?);
    match (kind.as_str(), base, etag, mtime_ns) {
        ("step", None, None, None) => Ok(Location::InStep),
        ("root", None, None, None) => Ok(Location::InRoot),
        ("external", Some(base), etag, mtime_ns) => {
            check_base(&base).map_err(|why| bad(place, why))?;
            Ok(Location::External { base, etag, mtime_ns })
        }
        (kind, ..) => Err(bad(place, format!("location {kind:?} with columns that aren't its own"))),
    }
}

fn read_tensors(db: &Connection, catalog: &mut Catalog) -> Result<()> {
    let mut aliases = db.prepare(ALIASES)?;
    let mut aliases = Aliases::new(aliases.query([])?)?;
    let mut expected = 0..;
    let query = "SELECT id, fqn, role, dtype, shape, placement, layer, expert, tie, fusion, padded_rows, fingerprint, \
                 chunks FROM tensors ORDER BY id";
    // Straight into the catalog: a list of its own would be held beside it.
    collect(db, query, |row| {
        in_order("tensor", row, &mut expected)?;
        let (entry, chunks) = read_tensor(row, aliases.of(row.get(0)?)?)?;
        let id = entry.id();
        catalog.push(entry, chunks).map(drop).map_err(|why| bad(&format!("tensor {id}"), why))
    })?;
    aliases.finish()
}

/// Makes room for as many tensors as there are, whose weight was found small enough.
fn make_room(db: &Connection, catalog: &mut Catalog) -> Result<()> {
    let count: i64 = db.query_row("SELECT count(*) FROM tensors", [], |row| row.get(0))?;
    let count = usize::try_from(count).map_err(|_| bad("tensors", "more than fit into memory"))?;
    catalog.tensors.reserve_exact(count);
    catalog.registry.reserve(count);
    Ok(())
}

fn read_tensor(row: &Row<'_>, aliases: Vec<Alias>) -> Result<(Entry, Chunks)> {
    let (fqn, role): (String, String) = (row.get(1)?, row.get(2)?);
    let place = format!("tensor {:?} ({})", fqn.escape_default().to_string(), role.escape_default());
    let fqn = Fqn::new(&fqn).map_err(|why| bad(&place, why))?;
    let shape: Shape = json(&place, &row.get::<_, String>(4)?)?;
    if shape.rank() > MAX_RANK || shape.elements().is_none() {
        return Err(bad(&place, format!("shape {shape}, of too many dimensions or elements")));
    }
    let dtype: Dtype = parsed(&place, &row.get::<_, String>(3)?)?;
    let mut entry = Entry::new(fqn, parsed::<Role>(&place, &role)?, dtype, shape);
    let optional = |column: usize| row.get::<_, Option<String>>(column);
    entry.placement = optional(5)?.map(|it| parsed(&place, &it)).transpose()?;
    entry.layer = small(&place, row.get(6)?)?;
    entry.expert = small(&place, row.get(7)?)?;
    entry.tie = optional(8)?.map(|it| Fqn::new(&it).map_err(|why| bad(&place, why))).transpose()?;
    entry.fusion = optional(9)?.map(|it| json(&place, &it)).transpose()?.unwrap_or_default();
    entry.padded_rows = row.get::<_, Option<i64>>(10)?.map(|it| unsigned(&place, it)).transpose()?;
    entry.aliases = aliases;
    let packed = row.get_ref(12)?.as_blob().map_err(|why| bad(&place, why))?;
    let chunks = Chunks {
        fingerprint: optional(11)?.map(|it| parsed(&place, &it)).transpose()?,
        chunks: ChunkList::from_packed(entry.shape.rank(), packed.to_vec())
            .map_err(|why| bad(&place, why))?,
    };
    Ok((entry, chunks))
}

const ALIASES: &str = "SELECT tensor, position, format, key, path FROM aliases ORDER BY tensor, position";

/// The aliases, read beside the tensors: both tables are in the order of tensors.
struct Aliases<'s> {
    rows: Rows<'s>,
    /// Tensor and position of the next one.
    next: Option<(i64, i64, Alias)>,
}

impl<'s> Aliases<'s> {
    fn new(rows: Rows<'s>) -> Result<Self> {
        let mut aliases = Self { rows, next: None };
        aliases.advance()?;
        Ok(aliases)
    }

    fn advance(&mut self) -> Result<()> {
        self.next = self.rows.next()?.map(read_alias).transpose()?;
        Ok(())
    }

    /// Those of a tensor; tensors are asked for in order, each once.
    fn of(&mut self, tensor: i64) -> Result<Vec<Alias>> {
        let mut found = Vec::new();
        while let Some((_, position, alias)) = self.next.take_if(|(of, ..)| *of == tensor) {
            if usize::try_from(position) != Ok(found.len()) {
                return Err(bad(&place_of_alias(tensor, position), "is out of order"));
            }
            found.push(alias);
            self.advance()?;
        }
        found.shrink_to_fit();
        Ok(found)
    }

    /// Says whether any is left: it has no tensor.
    fn finish(self) -> Result<()> {
        let left = self.next.map(|(tensor, ..)| bad("aliases", format!("tensor {tensor} doesn't exist")));
        left.map_or(Ok(()), Err)
    }
}

fn place_of_alias(tensor: i64, position: i64) -> String {
    format!("alias {position} of tensor {tensor}")
}

fn read_alias(row: &Row<'_>) -> Result<(i64, i64, Alias)> {
    let (tensor, position): (i64, i64) = (row.get(0)?, row.get(1)?);
    let path: Option<String> = row.get(4)?;
    let path = path.map(|it| json(&place_of_alias(tensor, position), &it)).transpose()?;
    let mut path: Vec<Value> = path.unwrap_or_default();
    path.shrink_to_fit();
    Ok((tensor, position, Alias { of: row.get(2)?, key: row.get(3)?, path }))
}

fn read_objects(db: &Connection, files: &[FileEntry]) -> Result<Vec<(ObjectEntry, ObjectPlace)>> {
    let mut expected = 0..;
    let query = "SELECT id, key, path, encoding, reshard, preview, bytes, file, start, length FROM objects ORDER BY id";
    collect(db, query, |row| {
        let place = in_order("object", row, &mut expected)?;
        let steps: Vec<Value> = json(&place, &row.get::<_, String>(2)?)?;
        let path: Option<Vec<PathPart>> = steps.iter().map(PathPart::from_json).collect();
        let (at, bytes) = object_place(&place, row, files)?;
        let preview = row.get::<_, Option<String>>(5)?.map(|it| json(&place, &it)).transpose()?;
        let object = ObjectEntry {
            key: row.get(1)?,
            path: path.ok_or_else(|| bad(&place, "a path of other than names and numbers"))?,
            encoding: word(&place, row.get(3)?)?,
            bytes,
            preview,
            reshard: word(&place, row.get(4)?)?,
        };
        Ok((object, at))
    })
}

fn object_place(place: &str, row: &Row<'_>, files: &[FileEntry]) -> Result<(ObjectPlace, Bytes)> {
    let bytes: Option<Vec<u8>> = row.get(6)?;
    let at: (Option<u32>, Option<i64>, Option<i64>) = (small(place, row.get(7)?)?, row.get(8)?, row.get(9)?);
    match (bytes, at) {
        (Some(bytes), (None, None, None)) if bytes.len() <= INLINE_OBJECT_LIMIT => {
            Ok((ObjectPlace::Inline, Bytes::from(bytes)))
        }
        (None, (Some(file), Some(offset), Some(len))) => {
            let (offset, len) = (unsigned(place, offset)?, unsigned(place, len)?);
            if !lies_in(files, file, offset, len) {
                return Err(bad(place, "its bytes don't lie in its file"));
            }
            Ok((ObjectPlace::File { file: FileId(file), offset, len }, Bytes::new()))
        }
        _ => Err(bad(place, "neither small bytes here nor a range of a file")),
    }
}

fn collect<T>(db: &Connection, query: &str, mut one: impl FnMut(&Row<'_>) -> Result<T>) -> Result<Vec<T>> {
    let mut statement = db.prepare(query)?;
    let mut rows = statement.query([])?;
    let mut all = Vec::new();
    while let Some(row) = rows.next()? {
        all.push(one(row)?);
    }
    Ok(all)
}

/// Names a row by its table and number, which must count from 0 without gap: chunks refer to files by it.
fn in_order(table: &str, row: &Row<'_>, expected: &mut impl Iterator<Item = i64>) -> Result<String> {
    let id: i64 = row.get(0)?;
    let place = format!("{table} {id}");
    if expected.next() == Some(id) { Ok(place) } else { Err(bad(&place, "is out of order")) }
}

#[expect(clippy::needless_pass_by_value, reason = "a reason is made for this call, or given up by it")]
fn bad(place: &str, problem: impl ToString) -> ManifestError {
    ManifestError::row(place, &problem)
}

fn unsigned(place: &str, number: i64) -> Result<u64> {
    u64::try_from(number).map_err(|_| bad(place, format!("{number} where a count is expected")))
}

fn small(place: &str, number: Option<i64>) -> Result<Option<u32>> {
    let narrow = |it| u32::try_from(it).map_err(|_| bad(place, format!("{it} where an index is expected")));
    number.map(narrow).transpose()
}

fn parsed<T: FromStr>(place: &str, text: &str) -> Result<T>
where
    T::Err: Display,
{
    text.parse().map_err(|why: T::Err| bad(place, why))
}

fn json<T: DeserializeOwned>(place: &str, text: &str) -> Result<T> {
    serde_json::from_str(text).map_err(|why| bad(place, why))
}

fn word<T: DeserializeOwned>(place: &str, word: String) -> Result<T> {
    serde_json::from_value(Value::String(word)).map_err(|why| bad(place, why))
}
