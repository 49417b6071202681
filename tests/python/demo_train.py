"""Train a small Llama with FSDP2 and tensor parallelism, and save it with `torch.distributed.checkpoint`.

    demo_train.py OUT [--mesh dp2,tp2] [--tied] [--save-at 4,6] [--go-on 3]

Writes into OUT, which must not exist:

    step-4/, step-6/     checkpoints of {"model", "optim", "train"}, as `dcp.save` lays them out
    reference.json       mesh, seed, the loss of every step, and per checkpoint the SHA-256 of every full tensor
    logits-step-N.npy    what the whole, unsharded model of that step says to `prompt.npy`
    hf/                  config.json and tokenizer files, as `transformers` writes them
"""

import argparse
import json
from pathlib import Path

import numpy
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict

import tiny_llama
from full_tensors import described, flatten, whole


def save(out, step, model, optimizer):
    """Saves, and returns every full tensor. All ranks take part."""
    weights, state = get_state_dict(model, optimizer)
    content = {"model": weights, "optim": state, "train": {"step": step, "seed": tiny_llama.SEED}}
    dcp.save(content, checkpoint_id=str(out / f"step-{step}"))
    return {name: whole(tensor) for name, tensor in flatten(content)}


def logits(full, tied, prompt):
    """What one process, holding the whole model, computes."""
    model = tiny_llama.unsharded(tied)
    weights = {k.removeprefix("model."): v for k, v in full.items() if k.startswith("model.")}
    model.load_state_dict(weights, strict=True)
    with torch.no_grad():
        return model.eval()(input_ids=prompt, use_cache=False).logits.numpy()


def train(out, mesh, tied, save_at, go_on):
    model, names = tiny_llama.sharded(tied, mesh)
    optimizer = tiny_llama.adamw(model)
    batches = tiny_llama.Batches()
    prompt = batches.of_step(0)[:2, :-1]
    losses, checkpoints = {}, {}
    for step in range(1, max(save_at) + go_on + 1):
        losses[step] = tiny_llama.train_step(model, optimizer, names, batches.of_step(step))
        if step in save_at:
            full = save(out, step, model, optimizer)
            if dist.get_rank() == 0:
                checkpoints[step] = {name: described(tensor) for name, tensor in full.items()}
                numpy.save(out / f"logits-step-{step}.npy", logits(full, tied, prompt))
        if dist.get_rank() == 0:
            print(f"step {step}  loss {losses[step]:.6f}{'  saved' if step in save_at else ''}", flush=True)
    if dist.get_rank() == 0:
        numpy.save(out / "prompt.npy", prompt.numpy())
        reference = {
            "torch": torch.__version__,
            "mesh": {"dp": mesh.dp, "tp": mesh.tp},
            "tied": tied,
            "losses": losses,
            "checkpoints": checkpoints,
        }
        (out / "reference.json").write_text(json.dumps(reference, indent=1))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--mesh", type=tiny_llama.Mesh.parse, default=tiny_llama.Mesh(2, 2))
    parser.add_argument("--tied", action="store_true")
    parser.add_argument("--save-at", type=lambda text: [int(n) for n in text.split(",")], default=[4, 6])
    parser.add_argument("--go-on", type=int, default=3)
    given = parser.parse_args()

    given.out.mkdir(parents=True)
    tiny_llama.tokenizer().save_pretrained(given.out / "hf")
    tiny_llama.config(given.tied).save_pretrained(given.out / "hf")
    tiny_llama.launch(train, given.mesh.size, given.out, given.mesh, given.tied, given.save_at, given.go_on)


if __name__ == "__main__":
    main()
