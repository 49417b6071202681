"""Load a torch DCP checkpoint that was converted from one of the trainer, model and optimizer, into live torch objects.

    check_trainer_dcp.py CHECKPOINT STORE STEP

Builds a module with exactly the parameters that the store names, and torch's own AdamW over them; loads with `dcp.load`
and hands all of it to the two (`set_state_dict`). Every parameter, `exp_avg`, `exp_avg_sq` and `step` that torch then
holds must be, bit for bit, what the independent `native_reader.py` reads in STORE, with nothing missing on either side.
The optimizer then makes a step, so that what was loaded is state it can use.
"""

import sys

import numpy
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

import native_reader


class Holder(torch.nn.Module):
    """A tree of modules in which each name of `shapes` is a parameter."""

    def __init__(self, shapes):
        super().__init__()
        for name, shape in shapes.items():
            *path, last = name.split(".")
            module = self
            for step in path:
                if not hasattr(module, step):
                    module.add_module(step, torch.nn.Module())
                module = getattr(module, step)
            module.register_parameter(last, torch.nn.Parameter(torch.full(shape, torch.nan)))


def bits(tensor):
    return tensor.detach().contiguous().numpy().view(numpy.uint32).reshape(tuple(tensor.shape))


def held(model, optimizer):
    """(name, role) → bits of everything that torch holds."""
    for name, parameter in model.named_parameters():
        yield (name, "param"), bits(parameter)
        for slot, value in optimizer.state[parameter].items():
            yield (name, slot), bits(value)


def main():
    checkpoint, store, step = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tensors = {(fqn, role.removeprefix("slot:")): (dtype, shape, values)
               for (fqn, role), (dtype, shape, values) in native_reader.read(store).tensors.items()}
    shapes = {fqn: shape for (fqn, role), (_, shape, _) in tensors.items() if role == "param"}
    model = Holder(shapes)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    weights, state = get_state_dict(model, optimizer)
    content = {"model": weights, "optim": {"state": state["state"]}}
    dcp.load(content, checkpoint_id=checkpoint)
    state["state"] = content["optim"]["state"]
    set_state_dict(model, optimizer, model_state_dict=content["model"], optim_state_dict=state)

    found = dict(held(model, optimizer))
    if found.keys() != tensors.keys() or not found:
        sys.exit(f"names differ: {sorted(found.keys() ^ tensors.keys())[:6]}")
    for key, (dtype, shape, values) in tensors.items():
        if dtype != "f32" or found[key].shape != shape or not numpy.array_equal(found[key], values):
            sys.exit(f"{key} is not what the store holds")
    steps = {float(optimizer.state[parameter]["step"]) for parameter in model.parameters()}
    if steps != {float(step)}:
        sys.exit(f"the optimizer has made {sorted(steps)} steps, not {step}")
    moments = [optimizer.state[parameter]["exp_avg_sq"] for parameter in model.parameters()]
    if not all(float(moment.max()) > 0 for moment in moments):
        sys.exit("a second moment is zero everywhere: nothing was trained")
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    if not all(bool(parameter.isfinite().all()) for parameter in model.parameters()):
        sys.exit("a step from what was loaded gives values that are not finite")
    print(f"{len(found)} tensors, both moments and step counts included, are bit for bit those of the store")


if __name__ == "__main__":
    main()
