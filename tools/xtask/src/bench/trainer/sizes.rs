//! [`Sizes`]: a Llama and its batch, in the words of either side.

use serde_json::{Value, json};

/// A model and the batch of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) layers: u32,
    pub(super) dim: u32,
    pub(super) ffn: u32,
    pub(super) head_dim: u32,
    /// Of all ranks.
    pub(super) rows: u32,
    pub(super) length: u32,
}

const HEADS: u32 = 16;
const KV_HEADS: u32 = 8;
const VOCABULARY: u32 = 256;

impl Sizes {
    /// What is measured: 2,048 tokens a step.
    pub(super) const FULL: Self = Self { layers: 8, dim: 128, ffn: 352, head_dim: 16, rows: 8, length: 256 };
    /// Whether it runs, not how fast.
    pub(super) const QUICK: Self = Self { layers: 2, dim: 128, ffn: 352, head_dim: 16, rows: 4, length: 64 };
    /// Few tokens through many weights: 300 MB of state.
    pub(super) const HEAVY: Self = Self { layers: 8, dim: 512, ffn: 1408, head_dim: 32, rows: 4, length: 64 };

    /// Of a step.
    pub(super) const fn tokens(self) -> u32 {
        self.rows * self.length
    }

    /// Words of `bench_trainer.py`, for one of `ranks`.
    pub(super) fn for_torch(self, ranks: u32) -> Vec<String> {
        let Self { layers, dim, ffn, head_dim, rows, length } = self;
        let sizes: Value = json!({
            "layers": layers, "dim": dim, "ffn": ffn, "heads": HEADS, "kv_heads": KV_HEADS,
            "head_dim": head_dim, "vocab": VOCABULARY, "max_length": length,
        });
        let words =
            [format!("--sizes={sizes}"), format!("--rows={}", rows / ranks), format!("--length={length}")];
        words.into()
    }

    /// Keys of the trainer's configuration, for a mesh of `ranks` data-parallel ranks.
    pub(super) fn for_us(self, ranks: u32) -> Vec<String> {
        let Self { layers, dim, ffn, head_dim, rows, length } = self;
        vec![
            format!("model.layers={layers}"),
            format!("model.dim={dim}"),
            format!("model.ffn={ffn}"),
            format!("model.heads={HEADS}"),
            format!("model.kv_heads={KV_HEADS}"),
            format!("model.head_dim={head_dim}"),
            format!("training.global_batch={rows}"),
            format!("training.micro_batch={}", rows / ranks),
            format!("training.seq_len={length}"),
            "training.steps=1000000".to_owned(),
            "lr_scheduler.decay_type=constant".to_owned(),
            format!("parallelism.mesh={ranks}x1x1"),
        ]
    }
}
