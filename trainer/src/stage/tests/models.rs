//! Real models on one stage, with the real operations: a split backward, and what is computed again, give the bits of one
//! full backward over everything kept, name by name; and hold less.

use std::{collections::BTreeMap, rc::Rc, sync::Arc};

use tch::{Kind, Tensor};

use crate::{
    exact::{Sums, VirtualTp},
    model::{Batch, Family, Model},
    parallel::{Runtime, Tokens, TpOps, Whole},
    placement,
    stage::{Recompute, Stage, StageInputs, Which},
    torch::memory,
};

pub(super) const LLAMA: &str = "dim=64\nlayers=3\nheads=8\nkv_heads=4\nffn=96\nvocab=48\nmax_length=16";
const TIED: &str = "dim=64\nlayers=2\nheads=8\nffn=96\nvocab=40\nmax_length=16\ntie_embeddings=true";
const GPT2: &str = "dim=64\nlayers=2\nheads=8\nvocab=48\nmax_length=16";
const MODELS: [(Family, &str); 3] = [(Family::Llama, LLAMA), (Family::Llama, TIED), (Family::Gpt2, GPT2)];

/// Weights in memory, and the operations on them.
pub(super) struct Ground {
    pub(super) model: Arc<dyn Model>,
    pub(super) weights: Rc<Whole>,
    pub(super) ops: TpOps,
}

impl Ground {
    pub(super) fn new(family: Family, sizes: &str, total: usize) -> Self {
        Self::with(family, sizes, total, Tokens::Whole)
    }

    fn with(family: Family, sizes: &str, total: usize, tokens: Tokens) -> Self {
        let model = family.build(toml::from_str(sizes).unwrap()).unwrap();
        let virtual_tp = VirtualTp::of(0, 1, total).unwrap();
        let cuts = placement::cuts(&placement::registry(family, &*model).unwrap()).unwrap();
        let weights = Rc::new(Whole::initial(&*model, 3, &cuts, virtual_tp).unwrap());
        let ops = TpOps::new(&*model, weights.clone(), None, virtual_tp, (Sums::Exact, tokens)).unwrap();
        Self { model, weights, ops }
    }

    pub(super) fn stage<'a>(&'a self, recompute: &'a Recompute) -> Stage<'a> {
        let parts = 0..self.model.parts().len();
        Stage::new(StageInputs {
            index: 0,
            parts,
            model: &*self.model,
            runtime: &self.ops as &dyn Runtime,
            params: &*self.weights,
            recompute,
            scale: 0.125,
        })
        .unwrap()
    }

    pub(super) fn batch(&self, rows: i64, length: i64) -> Batch {
        let vocab = self.model.params()[0].shape[0];
        let ids = |salt: i64| {
            let ids: Vec<i64> = (0..rows * length).map(|at| (at * 7 + at / 3 + salt) % vocab).collect();
            Tensor::from_slice(&ids).reshape([rows, length]).to_kind(Kind::Int64)
        };
        Batch { rows, length, tokens: Some(ids(1)), targets: Some(ids(5)) }
    }

