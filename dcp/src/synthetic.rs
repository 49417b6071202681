//! Synthetic checkpoints in the shapes of real models: what the scale of plans and manifests is measured on. No tensor has bytes.
//!
//! ```text
//!  Llama ─ registry, mesh ─► SavePlan ─► LaidOut ─► Written (as if every rank had written its boxes) ─► manifest, by the commit's own code
//! ```

use std::collections::BTreeMap;

use fqn::{Dtype, Entry, Fqn, Registry, Role, Shape};

use crate::{
    Error, FileDone, Result,
    commit::State,
    digest::Sha256Digest,
    fingerprint::FingerprintSum,
    formats::native::{Blob, Part, Planned, manifest_of_parts},
    manifest::Manifest,
    save::SavePlan,
};

/// A Llama's sizes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Llama {
    /// Layers.
    pub layers: u32,
    /// Width of the residual stream.
    pub hidden: u64,
    /// Width of the feed-forward part.
    pub feed_forward: u64,
    /// Rows of the key and value projections.
    pub key_value: u64,
    /// Size of the vocabulary.
    pub vocabulary: u64,
}

/// The mesh of 8,960 ranks on which Llama 3.1 405B has 2.2 million shards of parameters, master weights and moments.
pub const LARGE_MESH: &str = "dp=80,pp=14,tp=8";

impl Llama {
    /// Llama 3.1 405B.
    pub const B405: Self =
        Self { layers: 126, hidden: 16_384, feed_forward: 53_248, key_value: 1024, vocabulary: 128_256 };

    /// The same with another number of layers.
    #[must_use]
    pub const fn with_layers(self, layers: u32) -> Self {
        Self { layers, ..self }
    }

    /// Its tensors as mixed-precision training with FSDP inside tensor parallelism has them: parameters in bf16, master weights and
    /// both moments in f32.
    ///
    /// # Errors
    /// None in practice: the names are valid and differ.
    pub fn registry(&self) -> Result<Registry> {
        let mut registry = Registry::new();
        let mut push = |name: String, shape: &[u64], rule: &str, layer: Option<u32>| -> Result<()> {
            for (role, dtype) in [
                (Role::Param, Dtype::BF16),
                (Role::Master, Dtype::F32),
                (Role::ExpAvg, Dtype::F32),
                (Role::ExpAvgSq, Dtype::F32),
            ] {
                let fqn = Fqn::new(&name).map_err(|error| Error::internal(error.to_string()))?;
                let mut entry = Entry::new(fqn, role, dtype, Shape::new(shape));
                entry.placement =
                    Some(rule.parse().map_err(|error| Error::internal(format!("{rule}: {error}")))?);
                entry.layer = layer;
                registry.push(entry).map_err(|error| Error::internal(error.to_string()))?;
            }
            Ok(())
        };
        let Self { layers, hidden, feed_forward, key_value, vocabulary } = *self;
        push("tok_embeddings.weight".to_owned(), &[vocabulary, hidden], "tp:0,dp:0,pp:first", None)?;
        for layer in 0..layers {
            for (name, shape, rule) in [
                ("attention_norm", &[hidden][..], "dp:0,pp:layer"),
                ("attention.wq", &[hidden, hidden], "tp:0,dp:0,pp:layer"),
                ("attention.wk", &[key_value, hidden], "tp:0,dp:0,pp:layer"),
                ("attention.wv", &[key_value, hidden], "tp:0,dp:0,pp:layer"),
                ("attention.wo", &[hidden, hidden], "tp:1,dp:0,pp:layer"),
                ("ffn_norm", &[hidden], "dp:0,pp:layer"),
                ("feed_forward.w1", &[feed_forward, hidden], "tp:0,dp:0,pp:layer"),
                ("feed_forward.w2", &[hidden, feed_forward], "tp:1,dp:0,pp:layer"),
                ("feed_forward.w3", &[feed_forward, hidden], "tp:0,dp:0,pp:layer"),
            ] {
                push(format!("layers.{layer}.{name}.weight"), shape, rule, Some(layer))?;
            }
        }
        push("norm.weight".to_owned(), &[hidden], "dp:0,pp:last", None)?;
        push("output.weight".to_owned(), &[vocabulary, hidden], "tp:0,dp:0,pp:last", None)?;
        Ok(registry)
    }
}

/// The blobs of a plan, headers and all, as a commit lays them out before it compares them with the parts.
#[derive(Debug)]
pub struct LaidOut {
    planned: Planned,
    blobs: Vec<Blob>,
}

