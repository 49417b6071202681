//! Large objects: above 64 KiB they do not lie in the manifest but in a blob, a safetensors file of bytes.

use bytes::Bytes;
use fqn::{Dtype, Shape};

use crate::{
    FileId, ObjectEntry, Result,
    formats::safetensors::HeaderBuilder,
    manifest::{INLINE_OBJECT_LIMIT, ObjectPlace},
};

/// The blob of a checkpoint's large objects.
#[derive(Debug, Clone, Default)]
pub(crate) struct ObjectBlob {
    /// All bytes of it; empty when no object is large.
    pub(crate) bytes: Bytes,
    /// First byte of each object that lies in it.
    places: Vec<Option<u64>>,
}

impl ObjectBlob {
    /// Lays out the large ones among `objects`.
    ///
    /// # Errors
    /// A header beyond the limit of safetensors.
    pub(crate) fn of(objects: &[ObjectEntry]) -> Result<Self> {
        let large: Vec<usize> =
            (0..objects.len()).filter(|at| objects.get(*at).is_some_and(is_large)).collect();
        let mut places = vec![None; objects.len()];
        if large.is_empty() {
            return Ok(Self { bytes: Bytes::new(), places });
        }
        let mut header = HeaderBuilder::new();
        for at in &large {
            let Some(object) = objects.get(*at) else { continue };
            // Keys of foreign formats can be anything; their place in the list can't be mistaken.
            header.tensor(format!("object {at}"), Dtype::U8, &Shape::new(&[object.bytes.len() as u64]))?;
        }
        let placed = header.finish()?;
        let mut bytes = placed.bytes;
        for (at, offset) in large.iter().zip(&placed.offsets) {
            if let (Some(object), Some(place)) = (objects.get(*at), places.get_mut(*at)) {
                *place = Some(*offset);
                bytes.extend_from_slice(&object.bytes);
            }
        }
        Ok(Self { bytes: bytes.into(), places })
    }

    /// Whether there is anything in it.
    pub(crate) fn is_needed(&self) -> bool {
        !self.bytes.is_empty()
    }

    /// Where each object is, given the blob's place among the files; bytes of large ones are taken out of `objects`.
    pub(crate) fn place(&self, objects: &mut [ObjectEntry], file: FileId) -> Vec<ObjectPlace> {
        let each = objects.iter_mut().zip(&self.places);
        each.map(|(object, place)| match place {
            None => ObjectPlace::Inline,
            Some(offset) => {
                let len = std::mem::take(&mut object.bytes).len() as u64;
                ObjectPlace::File { file, offset: *offset, len }
            }
        })
        .collect()
    }
}

fn is_large(object: &ObjectEntry) -> bool {
    object.bytes.len() > INLINE_OBJECT_LIMIT
}
