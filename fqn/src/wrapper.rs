//! Wrapper prefixes: segments that torch's module wrappers leave in names (`module.`, `_orig_mod.`, …).
//!
//! They are found and reported; [`clean`] offers the name without them, and nothing here strips silently. A flat
//! parameter (`_flat_param`) is not a prefix but many parameters in one: it is found and cannot be cleaned.

use serde::Serialize;

/// What left a segment in a name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Wrapper {
    /// `module.` at the front: `DataParallel`, `DistributedDataParallel`, DeepSpeed's engine.
    DataParallel,
    /// `_orig_mod`: `torch.compile(module)`.
    Compiled,
    /// `_fsdp_wrapped_module`, `_fpw_module`: FSDP1.
    Fsdp,
    /// `_checkpoint_wrapped_module`, `_offload_wrapped_module`: activation checkpointing and offload.
    ActivationCheckpoint,
    /// `_forward_module`: Lightning's strategy wrapper.
    Forward,
    /// `_flat_param`, `flat_param_0`: many parameters flattened into one by FSDP1.
    FlatParam,
}

/// A name and the wrappers in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cleaned {
    /// The name without wrapper segments.
    pub name: String,
    /// Wrappers found, outermost first, with the segment as spelt.
    pub found: Vec<(Wrapper, String)>,
}

impl Wrapper {
    /// The wrapper that leaves `segment` anywhere in a name.
    #[must_use]
    pub fn of_segment(segment: &str) -> Option<Self> {
        Some(match segment {
            "_orig_mod" => Self::Compiled,
            "_fsdp_wrapped_module" | "_fpw_module" => Self::Fsdp,
            "_checkpoint_wrapped_module" | "_offload_wrapped_module" => Self::ActivationCheckpoint,
            "_forward_module" => Self::Forward,
            _ if segment.starts_with("_flat_param") => Self::FlatParam,
            _ => segment
                .strip_prefix("flat_param_")
                .and_then(crate::fold::index_of)
                .map(|_| Self::FlatParam)?,
        })
    }

    /// Whether the name without the segment names the same tensor.
    #[must_use]
    pub const fn is_prefix(self) -> bool {
        !matches!(self, Self::FlatParam)
    }

    /// What put the segment there.
    #[must_use]
    pub const fn origin(self) -> &'static str {
        match self {
            Self::DataParallel => "DistributedDataParallel or DeepSpeed",
            Self::Compiled => "torch.compile",
            Self::Fsdp => "FSDP1",
            Self::ActivationCheckpoint => "activation checkpointing",
            Self::Forward => "a Lightning strategy",
            Self::FlatParam => "FSDP1 flat parameters",
        }
    }
}

/// Finds the wrappers in `name` and offers the name without them.
#[must_use]
pub fn clean(name: &str) -> Cleaned {
    let (mut kept, mut found) = (Vec::new(), Vec::new());
    for segment in name.split('.') {
        // Only wrappers may stand before `module`: further in, it is an ordinary attribute name.
        let leading = segment == "module" && kept.is_empty();
        match Wrapper::of_segment(segment).or(leading.then_some(Wrapper::DataParallel)) {
            Some(wrapper) if wrapper.is_prefix() => found.push((wrapper, segment.to_owned())),
            Some(wrapper) => {
                found.push((wrapper, segment.to_owned()));
                kept.push(segment);
            }
            None => kept.push(segment),
        }
    }
    if kept.is_empty() {
        return Cleaned { name: name.to_owned(), found: Vec::new() };
    }
    Cleaned { name: kept.join("."), found }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrappers_are_found_anywhere_and_the_clean_name_is_offered() {
        let cleaned = clean("module._orig_mod.layers.0._checkpoint_wrapped_module.attention.wq.weight");
        assert_eq!(cleaned.name, "layers.0.attention.wq.weight");
        let kinds: Vec<_> = cleaned.found.iter().map(|(w, _)| *w).collect();
        assert_eq!(kinds, [Wrapper::DataParallel, Wrapper::Compiled, Wrapper::ActivationCheckpoint]);
    }

    #[test]
    fn a_clean_name_stays_and_an_inner_module_is_a_name_like_any_other() {
        for name in ["layers.0.wq.weight", "encoder.module.weight", "module"] {
            assert_eq!(clean(name), Cleaned { name: name.to_owned(), found: vec![] });
        }
    }

    #[test]
    fn a_flat_parameter_is_found_but_keeps_its_name() {
        let cleaned = clean("_fsdp_wrapped_module._flat_param");
        assert_eq!(cleaned.name, "_flat_param");
        assert!(cleaned.found.iter().any(|(w, _)| *w == Wrapper::FlatParam));
    }
}
