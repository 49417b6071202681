//! The lists under the card: tensors (folded or single), shards, files, objects.

use dcp::{Catalog, Encoding};
use fqn::{Entry, Role, fold};
use serde::Serialize;

use crate::output::{
    style::{self, harmless},
    table::{Align, Table},
    units,
};

/// A tensor, or the tensors of repeated layers.
#[derive(Debug, Serialize)]
pub(super) struct TensorLine {
    pub(super) fqn: String,
    pub(super) count: usize,
    role: String,
    dtype: &'static str,
    shape: Vec<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    placement: Option<String>,
    chunks: usize,
    bytes: u64,
    /// Only for single tensors.
    #[serde(skip_serializing_if = "Option::is_none")]
    fingerprint: Option<String>,
}

impl TensorLine {
    /// Whether the optimizer owns it.
    pub(super) fn is_optimizer(&self) -> bool {
        self.role.parse::<Role>().is_ok_and(|role| role.is_optimizer())
    }

    /// The optimizer's own name of the values.
    pub(super) fn slot(&self) -> &str {
        self.role.strip_prefix("slot:").unwrap_or(&self.role)
    }
}

/// A chunk.
#[derive(Debug, Serialize)]
pub(super) struct ShardLine {
    tensor: String,
    region: String,
    file: String,
    offset: u64,
    bytes: u64,
    row_major: bool,
}

/// A file.
#[derive(Debug, Serialize)]
pub(super) struct FileLine {
    path: String,
    bytes: u64,
    logical_bytes: u64,
    chunks: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    block_table_root: Option<String>,
}

/// A non-tensor value.
#[derive(Debug, Serialize)]
pub(super) struct ObjectLine {
    key: String,
    encoding: &'static str,
    bytes: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<serde_json::Value>,
}

/// One line per tensor.
pub(super) fn single(catalog: &Catalog, chosen: &[usize]) -> Vec<TensorLine> {
    chosen.iter().filter_map(|&at| line(catalog, at)).collect()
}

/// One line per group of tensors that differ in their indices only.
pub(super) fn folded(catalog: &Catalog, chosen: &[usize]) -> Vec<TensorLine> {
    let entries: Vec<&Entry> = chosen.iter().filter_map(|&at| catalog.registry.entries().get(at)).collect();
    let names: Vec<&str> = entries.iter().map(|entry| entry.fqn.as_str()).collect();
    let alike =
        |at: usize| entries.get(at).map(|e| (e.role.clone(), e.dtype, e.shape.clone(), e.placement.clone()));
    let groups = fold::fold_by(&names, alike).into_iter();
    groups
        .filter_map(|group| {
            let members: Vec<TensorLine> =
                group.members.iter().filter_map(|&at| line(catalog, *chosen.get(at)?)).collect();
            let (chunks, bytes) =
                members.iter().fold((0, 0_u64), |(c, b), m| (c + m.chunks, b.saturating_add(m.bytes)));
            let count = members.len();
            let fingerprint = |line: &mut TensorLine| if count == 1 { line.fingerprint.take() } else { None };
            let mut first = members.into_iter().next()?;
            let fingerprint = fingerprint(&mut first);
            Some(TensorLine { fqn: group.pattern, count, chunks, bytes, fingerprint, ..first })
        })
        .collect()
}

fn line(catalog: &Catalog, at: usize) -> Option<TensorLine> {
    let (entry, chunks) = (catalog.registry.entries().get(at)?, catalog.tensors.get(at)?);
    Some(TensorLine {
        fqn: entry.fqn.to_string(),
        count: 1,
        role: entry.role.to_string(),
        dtype: entry.dtype.name(),
        shape: entry.shape.to_vec(),
        placement: entry.placement.as_ref().map(ToString::to_string),
        chunks: chunks.chunks.len(),
        bytes: entry.bytes().unwrap_or(0),
        fingerprint: chunks.fingerprint.as_ref().map(ToString::to_string),
    })
}

