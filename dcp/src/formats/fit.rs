//! What a format can't hold is taken out of a target before it is planned, and told: nothing is lost in silence.

use std::collections::HashSet;

use fqn::{Fqn, Role, TensorId};
use serde::Serialize;

use crate::{Format, TargetSpec, TargetTensor};

/// What a target of some format leaves out.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct LeftOut {
    /// Tensors that are not the model's: optimizer state, counters.
    pub tensors: Vec<TensorId>,
    /// Their bytes.
    pub bytes: u64,
    /// Keys of non-tensor state.
    pub objects: Vec<String>,
    /// Tied tensors, stored once: the one that is kept and the one that is not. Their contents must agree; whoever
    /// knows both fingerprints checks it.
    pub ties: Vec<(Fqn, Fqn)>,
}

impl LeftOut {
    /// Whether everything fits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Takes out of `spec` what `format` does not hold: a Hugging Face folder holds the model's tensors, tied ones once;
/// a safetensors file holds tensors only; the rest hold everything.
pub fn fit(spec: &mut TargetSpec, format: Format) -> LeftOut {
    let mut left = LeftOut::default();
    if matches!(format, Format::Hf | Format::Safetensors) {
        left.objects = spec.objects.drain(..).map(|object| object.key).collect();
    }
    if format == Format::Hf {
        keep(spec, |tensor| {
            let kept = tensor.entry.role.is_model();
            if !kept {
                left.tensors.push(tensor.entry.id());
                left.bytes = left.bytes.saturating_add(tensor.entry.bytes().unwrap_or(0));
            }
            kept
        });
        store_ties_once(spec, &mut left);
    }
    left
}

fn keep(spec: &mut TargetSpec, keep: impl FnMut(&TargetTensor) -> bool) {
    spec.tensors.retain(keep);
}

/// Of a tie group, the member that the group is called after stays; where that is not there, the first.
fn store_ties_once(spec: &mut TargetSpec, left: &mut LeftOut) {
    let members = |group: &Fqn| {
        spec.tensors.iter().map(|t| &t.entry).filter(|e| e.tie.as_ref() == Some(group)).collect::<Vec<_>>()
    };
    let groups: HashSet<Fqn> = spec.tensors.iter().filter_map(|tensor| tensor.entry.tie.clone()).collect();
    let mut dropped: HashSet<(Fqn, Role)> = HashSet::new();
    for group in groups {
        let all = members(&group);
        let Some(kept) = all.iter().find(|entry| entry.fqn == group).or(all.first()) else { continue };
        for other in all.iter().filter(|entry| entry.fqn != kept.fqn) {
            left.ties.push((kept.fqn.clone(), other.fqn.clone()));
            dropped.insert((other.fqn.clone(), other.role.clone()));
        }
    }
    left.ties.sort();
    spec.tensors.retain(|tensor| !dropped.contains(&(tensor.entry.fqn.clone(), tensor.entry.role.clone())));
}

#[cfg(test)]
mod tests {
    use fqn::{Dtype, Entry, Shape};
    use reshard::Region;

    use super::*;

    fn tensor(name: &str, role: Role, tie: Option<&str>) -> TargetTensor {
        let shape = Shape::new(&[4]);
        let regions = vec![(Region::whole(&shape).unwrap(), 0)];
        let mut entry = Entry::new(Fqn::new(name).unwrap(), role, Dtype::F32, shape);
        entry.tie = tie.map(|tie| Fqn::new(tie).unwrap());
        TargetTensor { entry, regions }
    }

    #[test]
    fn a_hugging_face_folder_holds_the_model_once_and_says_what_it_leaves() {
        let tensors = vec![
            tensor("lm_head.weight", Role::Param, Some("embed.weight")),
            tensor("embed.weight", Role::Param, Some("embed.weight")),
            tensor("embed.weight", Role::ExpAvg, None),
        ];
        let mut spec = TargetSpec {
            tensors,
            objects: Vec::new(),
            step: None,
            plan_digest: String::new(),
            mesh: None,
            split: None,
            extra: serde_json::Map::new(),
            codecs: crate::codec::Codecs::NONE,
        };
        let mut whole = spec.clone();
        let left = fit(&mut spec, Format::Hf);
        assert_eq!(spec.tensors.len(), 1);
        assert_eq!(spec.tensors[0].entry.fqn.as_str(), "embed.weight");
        assert_eq!((left.tensors.len(), left.bytes, left.ties.len()), (1, 16, 1));
        assert_eq!(left.ties[0].1.as_str(), "lm_head.weight");
        assert!(fit(&mut whole, Format::TorchDcp).is_empty() && whole.tensors.len() == 3);
    }
}
