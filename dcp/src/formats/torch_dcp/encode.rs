//! `.metadata` to a pickle that every torch from 2.4 on opens, on any Python.
//!
//! What is left out, and why: `storage_meta` (it would pickle a path, whose class depends on the Python that reads
//! it; readers default it), `version` and `transform_descriptors` (newer than 2.4; readers default them too).

use std::collections::HashMap;

use fqn::Dtype;

use crate::{
    Error, PathPart, Result,
    pickle::{Arena, NodeId, Protocol, write},
};

use super::{
    archive::of_pickle,
    metadata::{Item, StorageInfo},
};

const MODULE: &str = "torch.distributed.checkpoint.metadata";

/// One entry of the state dict to write.
pub(super) struct Written {
    pub(super) key: String,
    pub(super) path: Vec<PathPart>,
    pub(super) item: Item,
    /// Where each chunk is, in order; of a value, one.
    pub(super) storage: Vec<StorageInfo>,
}

/// Encodes the metadata of `entries`.
///
/// # Errors
/// `Incompatible`: a dtype that torch lacks, a number beyond 63 bits.
pub(super) fn encode(entries: &[Written]) -> Result<Vec<u8>> {
    let mut encoder = Encoder { arena: Arena::new(), properties: HashMap::new(), texts: HashMap::new() };
    let (mut items, mut paths, mut storage) = (Vec::new(), Vec::new(), Vec::new());
    for entry in entries {
        let key = encoder.text(&entry.key);
        items.push((key, encoder.item(&entry.item).map_err(|error| error.at(&entry.key))?));
        paths.push((key, encoder.path(&entry.path)?));
        encoder.storage(key, entry, &mut storage)?;
    }
    let items = encoder.arena.dict(&items);
    let paths = encoder.arena.dict(&paths);
    let storage = encoder.arena.dict(&storage);
    let attributes = [("state_dict_metadata", items), ("planner_data", paths), ("storage_data", storage)];
    let root = encoder.object(MODULE, "Metadata", &attributes);
    let tree = encoder.arena.finish(root).map_err(of_pickle)?;
    write(&tree, Protocol::V4).map_err(of_pickle)
}

struct Encoder {
    arena: Arena,
    properties: HashMap<Dtype, NodeId>,
    texts: HashMap<String, NodeId>,
}

impl Encoder {
    fn text(&mut self, text: &str) -> NodeId {
        if let Some(known) = self.texts.get(text) {
            return *known;
        }
        let id = self.arena.str(text);
        self.texts.insert(text.to_owned(), id);
        id
    }

    fn number(&mut self, value: u64) -> Result<NodeId> {
        let value =
            i64::try_from(value).map_err(|_| Error::incompatible(format!("{value} exceeds 63 bits")))?;
        Ok(self.arena.int(value))
    }

    /// `class.__new__(class)` with these attributes.
    fn object(&mut self, module: &str, name: &str, attributes: &[(&str, NodeId)]) -> NodeId {
        let class = self.arena.global(module, name);
        let none = self.arena.tuple(&[]);
        let object = self.arena.new_object(class, none);
        let pairs: Vec<(NodeId, NodeId)> =
            attributes.iter().map(|(name, value)| (self.text(name), *value)).collect();
        let state = self.arena.dict(&pairs);
        self.arena.set_state(object, state);
        object
    }

    fn size(&mut self, dims: &[u64]) -> Result<NodeId> {
        let dims = dims.iter().map(|dim| self.number(*dim)).collect::<Result<Vec<_>>>()?;
        let (class, dims) = (self.arena.global("torch", "Size"), self.arena.tuple(&dims));
        let args = self.arena.tuple(&[dims]);
        Ok(self.arena.reduce(class, args))
    }

    fn item(&mut self, item: &Item) -> Result<NodeId> {
        let Item::Tensor { dtype, shape, chunks } = item else {
            let class = self.arena.global(MODULE, "BytesStorageMetadata");
            let none = self.arena.tuple(&[]);
            return Ok(self.arena.new_object(class, none));
        };
        let mut list = Vec::with_capacity(chunks.len());
        for chunk in chunks {
            let attributes =
                [("offsets", self.size(chunk.offsets())?), ("sizes", self.size(chunk.extents())?)];
            list.push(self.object(MODULE, "ChunkStorageMetadata", &attributes));
        }
        let properties = self.properties(*dtype)?;
        let size = self.size(shape)?;
        let chunks = self.arena.list(&list);
        let attributes = [("properties", properties), ("size", size), ("chunks", chunks)];
        Ok(self.object(MODULE, "TensorStorageMetadata", &attributes))
    }

    /// dtype, layout, requires_grad, memory format, pin_memory: only the first means anything to a reader.
    fn properties(&mut self, dtype: Dtype) -> Result<NodeId> {
        if let Some(known) = self.properties.get(&dtype) {
            return Ok(*known);
        }
        let name =
            dtype.torch_name().ok_or_else(|| Error::incompatible(format!("torch has no dtype {dtype}")))?;
        let dtype_id = self.arena.global("torch", name);
        let layout = self.call("torch.serialization", "_get_layout", |arena| arena.str("torch.strided"));
        let format = self.call(MODULE, "_MEM_FORMAT_ENCODING", |arena| arena.int(0));
        let (no, class) = (self.arena.bool(false), self.arena.global(MODULE, "TensorProperties"));
        let none = self.arena.tuple(&[]);
        let object = self.arena.new_object(class, none);
        let state = self.arena.tuple(&[dtype_id, layout, no, format, no]);
        self.arena.set_state(object, state);
        self.properties.insert(dtype, object);
        Ok(object)
    }

    fn call(&mut self, module: &str, name: &str, arg: impl FnOnce(&mut Arena) -> NodeId) -> NodeId {
        let (callable, arg) = (self.arena.global(module, name), arg(&mut self.arena));
        let args = self.arena.tuple(&[arg]);
        self.arena.reduce(callable, args)
    }

    fn path(&mut self, path: &[PathPart]) -> Result<NodeId> {
        let parts = path.iter().map(|part| match part {
            PathPart::Key(key) => Ok(self.text(key)),
            PathPart::Index(index) => self.number(*index),
        });
        let parts = parts.collect::<Result<Vec<_>>>()?;
        Ok(self.arena.tuple(&parts))
    }

    fn storage(&mut self, key: NodeId, entry: &Written, into: &mut Vec<(NodeId, NodeId)>) -> Result<()> {
        for (at, info) in entry.storage.iter().enumerate() {
            let index = match &entry.item {
                Item::Bytes => self.object(MODULE, "MetadataIndex", &[("fqn", key)]),
                Item::Tensor { chunks, .. } => {
                    let chunk = chunks.get(at).ok_or_else(|| Error::internal("more storage than chunks"))?;
                    let hint = self.number(u64::try_from(at).unwrap_or(u64::MAX))?;
                    let offset = self.size(chunk.offsets())?;
                    self.object(MODULE, "MetadataIndex", &[("fqn", key), ("index", hint), ("offset", offset)])
                }
            };
            let (path, offset, length) =
                (self.text(&info.path), self.number(info.offset)?, self.number(info.length)?);
            let attributes = [("relative_path", path), ("offset", offset), ("length", length)];
            into.push((
                index,
                self.object("torch.distributed.checkpoint.filesystem", "_StorageInfo", &attributes),
            ));
        }
        Ok(())
    }
}
