"""Check that two ways of making safetensors gave the same tensors.

    bench_same.py OURS THEIRS

Each is a folder with `*.safetensors` in it. Compared by name, dtype, shape and bytes; exit code 1 names the first
tensor that differs.
"""

import sys
from pathlib import Path

import torch
from safetensors import safe_open


def tensors(folder):
    """name -> open file that holds it."""
    found = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        file = safe_open(path, "pt")
        found.update(dict.fromkeys(file.keys(), file))
    return found


def main():
    ours, theirs = tensors(sys.argv[1]), tensors(sys.argv[2])
    if ours.keys() != theirs.keys() or not ours:
        sys.exit(f"names differ: {sorted(ours.keys() ^ theirs.keys())[:5]}")
    for name, file in ours.items():
        a, b = file.get_tensor(name), theirs[name].get_tensor(name)
        if a.dtype != b.dtype or a.shape != b.shape or not torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            sys.exit(f"{name} differs")
    print(f"{len(ours)} tensors are the same")


if __name__ == "__main__":
    main()