    /// Gradients by name and part, as bits.
    fn gradients(&self) -> BTreeMap<(String, usize), Vec<u32>> {
        let bits = |pieces: &Vec<Tensor>| {
            let flat = pieces.iter().flat_map(|piece| Vec::<f32>::try_from(piece.reshape([-1])).unwrap());
            flat.map(f32::to_bits).collect()
        };
        let named = |(param, _): &(crate::model::Param, usize)| {
            (self.model.params()[param.index].fqn.to_string(), param.part)
        };
        let found = self.weights.gradients().iter().map(|(key, pieces)| (named(key), bits(pieces))).collect();
        self.weights.clear_gradients();
        found
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    Full,
    Split,
}

fn trained(ground: &Ground, recompute: &Recompute, way: Way) -> (u32, BTreeMap<(String, usize), Vec<u32>>) {
    let (mut stage, batch) = (ground.stage(recompute), ground.batch(2, 8));
    stage.forward(0, &batch, Vec::new()).unwrap();
    match way {
        Way::Full => drop(stage.backward(0, &batch, Vec::new()).unwrap()),
        Way::Split => {
            stage.backward_inputs(0, &batch, Vec::new()).unwrap();
            stage.backward_weights(0).unwrap();
        }
    }
    assert_eq!(ground.ops.queued(), 0);
    (stage.loss(0).unwrap().to_bits(), ground.gradients())
}

#[test]
fn split_backwards_and_what_is_computed_again_give_the_bits_of_a_full_backward_name_by_name() {
    tch::set_num_threads(1);
    for (family, sizes) in MODELS {
        for (total, tokens) in [(1, Tokens::Whole), (2, Tokens::Whole), (2, Tokens::Cut)] {
            let ground = Ground::with(family, sizes, total, tokens);
            let kept = Recompute::default();
            let (loss, full) = trained(&ground, &kept, Way::Full);
            let uses: usize = ground.model.parts().iter().map(|part| part.params.len()).sum();
            assert_eq!(full.len(), uses, "every use has its gradient");
            for which in [Which::None, Which::Full, Which::Every(2), Which::ByOperation] {
                for queue in [false, true] {
                    let recompute = Recompute::new(&*ground.model, which, queue);
                    for way in [Way::Full, Way::Split] {
                        let (found, gradients) = trained(&ground, &recompute, way);
                        let at = format!(
                            "{family}, {total} virtual, {tokens:?}, {which:?}, queue {queue}, split {}",
                            way == Way::Split
                        );
                        assert_eq!(found, loss, "{at}");
                        for (key, bits) in &full {
                            assert!(
                                gradients.get(key) == Some(bits),
                                "{at}: gradient of {} in part {}",
                                key.0,
                                key.1
                            );
                        }
                        assert_eq!(gradients.len(), full.len());
                    }
                }
            }
        }
    }
}

/// Bytes of this thread's tensors between forward and backward, and at most.
fn held(ground: &Ground, which: Which) -> (i64, i64) {
    let recompute = Recompute::new(&*ground.model, which, false);
    let (mut stage, batch) = (ground.stage(&recompute), ground.batch(8, 64));
    let before = memory::counted().unwrap();
    memory::restart().unwrap();
    stage.forward(0, &batch, Vec::new()).unwrap();
    let between = memory::counted().unwrap().now - before.now;
    stage.backward(0, &batch, Vec::new()).unwrap();
    let most = memory::counted().unwrap().most - before.now;
    ground.weights.clear_gradients();
    (between, most)
}

#[test]
fn what_is_computed_again_is_not_held_in_between() {
    tch::set_num_threads(1);
    memory::count().unwrap();
    const DEEP: &str = "dim=64\nlayers=8\nheads=8\nkv_heads=8\nffn=192\nvocab=16\nmax_length=64";
    let ground = Ground::new(Family::Llama, DEEP, 1);
    let (kept, most) = held(&ground, Which::None);
    let (inputs, most_of_inputs) = held(&ground, Which::Full);
    let (products, _) = held(&ground, Which::ByOperation);
    let (half, _) = held(&ground, Which::Every(2));
    println!(
        "held: all {kept}, every second {half}, products {products}, inputs {inputs}; at most {most}, {most_of_inputs}"
    );
    let width = 8 * 64 * 64 * 4;
    // A layer's input, which is the one before's output; embedding, head, loss and their like beside them.
    assert!(inputs < (8 + 8) * width, "{inputs} bytes held for 8 layers' inputs of {width}");
    // Queries, keys, values, two sums; gate and up of three widths each.
    assert!(products - inputs <= 8 * (5 + 6) * width, "{products}");
    assert!(inputs < products && 5 * products < 3 * kept, "{products} of {kept}");
    assert!(inputs < half && half < (kept + inputs) * 11 / 20, "{half}");
    assert!(2 * most_of_inputs < most, "at most {most_of_inputs}, of {most} that keeping all takes");
}
