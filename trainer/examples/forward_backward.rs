//! Times forward, backward and weight gradients of a Llama in one process, for comparison with
//! `tests/python/bench_trainer.py`, which does the same in eager PyTorch:
//!
//! ```text
//! forward_backward SIZES.toml ROWS LENGTH REPEATS
//! ```
//! prints one line of JSON: the seconds of the best repetition by phase, its tokens a second, and the loss.

use std::{error::Error, rc::Rc, time::Instant};

use tch::{Kind, Tensor};
use trainer::{
    exact::{Sums, VirtualTp},
    model::{Batch, Llama, LlamaConfig, Model, Ops, Output, Value},
    parallel::{Cut, Runtime, TpOps, Whole},
    torch::node,
};

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [sizes, rows, length, repeats] = arguments.as_slice() else {
        return Err("usage: forward_backward SIZES.toml ROWS LENGTH REPEATS".into());
    };
    let (rows, length, repeats): (i64, i64, usize) = (rows.parse()?, length.parse()?, repeats.parse()?);
    tch::set_num_threads(1);
    let config: LlamaConfig = toml::from_str(&std::fs::read_to_string(sizes)?)?;
    let batch = batch(rows, length, config.vocab)?;
    let model = Llama::new(config)?;
    let bench = Bench::new(&model)?;
    let mut best: Option<Timing> = None;
    for _ in 0..repeats.max(1) {
        let timing = bench.step(&batch)?;
        if best.as_ref().is_none_or(|best| timing.total() < best.total()) {
            best = Some(timing);
        }
    }
    if let Some(Timing { forward, backward, weights, loss }) = best {
        let total = forward + backward + weights;
        let speed = (rows * length) as f64 / total;
        println!(
            "{}",
            serde_json::json!({
                "forward": forward, "backward": backward, "weights": weights, "tokens_per_second": speed, "loss": loss,
            })
        );
    }
    Ok(())
}

/// Ids that are the same in the Python program: a linear congruential sequence.
fn batch(rows: i64, length: i64, vocab: i64) -> Result<Batch, Box<dyn Error>> {
    let mut state = 1_i64;
    let ids: Vec<i64> = (0..=rows * length)
        .map(|_| {
            state = (state * 48_271) % 2_147_483_647;
            state % vocab
        })
        .collect();
    let (tokens, targets) = (ids.get(..ids.len() - 1), ids.get(1..));
    let tensor = |ids: Option<&[i64]>| Tensor::from_slice(ids.unwrap_or_default()).f_view([rows, length]);
    Ok(Batch { rows, length, tokens: Some(tensor(tokens)?), targets: Some(tensor(targets)?) })
}

struct Bench<'a> {
    model: &'a Llama,
    whole: Rc<Whole>,
    ops: TpOps,
}

struct Timing {
    forward: f64,
    backward: f64,
    weights: f64,
    loss: f64,
}

impl Timing {
    fn total(&self) -> f64 {
        self.forward + self.backward + self.weights
    }
}

/// One part of the model between leaves and roots.
struct Went {
    inputs: Vec<Tensor>,
    outputs: Vec<Tensor>,
}

impl<'a> Bench<'a> {
    fn new(model: &'a Llama) -> Result<Self, Box<dyn Error>> {
        let one = VirtualTp::of(0, 1, 1)?;
        let cuts: Vec<Cut> = model.params().iter().map(|_| Cut::Whole).collect();
        let whole = Rc::new(Whole::initial(model, 1, &cuts, one)?);
        let ops = TpOps::new(model, whole.clone(), None, one, Sums::Exact)?;
        Ok(Self { model, whole, ops })
    }

    fn step(&self, batch: &Batch) -> Result<Timing, Box<dyn Error>> {
        self.whole.clear_gradients();
        let start = Instant::now();
        let mut went = self.forward(batch)?;
        let loss = went.last().and_then(|run| run.outputs.first()).map(Tensor::detach);
        let loss = loss.ok_or("no loss")?.f_double_value(&[])? / (batch.rows * batch.length) as f64;
        let forward = start.elapsed();
        let start = Instant::now();
        let mut grads: Vec<Tensor> =
            went.last().iter().flat_map(|run| &run.outputs).map(Tensor::ones_like).collect();
        while let Some(run) = went.pop() {
            node::backward(&run.outputs.iter().collect::<Vec<_>>(), &grads.iter().collect::<Vec<_>>())?;
            grads = run.inputs.iter().map(Tensor::grad).collect();
        }
        let backward = start.elapsed();
        let start = Instant::now();
        self.ops.weight_gradients(0..self.model.parts().len(), 0)?;
        let weights = start.elapsed();
        let [forward, backward, weights] = [forward, backward, weights].map(|it| it.as_secs_f64());
        Ok(Timing { forward, backward, weights, loss })
    }

    fn forward(&self, batch: &Batch) -> Result<Vec<Went>, Box<dyn Error>> {
        let (mut went, mut carry): (Vec<Went>, Vec<Tensor>) = (Vec::new(), Vec::new());
        for part in 0..self.model.parts().len() {
            let inputs: Vec<Tensor> = carry.iter().map(|it| it.detach().set_requires_grad(true)).collect();
            let outputs = match self.model.forward(part, self.ops.ops(0), batch, &inputs)? {
                Output::Carry(outputs) => outputs,
                Output::Logits(logits) => vec![self.loss(&logits, batch)?],
            };
            carry = outputs.iter().map(Tensor::detach).collect();
            went.push(Went { inputs, outputs });
        }
        Ok(went)
    }

    fn loss(&self, logits: &Value, batch: &Batch) -> Result<Tensor, Box<dyn Error>> {
        let targets = batch.targets.as_ref().ok_or("no targets")?;
        Ok(self.ops.loss(logits, &targets.to_kind(Kind::Int64).view([-1]))?)
    }
}
