"""Load a checkpoint with `dcp.load` on a mesh of choice, optimizer included, and go on training.

    check_dcp_resume.py CHECKPOINT REFERENCE_DIR STEP [--mesh dp4,tp1]

Two checks against what `demo_train.py` recorded:

1. every full tensor, of model and optimizer, has the reference's SHA-256: the load is exact on any mesh;
2. the losses of the next steps. On the mesh that trained they must be bit-equal. On another mesh sums are taken in
   another order, so each is held to a relative difference of 1e-5 (measured: about 1e-7).
"""

import argparse
import json
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import tiny_llama
from full_tensors import described, flatten, whole

TOLERANCE = 1e-5


def load(checkpoint, model, optimizer):
    """Loads in place; returns what was loaded, by name."""
    weights, state = get_state_dict(model, optimizer)
    content = {"model": weights, "optim": state, "train": {"step": -1, "seed": -1}}
    dcp.load(content, checkpoint_id=str(checkpoint))
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=content["optim"])
    return content


def differing(content, wanted):
    """The names whose full tensor isn't the reference's. All ranks take part."""
    found = {name: described(whole(tensor)) for name, tensor in flatten(content)}
    names = sorted(found.keys() | wanted.keys())
    return [name for name in names if found.get(name) != wanted.get(name)]


def resume(checkpoint, reference, step, mesh):
    model, names = tiny_llama.sharded(reference["tied"], mesh)
    optimizer = tiny_llama.adamw(model)
    content = load(checkpoint, model, optimizer)
    wrong = differing(content, reference["checkpoints"][str(step)])
    if wrong:
        raise SystemExit(f"{len(wrong)} tensors differ after dcp.load, first {wrong[:3]}")
    if content["train"]["step"] != step:
        raise SystemExit(f"the checkpoint says step {content['train']['step']}, not {step}")
    batches = tiny_llama.Batches()
    losses = {}
    for number in range(step + 1, step + 4):
        losses[number] = tiny_llama.train_step(model, optimizer, names, batches.of_step(number))
    if dist.get_rank() == 0:
        compare(losses, reference, mesh)


def compare(losses, reference, mesh):
    same_mesh = reference["mesh"] == {"dp": mesh.dp, "tp": mesh.tp}
    worst = 0.0
    for step, found in losses.items():
        wanted = reference["losses"][str(step)]
        worst = max(worst, abs(found - wanted) / abs(wanted))
        print(f"step {step}  loss {found:.6f}  original {wanted:.6f}", flush=True)
    allowed = 0.0 if same_mesh else TOLERANCE
    if worst > allowed:
        raise SystemExit(f"the loss differs by {worst:.1e} relative; {allowed:.0e} is allowed here")
    print(f"{len(losses)} steps, largest relative difference {worst:.1e} (allowed: {allowed:.0e})", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("reference", type=Path)
    parser.add_argument("step", type=int)
    parser.add_argument("--mesh", type=tiny_llama.Mesh.parse, default=tiny_llama.Mesh(4, 1))
    given = parser.parse_args()
    if not (given.checkpoint / ".metadata").is_file():
        sys.exit(f"{given.checkpoint} holds no .metadata")
    reference = json.loads((given.reference / "reference.json").read_text())
    tiny_llama.launch(resume, given.mesh.size, given.checkpoint, reference, given.step, given.mesh)


if __name__ == "__main__":
    main()
