//! What splitting a backward costs, on one thread: pairs of I and W and of one full backward, of models of several widths.
//!
//! ```text
//! split_backward PAIRS
//! ```
//! For each model it prints one line of JSON: of every pair the seconds of I, of W, and of the full backward, as time passed, and as the
//! thread was on a processor, which other work on the machine moves less. `cargo xtask bench trainer` is its counterpart.
//!
//! Invariant: in a pair each is first as often as the other.

use std::{error::Error, fs, rc::Rc, time::Instant};

use serde_json::json;
use tch::{Kind, Tensor};
use trainer::{
    exact::{Sums, VirtualTp},
    model::{Batch, Family, Model},
    parallel::{Runtime, Tokens, TpOps, Whole},
    placement,
    stage::{Recompute, Stage, StageInputs},
    torch::memory,
};

type Outcome<T> = Result<T, Box<dyn Error>>;

/// Sizes in the model's own keys, rows and tokens of a row.
const MODELS: [(&str, i64, i64); 3] = [
    ("dim=128\nlayers=8\nheads=16\nkv_heads=8\nhead_dim=16\nffn=352\nvocab=256\nmax_length=256", 8, 256),
    ("dim=256\nlayers=4\nheads=8\nffn=704\nvocab=256\nmax_length=256", 4, 256),
    ("dim=512\nlayers=2\nheads=8\nffn=1408\nvocab=256\nmax_length=256", 2, 256),
];

fn main() -> Outcome<()> {
    let pairs: usize = std::env::args().nth(1).ok_or("split_backward PAIRS")?.parse()?;
    tch::set_num_threads(1);
    // As a run does.
    memory::keep_freed();
    for (sizes, rows, length) in MODELS {
        let measured = Ground::new(sizes, rows, length)?.pairs(pairs)?;
        let series = |of: fn(&Pair) -> f64| measured.iter().map(of).collect::<Vec<_>>();
        let line = json!({
            "model": sizes.replace('\n', " "),
            "tokens": rows * length,
            "inputs": series(|pair| pair.split[0].passed),
            "weights": series(|pair| pair.split[1].passed),
            "full": series(|pair| pair.full.passed),
            "inputs_on_processor": series(|pair| pair.split[0].ran),
            "weights_on_processor": series(|pair| pair.split[1].ran),
            "full_on_processor": series(|pair| pair.full.ran),
        });
        println!("{line}");
    }
    Ok(())
}

/// Seconds: as time passed, and as this thread was on a processor.
#[derive(Clone, Copy)]
struct Seconds {
    passed: f64,
    ran: f64,
}

struct Pair {
    /// I, and W.
    split: [Seconds; 2],
    full: Seconds,
}

/// A whole model on one stage, and a batch.
struct Ground {
    model: std::sync::Arc<dyn Model>,
    weights: Rc<Whole>,
    ops: TpOps,
    batch: Batch,
}

impl Ground {
    fn new(sizes: &str, rows: i64, length: i64) -> Outcome<Self> {
        let model = Family::Llama.build(toml::from_str(sizes)?)?;
        let alone = VirtualTp::of(0, 1, 1)?;
        let cuts = placement::cuts(&placement::registry(Family::Llama, &*model)?)?;
        let weights = Rc::new(Whole::initial(&*model, 3, &cuts, alone)?);
        let ops = TpOps::new(&*model, weights.clone(), None, alone, (Sums::Exact, Tokens::Whole))?;
        let vocabulary = model.params().first().and_then(|table| table.shape.first().copied());
        let batch = batch(rows, length, vocabulary.ok_or("a model without a vocabulary")?)?;
        Ok(Self { model, weights, ops, batch })
    }

    /// One pair that does not count, then so many that do.
    fn pairs(&self, count: usize) -> Outcome<Vec<Pair>> {
        let keep = Recompute::default();
        self.split(&keep)?;
        self.full(&keep)?;
        let pair = |round: usize| -> Outcome<Pair> {
            Ok(if round.is_multiple_of(2) {
                let split = self.split(&keep)?;
                Pair { split, full: self.full(&keep)? }
            } else {
                let full = self.full(&keep)?;
                Pair { split: self.split(&keep)?, full }
            })
        };
        (0..count).map(pair).collect()
    }

    fn split(&self, keep: &Recompute) -> Outcome<[Seconds; 2]> {
        let mut stage = self.forward(keep)?;
        let inputs = timed(|| Ok(stage.backward_inputs(0, &self.batch, Vec::new()).map(drop)?))?;
        let weights = timed(|| Ok(stage.backward_weights(0)?))?;
        self.weights.clear_gradients();
        Ok([inputs, weights])
    }

    fn full(&self, keep: &Recompute) -> Outcome<Seconds> {
        let mut stage = self.forward(keep)?;
        let full = timed(|| Ok(stage.backward(0, &self.batch, Vec::new()).map(drop)?))?;
        self.weights.clear_gradients();
        Ok(full)
    }

    fn forward<'a>(&'a self, keep: &'a Recompute) -> Outcome<Stage<'a>> {
        let mut stage = Stage::new(StageInputs {
            index: 0,
            parts: 0..self.model.parts().len(),
            model: &*self.model,
            runtime: &self.ops as &dyn Runtime,
            params: &*self.weights,
            recompute: keep,
            scale: 0.125,
        })?;
        stage.forward(0, &self.batch, Vec::new())?;
        Ok(stage)
    }
}

fn batch(rows: i64, length: i64, vocabulary: i64) -> Outcome<Batch> {
    let ids = |salt: i64| -> Outcome<Tensor> {
        let ids: Vec<i64> = (0..rows * length).map(|at| (at * 7 + at / 3 + salt) % vocabulary).collect();
        Ok(Tensor::f_from_slice(&ids)?.f_reshape([rows, length])?.f_to_kind(Kind::Int64)?)
    };
    Ok(Batch { rows, length, tokens: Some(ids(1)?), targets: Some(ids(5)?) })
}

fn timed(act: impl FnOnce() -> Outcome<()>) -> Outcome<Seconds> {
    let (began, before) = (Instant::now(), ran()?);
    act()?;
    Ok(Seconds { passed: began.elapsed().as_secs_f64(), ran: ran()? - before })
}

/// Seconds that this thread was on a processor so far; not a number where the system does not tell it as Linux does.
fn ran() -> Outcome<f64> {
    let Ok(text) = fs::read_to_string("/proc/thread-self/schedstat") else { return Ok(f64::NAN) };
    let nanoseconds = text.split(' ').next().unwrap_or_default().parse::<f64>()?;
    Ok(nanoseconds / 1e9)
}
