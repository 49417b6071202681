//! [`Misfit`]: why a cut can't be, or should not, with the nearest that can.

use std::fmt;

use serde::Serialize;

use super::{Axis, Batch, Cluster, Cut, ModelFacts, quantity};
use crate::parallel::lengths_that_fit;

/// Why a cut is out of the question.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "why", rename_all = "snake_case")]
pub enum Misfit {
    /// Tensor ranks do not divide something of the model.
    Tensor {
        /// The degree.
        tp: u64,
        /// What it does not divide.
        what: &'static str,
        /// Of which there are so many.
        count: u64,
        /// The nearest degrees that divide everything.
        nearest: Vec<u64>,
    },
    /// A tensor group lies on several nodes.
    TensorAcrossNodes {
        /// The degree.
        tp: u64,
        /// Cards of a node.
        per_node: u64,
    },
    /// Tensor ranks do not divide the tokens of a microbatch, which are to be cut over them.
    Tokens {
        /// The degree.
        tp: u64,
        /// Tokens of a microbatch.
        tokens: u64,
        /// The nearest lengths of a sequence that would do.
        lengths: Vec<u64>,
    },
    /// More stages than there is anything for.
    Stages {
        /// Stages.
        stages: u64,
        /// Layers of the model.
        layers: u64,
    },
    /// The batch does not divide.
    Batch {
        /// What does not.
        said: String,
        /// What would.
        hint: String,
    },
    /// The schedule does not take these numbers.
    Schedule {
        /// Why.
        said: String,
    },
    /// A rank needs more memory than there is.
    Memory {
        /// The pipeline rank that needs the most.
        pp: u64,
        /// So many bytes.
        need: f64,
        /// Of so many.
        have: f64,
        /// Most of them for this.
        largest: String,
    },
}

impl Misfit {
    /// The kind, to count by.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Tensor { .. } => "tensor degree does not divide the model",
            Self::TensorAcrossNodes { .. } => "tensor group over several nodes",
            Self::Tokens { .. } => "tensor degree does not divide a microbatch's tokens",
            Self::Stages { .. } => "more stages than layers",
            Self::Batch { .. } => "batch does not divide",
            Self::Schedule { .. } => "schedule does not take it",
            Self::Memory { .. } => "not enough memory",
        }
    }

    /// What to do.
    #[must_use]
    pub fn remedy(&self) -> String {
        match self {
            Self::Tensor { nearest, .. } => {
                let near = nearest.iter().map(|tp| format!("tp={tp}")).collect::<Vec<_>>().join(" or ");
                format!("{near} divides heads, KV heads, feed-forward and vocabulary")
            }
            Self::TensorAcrossNodes { per_node, .. } => format!(
                "take tp of at most {per_node}, or an order of axes that has tp as the last: tensor ranks wait for each \
                 other several times a layer, and the links between nodes are too slow for that"
            ),
            Self::Tokens { lengths, .. } => {
                let near = lengths.iter().map(|it| format!("--seq-len {it}")).collect::<Vec<_>>().join(" or ");
                format!("take {near}, another --micro-batch, or no --sequence-parallel")
            }
            Self::Stages { layers, .. } => format!("take at most {} stages", layers + 2),
            Self::Batch { hint, .. } => hint.clone(),
            Self::Schedule { .. } => "take another --schedule, pp or --global-batch".to_owned(),
            Self::Memory { largest, .. } if largest.contains("activations") => {
                "recompute activations (--recompute full), cut tokens over tensor ranks (--sequence-parallel), a smaller --micro-batch, \
                 or more tensor or pipeline ranks"
                    .to_owned()
            }
            Self::Memory { largest, .. } if largest.contains("logits") => {
                "a smaller --micro-batch, or more tensor ranks: logits are cut over the vocabulary".to_owned()
            }
            Self::Memory { .. } => {
                "shard more (FULL_SHARD), more pipeline or tensor ranks, or more cards".to_owned()
            }
        }
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tensor { tp, what, count, .. } => {
                write!(f, "tp={tp} does not divide the model's {count} {what}")
            }
            Self::TensorAcrossNodes { tp, per_node } => {
                write!(f, "a tensor group of {tp} lies on several nodes of {per_node} cards")
            }
            Self::Tokens { tp, tokens, .. } => {
                write!(
                    f,
                    "tp={tp} does not divide the {tokens} tokens of a microbatch, which are cut over it"
                )
            }
            Self::Stages { stages, layers } => {
                write!(f, "{stages} stages for {layers} layers, embedding and head: some would be empty")
            }
            Self::Batch { said, .. } | Self::Schedule { said } => f.write_str(said),
            Self::Memory { pp, need, have, largest } => write!(
                f,
                "a rank of pp{pp} needs {} of {}, most of it for {largest}",
                quantity::bytes(*need),
                quantity::bytes(*have)
            ),
        }
    }
}

