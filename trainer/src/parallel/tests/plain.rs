//! The models again, on whole weights that autograd tracks, in plain tensor operations.

use tch::{Kind, Tensor};

use super::{Batch, Family, Model};
use crate::torch::attention::causal;

/// Logits, and the weights (leaves) that they are a function of.
pub(super) fn logits(
    family: Family,
    model: &dyn Model,
    weights: &[Tensor],
    batch: &Batch,
) -> (Tensor, Vec<Tensor>) {
    let leaves: Vec<Tensor> = weights.iter().map(|w| w.copy().set_requires_grad(true)).collect();
    let plain = Plain { model, leaves: &leaves, batch };
    let logits = match family {
        Family::Llama => plain.llama(),
        Family::Gpt2 => plain.gpt2(),
    };
    (logits, leaves)
}

struct Plain<'a> {
    model: &'a dyn Model,
    leaves: &'a [Tensor],
    batch: &'a Batch,
}

impl Plain<'_> {
    fn w(&self, name: &str) -> &Tensor {
        let at = self.model.params().iter().position(|spec| spec.fqn.as_str() == name);
        &self.leaves[at.unwrap_or_else(|| panic!("no parameter {name}"))]
    }

    fn has(&self, name: &str) -> bool {
        self.model.params().iter().any(|spec| spec.fqn.as_str() == name)
    }

    fn number(&self, key: &str) -> i64 {
        self.model.hf_config()[key].as_i64().unwrap()
    }

    fn embedding(&self, table: &str, ids: &Tensor) -> Tensor {
        Tensor::embedding(self.w(table), ids, -1, false, false)
    }

    /// The models' own: it is compared with libtorch's where it is made.
    fn attention(&self, q: &Tensor, k: &Tensor, v: &Tensor, turns: Option<&Tensor>) -> Tensor {
        let width = q.size()[2] * q.size()[3];
        causal(q, k, v, turns).unwrap().reshape([self.batch.rows * self.batch.length, width])
    }

    fn heads(&self, x: &Tensor, head_dim: i64) -> Tensor {
        x.view([self.batch.rows, self.batch.length, -1, head_dim])
    }

    fn llama(&self) -> Tensor {
        let config = self.model.hf_config();
        let (dim, head_dim) = (self.number("hidden_size"), self.number("head_dim"));
        let eps = config["rms_norm_eps"].as_f64().unwrap();
        let norm = |x: &Tensor, name: &str| x.rms_norm([dim], None::<&Tensor>, eps) * self.w(name);
        let turns = turns(self.batch.length, head_dim, config["rope_theta"].as_f64().unwrap());
        let mut x = self.embedding("tok_embeddings.weight", &self.batch.tokens.as_ref().unwrap().view([-1]));
        for layer in 0..self.number("num_hidden_layers") {
            let name = |what: &str| format!("layers.{layer}.{what}.weight");
            let linear = |x: &Tensor, what: &str| x.matmul(&self.w(&name(what)).tr());
            let a = norm(&x, &name("attention_norm"));
            let (q, k, v) =
                (linear(&a, "attention.wq"), linear(&a, "attention.wk"), linear(&a, "attention.wv"));
            let [q, k, v] = [q, k, v].map(|it| self.heads(&it, head_dim));
            let a = self.attention(&q, &k, &v, Some(&turns));
            x = &x + linear(&a, "attention.wo");
            let a = norm(&x, &name("ffn_norm"));
            let (gate, up) = (linear(&a, "feed_forward.w1"), linear(&a, "feed_forward.w3"));
            x = &x + linear(&(gate.silu() * up), "feed_forward.w2");
        }
        let head = if self.has("output.weight") { "output.weight" } else { "tok_embeddings.weight" };
        norm(&x, "norm.weight").matmul(&self.w(head).tr())
    }

    fn gpt2(&self) -> Tensor {
        let eps = self.model.hf_config()["layer_norm_epsilon"].as_f64().unwrap();
        let dim = self.number("n_embd");
        let head_dim = dim / self.number("n_head");
        let both = |name: &str| (self.w(&format!("{name}.weight")), self.w(&format!("{name}.bias")));
        let norm = |x: &Tensor, name: &str| {
            let (weight, bias) = both(name);
            x.layer_norm([dim], None::<&Tensor>, None::<&Tensor>, eps, false) * weight + bias
        };
        let linear = |x: &Tensor, name: &str| {
            let (weight, bias) = both(name);
            x.linear(weight, Some(bias))
        };
        // The bias of a sum over ranks is added after it.
        let summed = |x: &Tensor, name: &str| {
            let (weight, bias) = both(name);
            x.matmul(&weight.tr()) + bias
        };
        let tokens = self.batch.tokens.as_ref().unwrap();
        let places = Tensor::arange(self.batch.length, (Kind::Int64, tokens.device()));
        let words = self.embedding("transformer.wte.weight", tokens);
        let mut x = (words + self.embedding("transformer.wpe.weight", &places)).view([-1, dim]);
        for layer in 0..self.number("n_layer") {
            let name = |what: &str| format!("transformer.h.{layer}.{what}");
            let a = norm(&x, &name("ln_1"));
            let q = self.heads(&linear(&a, &name("attn.q_proj")), head_dim);
            let k = self.heads(&linear(&a, &name("attn.k_proj")), head_dim);
            let v = self.heads(&linear(&a, &name("attn.v_proj")), head_dim);
            x = &x + summed(&self.attention(&q, &k, &v, None), &name("attn.out_proj"));
            let a = norm(&x, &name("ln_2"));
            x = &x + summed(&linear(&a, &name("mlp.fc_in")).gelu("tanh"), &name("mlp.fc_out"));
        }
        norm(&x, "transformer.ln_f").matmul(&self.w("transformer.wte.weight").tr())
    }
}

fn turns(length: i64, head_dim: i64, theta: f64) -> Tensor {
    let on = (Kind::Float, tch::Device::Cpu);
    let exponents = Tensor::arange_start_step(0, head_dim, 2, on) / head_dim as f64;
    let angles = Tensor::arange(length, on).outer(&Tensor::pow_scalar(theta, &exponents).reciprocal());
    Tensor::polar(&angles.ones_like(), &angles).unsqueeze(1).view_as_real()
}
