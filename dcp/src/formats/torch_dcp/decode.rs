//! `.metadata` from its pickle: every class of torch 2.1 to 2.13, by name, nothing else.
//!
//! Attributes are found by name, in the object's state; those that are unknown are kept as facts, so that a
//! checkpoint with somebody's additions stays whole.

use fqn::{Dims, Dtype, Shape};
use reshard::Region;
use serde_json::{Map, Value};

use super::archive::of_pickle;
use super::metadata::{ClassLayout, Item, Metadata, StorageInfo, StorageKey};
use crate::{
    Error, PathPart, Result,
    formats::path,
    pickle::{Context, Limits, Object, Policy, Ref, Tree, Unknown, Value as Inert, read},
};

/// Longest rendering of an attribute that is kept as text.
const MOST_TEXT: usize = 4096;

/// Decodes the bytes of a metadata file.
///
/// # Errors
/// `Corrupt`: a pickle that is refused (it would run code, it is cut short), or not torch's metadata.
pub fn decode(bytes: &[u8]) -> Result<Metadata> {
    let policy = Policy::new(Context::Metadata).unknown(Unknown::Inert);
    let tree = read(bytes, &policy, &Limits::default()).map_err(of_pickle)?;
    Decoder { tree: &tree, metadata: Metadata::default() }.run()
}

struct Decoder<'a> {
    tree: &'a Tree,
    metadata: Metadata,
}

impl Decoder<'_> {
    fn run(mut self) -> Result<Metadata> {
        let root = self.tree.root();
        let object = class(root, "Metadata").ok_or_else(|| wrong("the root", "a Metadata object", root))?;
        let state = object.state.and_then(Ref::as_mapping);
        for (name, value) in state.ok_or_else(|| Error::corrupt("the Metadata object has no attributes"))? {
            match name.as_str() {
                Some("state_dict_metadata") => self.items(value)?,
                Some("planner_data") => self.paths(value),
                Some("storage_data") => self.storage(value)?,
                Some(name) => self.fact(name, value),
                None => {}
            }
        }
        self.metadata.unknown_globals =
            self.tree.opaque_globals().map(|global| format!("{}.{}", global.module, global.name)).collect();
        self.metadata.layout = self.layout();
        Ok(self.metadata)
    }

    fn layout(&self) -> ClassLayout {
        let named =
            |module: &str, name: &str| self.tree.globals().iter().any(|global| global.is(module, name));
        if self.metadata.facts.contains_key("version") {
            ClassLayout::Torch29
        } else if named(METADATA, "StorageMeta") || self.metadata.facts.contains_key("storage_meta") {
            ClassLayout::Torch24
        } else if named("torch.distributed._shard.sharded_tensor.metadata", "TensorProperties") {
            ClassLayout::Torch21
        } else {
            ClassLayout::Torch23
        }
    }

    fn items(&mut self, value: Ref<'_>) -> Result<()> {
        let pairs = value.as_mapping().ok_or_else(|| wrong("state_dict_metadata", "a dict", value))?;
        for (key, value) in pairs {
            let key = text(key, "a key of state_dict_metadata")?;
            fqn::check_name(key).map_err(|error| Error::corrupt(format!("state_dict_metadata: {error}")))?;
            let item = item(value).map_err(|error| error.at(key))?;
            self.metadata.items.push((key.to_owned(), item));
        }
        Ok(())
    }

    /// Paths help to rebuild nesting; one that is no path is told, and the flat key stands for it.
    fn paths(&mut self, value: Ref<'_>) {
        let Some(pairs) = value.as_mapping() else {
            if !value.is_none() {
                self.fact("planner_data", value);
            }
            return;
        };
        for (key, value) in pairs {
            let parts = value.as_sequence().and_then(|parts| parts.map(part).collect::<Option<Vec<_>>>());
            match (key.as_str(), parts) {
                (Some(key), Some(parts)) if !parts.is_empty() => {
                    self.metadata.paths.insert(key.to_owned(), parts);
                }
                _ => {
                    self.metadata.oddities.push(format!("planner_data of {key:.80} is no path: {value:.80}"));
                }
            }
        }
    }

    fn storage(&mut self, value: Ref<'_>) -> Result<()> {
        let pairs = value.as_mapping().ok_or_else(|| wrong("storage_data", "a dict", value))?;
        for (index, info) in pairs {
            let key = storage_key(index)?;
            let info = storage_info(info).map_err(|error| error.at(&key.key))?;
            self.metadata.storage.insert(key, info);
        }
        Ok(())
    }

    fn fact(&mut self, name: &str, value: Ref<'_>) {
        if value.is_none() || fqn::check_name(name).is_err() {
            return;
        }
        let value = match value.value() {
            Inert::Object(object) if name == "storage_meta" => attributes(&object),
            _ => json(value),
        };
        self.metadata.facts.insert(name.to_owned(), value);
    }
}

const METADATA: &str = "torch.distributed.checkpoint.metadata";

/// The object of a metadata class, by the class' name alone where the module may have moved.
fn class<'a>(value: Ref<'a>, name: &str) -> Option<Object<'a>> {
    value.as_object().filter(|object| object.is(METADATA, name))
}