/// The tensor degrees that divide all of the model that tensor ranks cut.
#[must_use]
pub fn tensor_degrees(model: &ModelFacts) -> Vec<u64> {
    (1..=model.sizes.kv_heads)
        .filter(|tp| demands(model).iter().all(|(_, count)| count.is_multiple_of(*tp)))
        .collect()
}

const fn demands(model: &ModelFacts) -> [(&'static str, u64); 4] {
    let sizes = &model.sizes;
    [
        ("query heads", sizes.heads),
        ("KV heads", sizes.kv_heads),
        ("feed-forward columns", sizes.ffn),
        ("vocabulary rows", sizes.vocab),
    ]
}

/// What of the mesh alone is against `cut`; memory is not looked at. A length of sequences is given where their tokens are cut
/// over tensor ranks.
///
/// # Errors
/// The first thing that is in the way.
pub(super) fn check(
    model: &ModelFacts,
    cluster: &Cluster,
    cut: &Cut,
    stages: u64,
    (global, micro, cut_length): (u64, u64, Option<u64>),
) -> Result<Batch, Misfit> {
    let tp = cut.tp;
    if let Some((what, count)) = demands(model).into_iter().find(|(_, count)| !count.is_multiple_of(tp)) {
        let degrees = tensor_degrees(model);
        let below = degrees.iter().rev().find(|fit| **fit < tp).copied();
        let above = degrees.iter().find(|fit| **fit > tp).copied();
        return Err(Misfit::Tensor { tp, what, count, nearest: below.into_iter().chain(above).collect() });
    }
    let tensor = cut.groups(Axis::Tp, cluster);
    if tensor.within_node < tensor.groups.len() {
        return Err(Misfit::TensorAcrossNodes { tp, per_node: cluster.per_node });
    }
    if let Some(length) = cut_length {
        let lengths = lengths_that_fit(micro, length, tp);
        if !lengths.contains(&length) {
            return Err(Misfit::Tokens { tp, tokens: micro.saturating_mul(length), lengths });
        }
    }
    if stages > model.sizes.layers + 2 {
        return Err(Misfit::Stages { stages, layers: model.sizes.layers });
    }
    Batch::of(global, micro, cut.dp).map_err(|error| Misfit::Batch {
        said: error.to_string(),
        hint: error.hint_text().unwrap_or_default().to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::{
        super::{Order, Strategy, presets},
        *,
    };

    fn cluster(ranks: u64) -> Cluster {
        crate::plan::cluster::a100s(ranks)
    }

    fn refused(mesh: &str, global: u64) -> Misfit {
        let model = presets::model("llama2-70b").unwrap();
        let mesh: crate::mesh::MeshShape = mesh.parse().unwrap();
        let cluster = cluster(mesh.ranks() as u64);
        let cut = Cut::new(mesh, Strategy::FullShard, Order::DpPpTp, &cluster);
        check(&model, &cluster, &cut, cut.pp, (global, 1, None)).unwrap_err()
    }

    #[test]
    fn kv_heads_bind_the_tensor_degree_of_a_70b_and_the_nearest_degrees_are_named() {
        let model = presets::model("llama2-70b").unwrap();
        assert_eq!(tensor_degrees(&model), [1, 2, 4, 8]);
        let six = refused("1x1x6", 64);
        assert!(six.to_string().contains("tp=6 does not divide the model's 64 query heads"), "{six}");
        assert!(six.remedy().starts_with("tp=4 or tp=8 divides"), "{}", six.remedy());
        let sixteen = refused("1x1x16", 64);
        assert!(sixteen.to_string().contains("tp=16 does not divide the model's 8 KV heads"), "{sixteen}");
        assert!(sixteen.remedy().starts_with("tp=8 divides"));
    }

    #[test]
    fn stages_batches_and_tensor_groups_that_do_not_fit_are_named() {
        assert!(refused("1x83x1", 64).to_string().contains("83 stages for 80 layers"));
        let batch = refused("3x1x1", 64);
        assert!(
            batch.to_string().contains("64 is no multiple") && batch.remedy().contains("63 or 66"),
            "{batch}"
        );
        let model = presets::model("llama2-70b").unwrap();
        let narrow = Cluster { per_node: 4, ..cluster(8) };
        let cut = Cut::new("1x1x8".parse().unwrap(), Strategy::NoShard, Order::DpPpTp, &narrow);
        let found = check(&model, &narrow, &cut, 1, (64, 1, None)).unwrap_err();
        assert_eq!(found, Misfit::TensorAcrossNodes { tp: 8, per_node: 4 });
        let wide = cluster(8);
        let odd = check(&model, &wide, &cut, 1, (64, 1, Some(4100))).unwrap_err();
        assert!(odd.to_string().contains("tp=8 does not divide the 4100 tokens"), "{odd}");
        assert!(odd.remedy().starts_with("take --seq-len 4096 or --seq-len 4104"), "{}", odd.remedy());
        check(&model, &wide, &cut, 1, (64, 2, Some(4100))).unwrap();
    }
}
