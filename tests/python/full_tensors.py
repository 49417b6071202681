"""Full tensors of a sharded state dict, by the flat names that DCP gives them, and their digests."""

import hashlib

import torch
from torch.distributed.tensor import DTensor


def whole(value):
    return value.full_tensor() if isinstance(value, DTensor) else value


def flatten(value, path=()):
    """(FQN, tensor) of every tensor, with DCP's names."""
    if isinstance(value, torch.Tensor):
        yield ".".join(path), value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, (*path, str(key)))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from flatten(item, (*path, str(index)))


def described(tensor):
    tensor = tensor.detach().contiguous()
    data = tensor.reshape(-1).view(torch.uint8).numpy().tobytes()
    return {
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "shape": list(tensor.shape),
        "sha256": hashlib.sha256(data).hexdigest(),
    }
