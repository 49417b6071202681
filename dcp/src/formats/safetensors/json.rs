//! The JSON of a header, read without a map in between: order is kept, a name that comes twice is seen, and memory
//! stays in proportion to the text.

use std::{collections::HashSet, fmt};

use serde::{
    Deserialize, Deserializer,
    de::{MapAccess, Visitor},
};
use smallvec::SmallVec;

/// A header as its text says it, unchecked but for names that come twice.
#[derive(Debug, Default)]
pub(super) struct Raw {
    pub(super) tensors: Vec<(String, RawTensor)>,
    pub(super) metadata: Vec<(String, String)>,
    /// The first name that came twice.
    pub(super) duplicate: Option<String>,
}

/// One tensor's record. Fields that later versions may add are ignored, as the format's own reader does.
#[derive(Debug, Deserialize)]
pub(super) struct RawTensor {
    pub(super) dtype: Box<str>,
    pub(super) shape: SmallVec<[u64; 4]>,
    pub(super) data_offsets: (u64, u64),
}

struct Metadata(Vec<(String, String)>, Option<String>);

impl<'de> Deserialize<'de> for Raw {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Raw;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors by name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw, A::Error> {
                let (mut raw, mut seen, mut has_metadata) = (Raw::default(), HashSet::new(), false);
                while let Some(key) = map.next_key::<String>()? {
                    let is_metadata = key == "__metadata__";
                    let fresh = if is_metadata {
                        !std::mem::replace(&mut has_metadata, true)
                    } else {
                        seen.insert(key.clone())
                    };
                    if !fresh {
                        raw.duplicate.get_or_insert_with(|| key.clone());
                    }
                    if is_metadata {
                        let Metadata(pairs, twice) = map.next_value()?;
                        raw.metadata = pairs;
                        raw.duplicate = raw.duplicate.take().or(twice);
                    } else {
                        raw.tensors.push((key, map.next_value()?));
                    }
                }
                Ok(raw)
            }
        }
        from.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Metadata {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = Metadata;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of texts")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Metadata, A::Error> {
                let (mut pairs, mut seen, mut twice) = (Vec::new(), HashSet::new(), None);
                while let Some((key, value)) = map.next_entry::<String, String>()? {
                    if !seen.insert(key.clone()) {
                        twice.get_or_insert_with(|| key.clone());
                    }
                    pairs.push((key, value));
                }
                Ok(Metadata(pairs, twice))
            }
        }
        from.deserialize_map(Pairs)
    }
}
