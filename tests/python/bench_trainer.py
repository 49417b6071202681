"""Train a Llama in eager PyTorch, so many steps at a time as it is told: what the trainer's `in_turns` is measured against.

    bench_trainer.py TEXT --sizes JSON --rows N --length N [--fused] [--numbers float32|bfloat16|autocast] [--products]
        [--ranks alone|fsdp|ddp]

Each line on stdin is a number of steps; after them it prints one line of JSON: the seconds of each step, and the last loss. The end of
stdin ends it. One thread; a step reads its samples (those that the trainer takes) out of TEXT, goes forward and back, clips to a norm
of 1 and updates by `torch.optim.AdamW` as it is by default, or its fused form. The model is written the way TorchTitan's is:
complex rotary positions, grouped-query attention by `scaled_dot_product_attention`, SwiGLU, RMS norms; it begins as the trainer's
does, with other random numbers.

`bfloat16`: weights, gradients and moments are bf16, and all that is computed on them. `autocast`: weights and moments are f32,
`torch.autocast` chooses what is computed in bf16. ROWS are those of this process.

`--products`: a step is the three products of every linear, on operands that never change, and nothing else: its loss is null.
"""

import argparse
import contextlib
import json
import math
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F

import bench_trainer_ranks as ranks
from bench_trainer_samples import windows


class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        dim, heads = sizes["dim"], sizes["heads"]
        kv_heads = sizes.get("kv_heads", heads)
        self.head_dim = sizes.get("head_dim", dim // heads)
        self.wq = nn.Linear(dim, heads * self.head_dim, bias=False)
        self.wk = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wv = nn.Linear(dim, kv_heads * self.head_dim, bias=False)
        self.wo = nn.Linear(heads * self.head_dim, dim, bias=False)

    def forward(self, x, turns):
        rows, length, _ = x.shape
        q, k, v = (w(x).view(rows, length, -1, self.head_dim) for w in (self.wq, self.wk, self.wv))
        q, k = turned(q, turns), turned(k, turns)
        q, k, v = (t.transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
        return self.wo(mixed.transpose(1, 2).reshape(rows, length, -1))


def turned(x, turns):
    pairs = torch.view_as_complex(x.float().reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3).type_as(x)


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        dim, ffn, eps = sizes["dim"], sizes["ffn"], sizes.get("norm_eps", 1e-5)
        self.attention = Attention(sizes)
        self.attention_norm, self.ffn_norm = nn.RMSNorm(dim, eps), nn.RMSNorm(dim, eps)
        self.w1, self.w3 = nn.Linear(dim, ffn, bias=False), nn.Linear(dim, ffn, bias=False)
        self.w2 = nn.Linear(ffn, dim, bias=False)

    def forward(self, x, turns):
        x = x + self.attention(self.attention_norm(x), turns)
        a = self.ffn_norm(x)
        return x + self.w2(F.silu(self.w1(a)) * self.w3(a))


class Llama(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        dim, vocab = sizes["dim"], sizes["vocab"]
        self.embedding = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes["layers"]))
        self.norm = nn.RMSNorm(dim, sizes.get("norm_eps", 1e-5))
        self.output = nn.Linear(dim, vocab, bias=False)
        head_dim = sizes.get("head_dim", dim // sizes["heads"])
        frequencies = sizes.get("rope_theta", 10_000.0) ** (-torch.arange(0, head_dim, 2) / head_dim)
        angles = torch.outer(torch.arange(sizes["max_length"]).float(), frequencies)
        self.register_buffer("turns", torch.polar(torch.ones_like(angles), angles).unsqueeze(1))
        for name, weight in self.named_parameters():
            if weight.dim() == 2:
                ends_branch = name.endswith(("wo.weight", "w2.weight"))
                nn.init.normal_(weight, std=0.02 / math.sqrt(2 * sizes["layers"]) if ends_branch else 0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        turns = self.turns[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, turns)
        return self.output(self.norm(x))


class Training:
    def __init__(self, given):
        self.given = given
        self.ranks = ranks.Ranks(given.ranks)
        torch.manual_seed(1)
        model = Llama(given.sizes)
        if given.numbers == "bfloat16":
            for weight in model.parameters():  # Not the rotary positions.
                weight.data = weight.data.bfloat16()
        self.model, self.held = self.ranks.share_out(model)
        self.text = torch.frombuffer(bytearray(open(given.text, "rb").read()), dtype=torch.uint8)
        kept = [p for p in self.held.parameters() if p.dim() < 2]
        decayed = [p for p in self.held.parameters() if p.dim() >= 2]
        groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
        fused = True if given.fused else None
        self.optimizer = torch.optim.AdamW(groups, lr=3e-4, betas=(0.9, 0.95), eps=1e-8, fused=fused)
        self.cursor = 0

    def batch(self):
        rows, length = self.given.rows, self.given.length
        first = self.cursor + self.ranks.rank * rows
        self.cursor += self.ranks.world * rows
        starts = windows(len(self.text), length, 0, range(first, first + rows))
        samples = torch.stack([self.text[start:start + length + 1] for start in starts]).long()
        return samples[:, :-1], samples[:, 1:].flatten()

    def precision(self):
        if self.given.numbers == "autocast":
            return torch.autocast("cpu", dtype=torch.bfloat16)
        return contextlib.nullcontext()

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        tokens, targets = self.batch()
        with self.precision():
            logits = self.model(tokens)
        # The mean of this rank's tokens: FSDP and DDP take the mean over ranks.
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets)
        loss.backward()
        ranks.clip(list(self.held.parameters()), 1.0)
        self.optimizer.step()
        return loss.item()


class Products:
    """The products of a step alone: forward, and both of the backward."""

    def __init__(self, given):
        self.held = Llama(given.sizes)
        self.ranks = ranks.Ranks(ranks.ALONE)
        dtype = {"bfloat16": torch.bfloat16}.get(given.numbers, torch.float32)
        tokens = given.rows * given.length
        linears = [module.weight.detach().to(dtype) for module in self.held.modules() if isinstance(module, nn.Linear)]
        made = {size: torch.randn(tokens, size, dtype=dtype) for weight in linears for size in weight.shape}
        self.operands = [(weight, made[weight.shape[1]], made[weight.shape[0]]) for weight in linears]

    def step(self):
        for weight, x, dy in self.operands:
            F.linear(x, weight)
            torch.mm(dy, weight)
            torch.mm(dy.t(), x)


def turn(training, steps):
    seconds = []
    for _ in range(steps):
        began = time.perf_counter()
        loss = training.step()
        seconds.append(time.perf_counter() - began)
    parameters = sum(p.numel() for p in training.held.parameters())
    return {"steps": seconds, "parameters": parameters, "loss": loss}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("text")
    parser.add_argument("--sizes", type=json.loads, required=True)
    for name in ["rows", "length"]:
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--products", action="store_true")
    parser.add_argument("--numbers", choices=["float32", "bfloat16", "autocast"], default="float32")
    parser.add_argument("--ranks", choices=[ranks.ALONE, ranks.FSDP, ranks.DDP], default=ranks.ALONE)
    torch.set_num_threads(1)
    ranks.quiet()
    given = parser.parse_args()
    training = Products(given) if given.products else Training(given)
    for line in sys.stdin:
        print(json.dumps(turn(training, int(line))), flush=True)
    training.ranks.leave()


if __name__ == "__main__":
    main()
