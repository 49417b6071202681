//! What a training configuration says of model and policy, as planning takes it.

use super::{Family, ModelFacts, Policy, Recompute, Sizes, Strategy};
use crate::{
    Error, Result,
    config::{self, Config, Mode, ModelTable, Numbers, Recomputed, Reshard},
};

/// The model of a resolved configuration.
///
/// # Errors
/// `Config` for a kind that planning does not know, and for sizes that can't be.
pub fn facts(model: &ModelTable) -> Result<ModelFacts> {
    let number = |name: &str| model.keys.get(name).and_then(toml::Value::as_integer).map(i64::unsigned_abs);
    let flag = |name: &str| model.keys.get(name).and_then(toml::Value::as_bool);
    let family = match model.kind.as_str() {
        "llama" => Family::Llama,
        "gpt2" => Family::Gpt2,
        other => return Err(Error::config(format!("planning knows no sizes of model.kind={other}"))),
    };
    let is_gpt2 = family == Family::Gpt2;
    let dim = number("dim").unwrap_or(0);
    let heads = number("heads").unwrap_or(0);
    let sizes = Sizes {
        dim,
        layers: number("layers").unwrap_or(0),
        heads,
        kv_heads: number("kv_heads").unwrap_or(heads),
        head_dim: number("head_dim").unwrap_or_else(|| dim.checked_div(heads).unwrap_or(0)),
        ffn: number("ffn").unwrap_or_else(|| if is_gpt2 { dim.saturating_mul(4) } else { 0 }),
        vocab: number("vocab").unwrap_or(0),
        positions: if is_gpt2 { number("max_length").unwrap_or(0) } else { 0 },
        tied: is_gpt2 || flag("tie_embeddings").unwrap_or(false),
    };
    ModelFacts::counted(&model.kind, family, sizes)
}

/// How a run of this configuration holds numbers; its attention stores no scores.
#[must_use]
pub fn policy(config: &Config) -> Policy {
    let keep = match config.fsdp.reshard_after_forward {
        Reshard::Default => {
            config.parallelism.mesh.pp > 1 || config.fsdp.strategy == config::Strategy::ShardGradOp
        }
        Reshard::Always => false,
        Reshard::Never => true,
    };
    let bytes = |numbers: Numbers| match numbers {
        Numbers::Float32 => 4.0,
        Numbers::Bfloat16 => 2.0,
    };
    Policy {
        compute: bytes(config.training.mixed_precision_param),
        reduce: bytes(config.training.mixed_precision_reduce),
        prefetch: u64::from(config.fsdp.prefetch),
        exact: config.training.mode == Mode::Exact,
        scores: false,
        recompute: recompute(config),
        keep,
        sequence: config.parallelism.sequence_parallel,
    }
}

fn recompute(config: &Config) -> Recompute {
    let again = &config.activation_checkpoint;
    match again.mode {
        Recomputed::None => Recompute::None,
        Recomputed::Full => Recompute::Full,
        Recomputed::Selective => again
            .selective
            .parse()
            .ok()
            .filter(|each| *each > 0)
            .map_or(Recompute::Products, Recompute::Every),
    }
}

/// What its data-parallel ranks hold.
#[must_use]
pub const fn strategy(config: &Config) -> Strategy {
    match config.fsdp.strategy {
        config::Strategy::FullShard => Strategy::FullShard,
        config::Strategy::ShardGradOp => Strategy::ShardGradOp,
        config::Strategy::HybridShard => Strategy::HybridShard,
        config::Strategy::NoShard => Strategy::NoShard,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model;

    #[test]
    fn a_configurations_precision_prefetch_and_recomputation_are_planned_with() {
        let plain = policy(&Config::default());
        assert_eq!((plain.compute, plain.reduce, plain.prefetch), (4.0, 4.0, 1));
        assert_eq!((plain.recompute, plain.keep), (Recompute::None, false));
        let mut config = Config::default();
        config.training.mixed_precision_param = Numbers::Bfloat16;
        config.fsdp.prefetch = false;
        for (mode, selective, recompute) in [
            (Recomputed::Full, "op", Recompute::Full),
            (Recomputed::Selective, "op", Recompute::Products),
            (Recomputed::Selective, "3", Recompute::Every(3)),
        ] {
            config.activation_checkpoint.mode = mode;
            config.activation_checkpoint.selective = selective.to_owned();
            let found = policy(&config);
            assert_eq!((found.compute, found.prefetch, found.recompute), (2.0, 0, recompute));
        }
    }

    /// The built model's own count is the judge.
    #[test]
    fn counted_parameters_are_those_of_the_model_that_is_built_part_by_part() {
        let llama = "dim = 96\nlayers = 3\nheads = 12\nkv_heads = 4\nhead_dim = 16\nffn = 200\nvocab = 300\nmax_length = 64\n";
        let gpt2 = "dim = 96\nlayers = 3\nheads = 12\nvocab = 300\nmax_length = 64\n";
        for (kind, keys) in [
            ("llama", llama.to_owned()),
            ("llama", format!("{llama}tie_embeddings = true\n")),
            ("gpt2", gpt2.to_owned()),
        ] {
            let keys: toml::Table = keys.parse().unwrap();
            let built = kind.parse::<model::Family>().unwrap().build(keys.clone()).unwrap();
            let facts = facts(&ModelTable { kind: kind.to_owned(), keys }).unwrap();
            let elements =
                |index: &usize| built.params()[*index].shape.iter().product::<i64>().unsigned_abs();
            let all: u64 = (0..built.params().len()).map(|index| elements(&index)).sum();
            assert_eq!(facts.params(), all, "{kind}");
            let mut seen = std::collections::BTreeSet::new();
            let own: Vec<u64> = built
                .parts()
                .iter()
                .map(|part| part.params.iter().filter(|index| seen.insert(**index)).map(elements).sum())
                .collect();
            assert_eq!(facts.parts(), own, "{kind}");
        }
    }
}