/// Every chunk of the chosen tensors.
pub(super) fn shards(catalog: &Catalog, chosen: &[usize]) -> Vec<ShardLine> {
    let mut lines = Vec::new();
    for &at in chosen {
        let (Some(entry), Some(chunks)) = (catalog.registry.entries().get(at), catalog.tensors.get(at))
        else {
            continue;
        };
        lines.extend(chunks.chunks.iter().map(|chunk| ShardLine {
            tensor: entry.id().to_string(),
            region: chunk.region.to_string(),
            file: catalog.file(chunk.file).map_or_else(|_| String::new(), |file| file.path.clone()),
            offset: chunk.offset,
            bytes: chunk.span(entry.dtype).unwrap_or(0),
            row_major: chunk.is_packed(),
        }));
    }
    lines
}

/// Every file.
pub(super) fn files(catalog: &Catalog) -> Vec<FileLine> {
    let mut counts = vec![0_usize; catalog.files.len()];
    for chunk in catalog.tensors.iter().flat_map(|tensor| &tensor.chunks) {
        if let Some(count) = usize::try_from(chunk.file.0).ok().and_then(|at| counts.get_mut(at)) {
            *count += 1;
        }
    }
    let lines = catalog.files.iter().zip(counts).map(|(file, chunks)| FileLine {
        path: file.path.clone(),
        bytes: file.size,
        logical_bytes: file.logical_size(),
        chunks,
        block_table_root: file.blocks.as_ref().map(|blocks| blocks.root.to_string()),
    });
    lines.collect()
}

/// Every object.
pub(super) fn objects(catalog: &Catalog) -> Vec<ObjectLine> {
    let encoding = |encoding| match encoding {
        Encoding::Json => "json",
        Encoding::Pickle => "pickle",
        Encoding::TorchSave => "torch-save",
    };
    let lines = catalog.objects.iter().map(|object| ObjectLine {
        key: object.key.clone(),
        encoding: encoding(object.encoding),
        bytes: object.bytes.len(),
        value: object.preview.clone(),
    });
    lines.collect()
}

pub(super) fn tensor_table(lines: &[&TensorLine]) -> Table {
    let mut table = Table::new(&[
        ("tensor", Align::Left),
        ("count", Align::Right),
        ("role", Align::Left),
        ("shape", Align::Left),
        ("dtype", Align::Left),
        ("placement", Align::Left),
        ("chunks", Align::Right),
        ("size", Align::Right),
    ]);
    for line in lines {
        let count = if line.count > 1 { format!("x{}", line.count) } else { String::new() };
        let (shape, placement) = (fqn::Shape::new(&line.shape), line.placement.clone().unwrap_or_default());
        let chunks = line.chunks.to_string();
        let (name, size) = (harmless(&line.fqn), units::bytes(line.bytes));
        table.row([
            name,
            count,
            line.role.clone(),
            shape.to_string(),
            line.dtype.to_owned(),
            placement,
            chunks,
            size,
        ]);
    }
    table
}

pub(super) fn shard_table(lines: &[ShardLine]) -> Table {
    let mut table = Table::new(&[
        ("shard of", Align::Left),
        ("box", Align::Left),
        ("file", Align::Left),
        ("offset", Align::Right),
        ("bytes", Align::Right),
        ("layout", Align::Left),
    ]);
    for line in lines {
        let layout = if line.row_major { "row-major" } else { "strided" };
        let (offset, bytes) = (line.offset.to_string(), line.bytes.to_string());
        table.row([
            harmless(&line.tensor),
            line.region.clone(),
            harmless(&line.file),
            offset,
            bytes,
            layout.to_owned(),
        ]);
    }
    table
}

pub(super) fn file_table(lines: &[FileLine]) -> Table {
    let columns = [
        ("file", Align::Left),
        ("chunks", Align::Right),
        ("bytes", Align::Right),
        ("block table", Align::Left),
    ];
    let mut table = Table::new(&columns);
    for line in lines {
        let root = line.block_table_root.clone().unwrap_or_default();
        table.row([harmless(&line.path), line.chunks.to_string(), line.bytes.to_string(), root]);
    }
    table
}

pub(super) fn object_table(lines: &[ObjectLine]) -> Table {
    let columns =
        [("object", Align::Left), ("encoding", Align::Left), ("bytes", Align::Right), ("value", Align::Left)];
    let mut table = Table::new(&columns);
    for line in lines {
        let value = line.value.as_ref().map(|value| harmless(&value.to_string())).unwrap_or_default();
        let short = style::shortened(&value, 60);
        table.row([harmless(&line.key), line.encoding.to_owned(), line.bytes.to_string(), short]);
    }
    table
}