impl LaidOut {
    /// Lays out every rank's blobs.
    ///
    /// # Errors
    /// As a commit's.
    pub fn new(plan: &SavePlan) -> Result<Self> {
        let planned = Planned::new(&State::default(), plan.run(), plan.shared_spec())?;
        let blobs = planned.blobs_to_compare()?;
        Ok(Self { planned, blobs })
    }
}

/// The files of a plan, as if every rank had written its boxes.
#[derive(Debug)]
pub struct Written {
    planned: Planned,
    files: Vec<(Blob, Part)>,
}

impl Written {
    /// The blobs with parts that are made up: what a commit would have read from the store.
    #[must_use]
    pub fn by_all(laid_out: LaidOut) -> Self {
        let LaidOut { planned, blobs } = laid_out;
        let made = blobs.into_iter().map(|blob| {
            let mut sums: BTreeMap<usize, FingerprintSum> = BTreeMap::new();
            for chunk in &blob.chunks {
                sums.entry(chunk.tensor).or_default();
            }
            let path = format!("data/{}.safetensors", blob.key());
            let done = FileDone {
                logical: None,
                file: 0,
                path,
                size: blob.size(),
                crc32: Vec::new(),
                blocks: None,
                sums: sums.into_iter().collect(),
                source_sums: Vec::new(),
            };
            let part = Part::made_up(&blob, done, Sha256Digest::of(blob.key().as_bytes()));
            (blob, part)
        });
        let files = made.collect();
        Self { planned, files }
    }

    /// Number of chunks.
    #[must_use]
    pub fn chunks(&self) -> usize {
        self.files.iter().map(|(blob, _)| blob.chunks.len()).sum()
    }

    /// The manifest that a commit makes of it: cover checked.
    ///
    /// # Errors
    /// As a commit's.
    pub fn manifest(&self) -> Result<Manifest> {
        manifest_of_parts(&self.planned, &self.files)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Instant;

    use super::*;
    use crate::save::SaveSpec;

    /// Plans, checks, writes and reads back a model of so many layers: shards, and seconds.
    fn go(layers: u32) -> (usize, f64) {
        let registry = Llama::B405.with_layers(layers).registry().unwrap();
        let mesh = "dp=80,pp=2,tp=8".parse().unwrap();
        let began = Instant::now();
        let plan = SavePlan::new(SaveSpec::new("main".parse().unwrap(), registry, mesh, 1)).unwrap();
        let written = Written::by_all(LaidOut::new(&plan).unwrap());
        let manifest = written.manifest().unwrap();
        let encoded = manifest.encode().unwrap();
        let back = Manifest::decode(&encoded.bytes, &encoded.digest).unwrap();
        let seconds = began.elapsed().as_secs_f64();
        assert_eq!(back.catalog.tensors, manifest.catalog.tensors);
        assert_eq!(back.catalog.registry, manifest.catalog.registry);
        (written.chunks(), seconds)
    }

    #[test]
    fn a_hundred_thousand_shards_take_seconds() {
        let (shards, seconds) = go(6);
        assert!(shards > 100_000, "{shards}");
        // Unoptimised, and beside other tests: what this finds is a quadratic step, which would take minutes.
        assert!(seconds < 60.0, "{shards} shards took {seconds} s");
    }

    #[test]
    fn twice_the_shards_cost_less_than_three_times_as_much() {
        // The least of several, in turns: what else the machine does only ever adds.
        let (mut small, mut large) = (f64::INFINITY, f64::INFINITY);
        for _ in 0..5 {
            let ((few, quick), (many, slow)) = (go(2), go(4));
            // Not quite twice as many: embeddings and head are there once. So costs are compared shard by shard.
            let (few, many) =
                (f64::from(u32::try_from(few).unwrap()), f64::from(u32::try_from(many).unwrap()));
            (small, large) = (small.min(quick / few), large.min(slow / many));
            if large < 1.5 * small {
                return;
            }
        }
        panic!("{small} s a shard, and {large} s a shard of twice as many");
    }

    #[test]
    fn the_model_is_that_of_405_billion_parameters_and_its_mesh_cuts_two_million_shards() {
        let registry = Llama::B405.registry().unwrap();
        let parameters: u64 = registry
            .entries()
            .iter()
            .filter(|entry| entry.role == Role::Param)
            .filter_map(|entry| entry.shape.elements())
            .sum();
        assert_eq!(parameters, 405_853_388_800);
        let mesh: reshard::Mesh = LARGE_MESH.parse().unwrap();
        assert_eq!(mesh.ranks(), 8960);
        let layout = reshard::Layout::new(&registry, &mesh, &reshard::StageSplit::default()).unwrap();
        assert!(layout.shard_count() > 2_000_000, "{}", layout.shard_count());
    }
}
