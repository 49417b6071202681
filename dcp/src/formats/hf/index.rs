//! `model.safetensors.index.json`, checked: which tensor is in which shard.

use std::fmt;

use serde::{
    Deserialize, Deserializer,
    de::{Error as _, MapAccess, Visitor},
};
use serde_json::Value;

use crate::{Error, Result, formats::path};

/// A parsed index.
#[derive(Debug, Deserialize)]
pub(crate) struct Index {
    /// Anything; `total_size` is what is used of it.
    #[serde(default)]
    pub(crate) metadata: Value,
    /// Names and files, in the index's order.
    pub(crate) weight_map: WeightMap,
}

/// Names and files in order, names unique.
#[derive(Debug, Default)]
pub(crate) struct WeightMap(pub(crate) Vec<(String, String)>);

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Pairs;
        impl<'de> Visitor<'de> for Pairs {
            type Value = WeightMap;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of file names by tensor name")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<WeightMap, A::Error> {
                let (mut pairs, mut seen) = (Vec::new(), std::collections::HashSet::new());
                while let Some((name, file)) = map.next_entry::<String, String>()? {
                    if !seen.insert(name.clone()) {
                        return Err(A::Error::custom(format!("{:?} comes twice", name)));
                    }
                    pairs.push((name, file));
                }
                Ok(WeightMap(pairs))
            }
        }
        from.deserialize_map(Pairs)
    }
}

impl Index {
    /// Parses the text of an index called `shown`.
    ///
    /// # Errors
    /// `Corrupt` for anything but an index, a name or a path that is refused.
    pub(crate) fn parse(text: &[u8], shown: &str) -> Result<Self> {
        let index: Self = serde_json::from_slice(text)
            .map_err(|error| Error::corrupt(format!("{shown}: no valid index: {error}")).caused_by(error))?;
        for (name, file) in &index.weight_map.0 {
            fqn::check_name(name).map_err(|error| Error::corrupt(format!("{shown}: {error}")))?;
            path::check(file).map_err(|error| error.at(format!("{shown}: {name}")))?;
        }
        Ok(index)
    }

    /// The files, each once, in order of first appearance.
    pub(crate) fn files(&self) -> Vec<String> {
        let mut seen = std::collections::HashSet::new();
        self.weight_map.0.iter().map(|(_, file)| file).filter(|file| seen.insert(*file)).cloned().collect()
    }

    /// `metadata.total_size`; some writers made it a float.
    pub(crate) fn total_size(&self) -> Option<u64> {
        let value = self.metadata.get("total_size")?;
        value.as_u64().or_else(|| value.as_f64().and_then(|size| format!("{size:.0}").parse().ok()))
    }
}

/// Whether bytes are an index.
#[cfg(any(test, feature = "testing"))]
pub(crate) fn is_index(bytes: &[u8]) -> bool {
    Index::parse(bytes, "index").is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_leads_out_of_its_folder_or_names_twice_is_refused() {
        let refuse = |text: &str| Index::parse(text.as_bytes(), "index").unwrap_err().to_string();
        assert!(refuse(r#"{"weight_map":{"w":"../../etc/passwd"}}"#).contains("downward"));
        assert!(refuse(r#"{"weight_map":{"w":"/etc/passwd"}}"#).contains("downward"));
        assert!(refuse(r#"{"weight_map":{"w":"a","w":"b"}}"#).contains("comes twice"));
        assert!(refuse(r#"{"weight_map":{"w\u001b":"a"}}"#).contains("control character"));
        assert!(refuse("{}").contains("weight_map"));
    }

    #[test]
    fn files_come_once_and_the_size_may_be_a_float() {
        let text = r#"{"metadata":{"total_size":12.0},"weight_map":{"a":"2","b":"1","c":"2"}}"#;
        let index = Index::parse(text.as_bytes(), "index").unwrap();
        assert_eq!((index.files(), index.total_size()), (vec!["2".to_owned(), "1".to_owned()], Some(12)));
    }
}
