"""What `torch.load(weights_only=True)` makes of a file.

    check_pt.py digests FILE          every tensor by its flat name, as JSON
    check_pt.py same FILE OTHER       fails unless both hold the same: types, order, attributes, bits
    check_pt.py resume FILE           loads it into a real model and a real AdamW, and takes a step

The checksums of FILE are checked by Python's zip reader each time.
"""

import json
import sys
import zipfile

import torch

from full_tensors import described, flatten


def load(path):
    return torch.load(path, weights_only=True)


def check_records(path):
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None, f"{path}: a record differs from its CRC"


def same(a, b, at="root"):
    assert type(a) is type(b), f"{at}: {type(a)} and {type(b)}"
    if isinstance(a, torch.Tensor):
        assert a.requires_grad == b.requires_grad, f"{at}: requires_grad"
        assert described(a) == described(b), f"{at}: {described(a)} and {described(b)}"
    elif isinstance(a, dict):
        assert list(a) == list(b), f"{at}: keys {list(a)} and {list(b)}"
        for key in a:
            same(a[key], b[key], f"{at}.{key}")
        same(getattr(a, "_metadata", None), getattr(b, "_metadata", None), f"{at}._metadata")
    elif isinstance(a, (list, tuple)):
        assert len(a) == len(b), f"{at}: {len(a)} and {len(b)} items"
        for index, (one, other) in enumerate(zip(a, b)):
            same(one, other, f"{at}.{index}")
    else:
        assert a == b, f"{at}: {a!r} and {b!r}"


def resume(state):
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.LayerNorm(4), torch.nn.Linear(4, 2))
    model.load_state_dict(state["model"], strict=True)
    optimizer = torch.optim.AdamW(model.parameters())
    optimizer.load_state_dict(state["optimizer"])
    assert all(entry["step"] == 2 for entry in optimizer.state.values()), "the steps were lost"
    assert len(optimizer.state) == 6, f"state of {len(optimizer.state)} parameters"
    before = model[0].weight.detach().clone()
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    assert not torch.equal(before, model[0].weight), "the step changed nothing"


def main(how, path, other=None):
    check_records(path)
    if how == "digests":
        print(json.dumps({name: described(tensor) for name, tensor in flatten(load(path))}))
    elif how == "same":
        same(load(path), load(other))
    elif how == "resume":
        resume(load(path))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
