"""Recover every tensor of a native store with the independent reader, and compare with what training recorded.

    check_native.py ROOT REFERENCE_DIR STEP

`native_reader.py` knows only the written format: it checks the commit log, every digest and that chunks tile every
tensor. Here each tensor that it recovers must have the dtype, shape and SHA-256 that `demo_train.py` took from the
live model and optimizer, and none may be missing or left over. Exit code 1 names the first that isn't so.
"""

import hashlib
import json
import sys
from pathlib import Path

import native_reader

DTYPES = {"f32": "float32", "f64": "float64", "bf16": "bfloat16", "f16": "float16", "i64": "int64", "i32": "int32"}


def torch_name(fqn, role):
    """DCP's flat name of a tensor that the store keys by parameter and role."""
    if role in ("param", "buffer"):
        return f"model.{fqn}"
    return f"optim.state.{fqn}.{role.removeprefix('slot:')}"


def main():
    root, reference, step = sys.argv[1], Path(sys.argv[2]), sys.argv[3]
    wanted = json.loads((reference / "reference.json").read_text())["checkpoints"][step]
    found = {}
    for (fqn, role), (dtype, shape, bits) in native_reader.read(root).tensors.items():
        digest = hashlib.sha256(bits.tobytes()).hexdigest()
        found[torch_name(fqn, role)] = {"dtype": DTYPES.get(dtype, dtype), "shape": list(shape), "sha256": digest}
    if found.keys() != wanted.keys():
        sys.exit(f"names differ: {sorted(found.keys() ^ wanted.keys())[:6]}")
    wrong = [name for name in wanted if found[name] != wanted[name]]
    if wrong:
        sys.exit(f"{len(wrong)} tensors differ from what was trained, first {wrong[0]}: {found[wrong[0]]}")
    print(f"{len(found)} tensors, optimizer included, are bit for bit what was trained")


if __name__ == "__main__":
    main()
