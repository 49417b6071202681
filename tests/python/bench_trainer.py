"""Time forward and backward of a Llama in eager PyTorch, for comparison with the trainer's `forward_backward` example.

    bench_trainer.py SIZES.toml ROWS LENGTH REPEATS

Same sizes file, same token ids, one thread, f32. Prints one line of JSON like the example's. The model is written the way
TorchTitan's is: complex rotary positions, grouped-query attention by `scaled_dot_product_attention`, SwiGLU, RMS norms.
"""

import json
import sys
import time
import tomllib

import torch
from torch import nn
from torch.nn import functional as F


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
    pairs = torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))
    return torch.view_as_real(pairs * turns).flatten(3)


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
        for weight in self.parameters():
            if weight.dim() == 2:
                nn.init.normal_(weight, std=0.02)

    def forward(self, tokens):
        x = self.embedding(tokens)
        turns = self.turns[: tokens.shape[1]]
        for layer in self.layers:
            x = layer(x, turns)
        return self.output(self.norm(x))


def ids(count, vocab):
    state = 1
    for _ in range(count):
        state = state * 48_271 % 2_147_483_647
        yield state % vocab


def step(model, tokens, targets):
    model.zero_grad(set_to_none=True)
    start = time.perf_counter()
    logits = model(tokens).flatten(0, 1)
    loss = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    value = loss.item() / targets.numel()
    forward = time.perf_counter() - start
    start = time.perf_counter()
    loss.backward()
    return {"forward": forward, "backward": time.perf_counter() - start, "weights": 0.0, "loss": value}


def main():
    path, rows, length, repeats = sys.argv[1], *map(int, sys.argv[2:5])
    torch.set_num_threads(1)
    with open(path, "rb") as file:
        sizes = tomllib.load(file)
    model = Llama(sizes)
    flat = torch.tensor(list(ids(rows * length + 1, sizes["vocab"])))
    tokens, targets = flat[:-1].view(rows, length), flat[1:].view(rows, length)
    steps = [step(model, tokens, targets) for _ in range(repeats)]
    best = min(steps, key=lambda it: it["forward"] + it["backward"])
    best["tokens_per_second"] = rows * length / (best["forward"] + best["backward"])
    print(json.dumps(best))


if __name__ == "__main__":
    main()
