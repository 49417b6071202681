"""Train the trainer's model in PyTorch, from the trainer's own first weights, on the samples that it consumed.

    check_trainer_torch.py TEXT SIZES_JSON RUN [RUN ...]

Each RUN is a folder of one run of `ckpt-train`: `metrics/` with the curve of losses and the log of samples, and
`tensors-N/` with what `debug.tensors_step=N` wrote: the weights before step N's update, and its gradients. The first
RUN's `tensors-1` are the first weights. PyTorch (eager, f32, one thread, `torch.optim.AdamW` in its single-tensor form,
`clip_grad_norm_`) then makes all steps of each run. Held against each other, with the tolerances printed:

- the loss of every step, relative;
- for each `tensors-N`, PyTorch's gradients at *those weights*, by name: the largest difference against the largest
  element.

Exit code 1 and one line for what is beyond its tolerance; one line of JSON with the largest differences otherwise.
"""

import json
import pathlib
import sys

import torch
from safetensors import safe_open
from torch.nn import functional as F

from bench_trainer import Llama

LOSSES, GRADIENTS = 2e-6, 1e-5
LOSS = "loss_metrics/global_avg_loss"


def name_of(ours):
    """The name in `bench_trainer.Llama` of a parameter that TorchTitan's name is given of."""
    return ours.replace("tok_embeddings", "embedding").replace("feed_forward.", "")


def assembled(folder):
    """{"param": name → tensor, "grad": …} of all ranks' boxes; every element must be there."""
    boxes = {"param": {}, "grad": {}}
    for path in sorted(folder.glob("rank_*.safetensors")):
        with safe_open(path, "pt") as file:
            for key in file.keys():
                what, fqn, offsets = key.split("|")
                offsets = [int(offset) for offset in offsets.split(",") if offset]
                boxes[what].setdefault(name_of(fqn), []).append((offsets, file.get_tensor(key)))
    return {what: {name: whole(name, parts) for name, parts in named.items()} for what, named in boxes.items()}


def whole(name, parts):
    shape = [max(at[dim] + box.shape[dim] for at, box in parts) for dim in range(parts[0][1].dim())]
    tensor, seen = torch.empty(shape), torch.zeros(shape, dtype=torch.bool)
    for at, box in parts:
        place = tuple(slice(begin, begin + extent) for begin, extent in zip(at, box.shape))
        if (seen[place] & (tensor[place] != box)).any():
            sys.exit(f"{name}: two ranks hold the same elements with other values")
        tensor[place], seen[place] = box, True
    if not seen.all():
        sys.exit(f"{name}: {(~seen).sum()} elements are on no rank")
    return tensor


class Run:
    def __init__(self, folder, config):
        self.folder, self.config = pathlib.Path(folder), config
        self.values = {}
        for line in open(self.folder / "metrics/rank_00000.jsonl", encoding="utf-8"):
            record = json.loads(line)
            if record["name"] in (LOSS, "lr"):
                self.values[record["step"], record["name"]] = record["value"]
        records = map(json.loads, open(self.folder / "metrics/samples.jsonl", encoding="utf-8"))
        self.samples = {it["step"]: it["samples"] for it in records if it["kind"] == "step"}

    def steps(self):
        return sorted(self.samples)

    def tensors(self):
        for folder in sorted(self.folder.glob("tensors-*")):
            yield int(folder.name.removeprefix("tensors-")), assembled(folder)

    def batches(self, step, text):
        length, rows = self.config["length"], self.config["micro_batch"]
        windows = [text[index * length:index * length + length + 1] for _, index in map(pair, self.samples[step])]
        for begin in range(0, len(windows), rows):
            chunk = torch.stack(windows[begin:begin + rows]).long()
            yield chunk[:, :-1], chunk[:, 1:].flatten()


def pair(sample):
    return (sample["epoch"], sample["index"]) if isinstance(sample, dict) else tuple(sample)


def load(model, weights):
    missing, extra = set(dict(model.named_parameters())) ^ set(weights), []
    if missing or extra:
        sys.exit(f"names on one side only: {sorted(missing)}")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weights[name].view_as(parameter))


def backward(model, run, step, text):
    """Gradients of the mean loss over the step's tokens, and that loss."""
    model.zero_grad(set_to_none=True)
    batches = list(run.batches(step, text))
    count = sum(targets.numel() for _, targets in batches)
    total = 0.0
    for tokens, targets in batches:
        loss = F.cross_entropy(model(tokens).flatten(0, 1), targets, reduction="sum")
        total += loss.item()
        (loss / count).backward()
    return total / count


def optimizer_of(model):
    kept = [p for p in model.parameters() if p.dim() < 2]
    decayed = [p for p in model.parameters() if p.dim() >= 2]
    groups = [{"params": decayed, "weight_decay": 0.1}, {"params": kept, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=0.0, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)


def hold_losses(model, first, run, text):
    load(model, first)
    optimizer = optimizer_of(model)
    worst = 0.0
    for step in run.steps():
        loss = backward(model, run, step, text)
        ours = run.values[step, LOSS]
        apart = abs(loss - ours) / abs(loss)
        if not apart <= LOSSES:
            sys.exit(f"{run.folder}: loss of step {step} is {ours}, PyTorch's {loss}: {apart:.2e} apart, more than {LOSSES}")
        worst = max(worst, apart)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, error_if_nonfinite=True, foreach=False)
        for group in optimizer.param_groups:
            group["lr"] = run.values[step, "lr"]
        optimizer.step()
    return worst


def hold_gradients(model, run, text):
    worst = (0.0, None, None)
    for step, tensors in run.tensors():
        load(model, tensors["param"])
        backward(model, run, step, text)
        for name, parameter in model.named_parameters():
            ours, theirs = tensors["grad"][name].view_as(parameter), parameter.grad
            apart = ((ours - theirs).abs().max() / theirs.abs().max()).item()
            if not apart <= GRADIENTS:
                sys.exit(f"{run.folder}: gradient of {name} at step {step} is {apart:.2e} apart, more than {GRADIENTS}")
            worst = max(worst, (apart, name, step), key=lambda it: it[0])
    if worst[1] is None:
        sys.exit(f"{run.folder}: no gradients to hold against PyTorch's")
    return {"apart": worst[0], "of": worst[1], "at_step": worst[2]}


def main():
    text, config, *runs = sys.argv[1:]
    config = json.loads(config)
    text = b"".join(path.read_bytes() for path in sorted(pathlib.Path(text).iterdir()))
    text = torch.frombuffer(bytearray(text), dtype=torch.uint8)
    torch.set_num_threads(1)
    model = Llama(config["sizes"])
    runs = [Run(folder, config) for folder in runs]
    first = dict(runs[0].tensors())[1]["param"]
    said = []
    for run in runs:
        losses = hold_losses(model, first, run, text)
        gradients = hold_gradients(model, run, text)
        said.append({"run": run.folder.name, "steps": len(run.steps()), "losses_apart": losses, "gradients": gradients})
    print(json.dumps(said))


if __name__ == "__main__":
    main()
