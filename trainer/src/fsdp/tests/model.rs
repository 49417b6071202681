//! A model of parameters alone: every way of cutting, sizes that divide badly, and one parameter with two uses.

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};
use tch::Tensor;

use crate::{
    Error, Result,
    model::{Batch, Init, Model, Ops, Output, ParamSpec, PartSpec},
};

/// Name, shape, placement, decay.
const PARAMS: [(&str, &[i64], &str, bool); 9] = [
    // 21 rows, padded to 24: the last of eight virtual ranks has none.
    ("embed.weight", &[21, 4], "tp:0,dp:0", true),
    ("layers.0.up.weight", &[24, 5], "tp:0,dp:0", true),
    ("layers.0.up.bias", &[24], "tp:0,dp:0", false),
    ("layers.0.down.weight", &[7, 16], "tp:1,dp:0", true),
    ("layers.0.norm.weight", &[5], "dp:0", false),
    ("layers.1.prime.weight", &[11, 3], "dp:0", true),
    ("layers.1.thin.weight", &[2, 40], "tp:1,dp:0", true),
    ("layers.1.cube.weight", &[3, 2, 4], "dp:0", true),
    ("norm.weight", &[67], "dp:0", false),
];

#[derive(Debug)]
pub(super) struct Bare {
    params: Vec<ParamSpec>,
    parts: Vec<PartSpec>,
    rules: Vec<String>,
}

impl Bare {
    pub(super) fn new() -> Self {
        let params = PARAMS.iter().map(|(name, shape, _, decay)| ParamSpec {
            fqn: Fqn::new(name).unwrap(),
            shape: shape.to_vec(),
            init: if *decay { Init::Normal(0.5) } else { Init::Constant(1.0) },
            decay: *decay,
        });
        let part = |name: &str, params: &[usize]| PartSpec {
            name: name.to_owned(),
            layer: None,
            params: params.to_vec(),
        };
        Self {
            params: params.collect(),
            rules: PARAMS.iter().map(|(.., rule, _)| (*rule).to_owned()).collect(),
            parts: vec![
                part("embedding", &[0]),
                part("layers.0", &[1, 2, 3, 4]),
                part("layers.1", &[5, 6, 7]),
                part("head", &[8, 0]),
            ],
        }
    }

    /// One parameter in one part.
    pub(super) fn single(shape: &[i64], rule: &str) -> Self {
        let fqn = Fqn::new("w").unwrap();
        let spec = ParamSpec { fqn, shape: shape.to_vec(), init: Init::Normal(1.0), decay: true };
        let part = PartSpec { name: "all".to_owned(), layer: None, params: vec![0] };
        Self { params: vec![spec], parts: vec![part], rules: vec![rule.to_owned()] }
    }

    pub(super) fn registry(&self) -> Registry {
        let mut registry = Registry::new();
        for (spec, rule) in self.params.iter().zip(&self.rules) {
            let shape: Vec<u64> = spec.shape.iter().map(|extent| u64::try_from(*extent).unwrap()).collect();
            let mut entry = Entry::new(spec.fqn.clone(), Role::Param, Dtype::F32, Shape::new(&shape));
            entry.placement = Some(rule.parse().unwrap());
            entry.padded_rows = (spec.fqn.as_str() == "embed.weight").then_some(24);
            registry.push(entry).unwrap();
        }
        registry
    }

    /// The parts of each of `pp` pipeline ranks.
    pub(super) fn split(&self, pp: usize) -> Vec<Vec<usize>> {
        let all: Vec<usize> = (0..self.parts.len()).collect();
        all.chunks(all.len() / pp).map(<[usize]>::to_vec).collect()
    }

    /// The same as runs: one stage on each pipeline rank.
    pub(super) fn stages(&self, pp: usize) -> Vec<std::ops::Range<usize>> {
        self.split(pp).iter().map(|parts| parts[0]..parts[parts.len() - 1] + 1).collect()
    }
}

impl Model for Bare {
    fn params(&self) -> &[ParamSpec] {
        &self.params
    }

    fn parts(&self) -> &[PartSpec] {
        &self.parts
    }

    fn carry(&self, _part: usize, _rows: i64, _length: i64) -> Vec<Vec<i64>> {
        Vec::new()
    }

    fn forward(&self, _part: usize, _ops: &dyn Ops, _batch: &Batch, _carry: &[Tensor]) -> Result<Output> {
        Err(Error::internal("this model has parameters only"))
    }

    fn hf_config(&self) -> serde_json::Value {
        serde_json::Value::Null
    }
}