fn item(value: Ref<'_>) -> Result<Item> {
    if class(value, "BytesStorageMetadata").is_some() {
        return Ok(Item::Bytes);
    }
    class(value, "TensorStorageMetadata")
        .ok_or_else(|| wrong("an entry", "a tensor's or a value's record", value))?;
    let attr = |name: &str| {
        value.attr(name).ok_or_else(|| Error::corrupt(format!("the tensor's record has no {name}")))
    };
    let dtype = dtype(attr("properties")?)?;
    let shape = Shape::from(dims(attr("size")?)?);
    let chunks = attr("chunks")?;
    let list = chunks.as_sequence().ok_or_else(|| wrong("chunks", "a list", chunks))?;
    let chunks = list.map(region).collect::<Result<Vec<_>>>()?;
    Ok(Item::Tensor { dtype, shape, chunks })
}

/// Properties have a state of five values, of which the first is the dtype; some versions kept a `__dict__`.
fn dtype(properties: Ref<'_>) -> Result<Dtype> {
    let state = properties.as_object().and_then(|object| object.state);
    let first = state.and_then(Ref::as_sequence).and_then(|mut parts| parts.next());
    let value = first.filter(|value| value.as_global().is_some()).or_else(|| properties.attr("dtype"));
    let value = value.ok_or_else(|| wrong("properties", "a record with a dtype", properties))?;
    let global = value.as_global().filter(|global| &*global.module == "torch");
    let global = global.ok_or_else(|| wrong("dtype", "a torch dtype", value))?;
    Dtype::from_torch_name(&global.name)
        .ok_or_else(|| Error::unsupported(format!("dtype torch.{} is not one that is read", global.name)))
}

fn region(chunk: Ref<'_>) -> Result<Region> {
    let attr = |name: &str| chunk.attr(name).ok_or_else(|| Error::corrupt(format!("a chunk has no {name}")));
    let (offsets, sizes) = (dims(attr("offsets")?)?, dims(attr("sizes")?)?);
    Region::new(&offsets, &sizes).map_err(|error| Error::corrupt(format!("a chunk with {error}")))
}

/// `torch.Size((…))`, or the tuple alone.
fn dims(value: Ref<'_>) -> Result<Dims> {
    let inner =
        value.as_object().filter(|object| object.is("torch", "Size")).and_then(|object| object.arg(0));
    let inner = inner.unwrap_or(value);
    let parts = inner.as_sequence().and_then(|parts| parts.map(Ref::as_u64).collect::<Option<Dims>>());
    parts.ok_or_else(|| wrong("a size", "a torch.Size of whole numbers", value))
}

fn storage_key(index: Ref<'_>) -> Result<StorageKey> {
    class(index, "MetadataIndex").ok_or_else(|| wrong("a key of storage_data", "a MetadataIndex", index))?;
    let key = index.attr("fqn").ok_or_else(|| Error::corrupt("a MetadataIndex has no fqn"))?;
    let offsets = index.attr("offset").filter(|offset| !offset.is_none()).map(dims).transpose()?;
    Ok(StorageKey { key: text(key, "fqn")?.to_owned(), offsets })
}

fn storage_info(info: Ref<'_>) -> Result<StorageInfo> {
    let attr =
        |name: &str| info.attr(name).ok_or_else(|| Error::corrupt(format!("its storage info has no {name}")));
    let number = |name: &str| -> Result<u64> {
        let value = attr(name)?;
        value.as_u64().ok_or_else(|| wrong(name, "a length or offset", value))
    };
    let relative = text(attr("relative_path")?, "relative_path")?;
    path::check(relative)?;
    let transforms = match info.attr("transform_descriptors") {
        Some(value) if !value.is_none() => {
            let list = value.as_sequence().ok_or_else(|| wrong("transform_descriptors", "a list", value))?;
            list.map(|name| text(name, "a transform").map(str::to_owned)).collect::<Result<_>>()?
        }
        _ => Vec::new(),
    };
    Ok(StorageInfo {
        path: relative.to_owned(),
        offset: number("offset")?,
        length: number("length")?,
        transforms,
    })
}

fn part(value: Ref<'_>) -> Option<PathPart> {
    match value.as_str() {
        Some(key) => fqn::check_name(key).ok().map(|()| PathPart::Key(key.to_owned())),
        None => value.as_u64().map(PathPart::Index),
    }
}

fn text<'a>(value: Ref<'a>, what: &str) -> Result<&'a str> {
    value.as_str().ok_or_else(|| wrong(what, "a text", value))
}

fn wrong(what: &str, wanted: &str, found: Ref<'_>) -> Error {
    Error::corrupt(format!("{what} is not {wanted} but {}: {found:.80}", found.noun()))
}

/// An object's attributes as JSON.
fn attributes(object: &Object<'_>) -> Value {
    let pairs = object.state.and_then(Ref::as_mapping).into_iter().flatten();
    let object: Map<String, Value> =
        pairs.filter_map(|(name, value)| Some((name.as_str()?.to_owned(), json(value)))).collect();
    Value::Object(object)
}

/// Plain values as JSON, anything else as text.
pub(crate) fn json(value: Ref<'_>) -> Value {
    match value.value() {
        Inert::None => Value::Null,
        Inert::Bool(value) => value.into(),
        Inert::Int(value) => value.into(),
        Inert::Float(value) if value.is_finite() => value.into(),
        Inert::Str(value) if value.len() <= MOST_TEXT => value.into(),
        Inert::List(items) if items.len() <= 256 => items.map(json).collect(),
        Inert::Tuple(items) if items.len() <= 256 => items.map(json).collect(),
        Inert::Dict(pairs) if pairs.len() <= 256 && pairs.clone().all(|(key, _)| key.as_str().is_some()) => {
            pairs.filter_map(|(key, value)| Some((key.as_str()?.to_owned(), json(value)))).collect()
        }
        _ => format!("{value:.1000}").into(),
    }
}
