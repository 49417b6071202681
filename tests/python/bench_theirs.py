"""torch DCP to safetensors with the tools that come with torch: `dcp_to_torch_save`, then `save_file`.

    bench_theirs.py CHECKPOINT SCRATCH

Prints the seconds that the work itself took: importing torch is not held against it. Nothing is made durable, as these tools don't.
"""

import sys
import time
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save


def main():
    checkpoint, scratch = Path(sys.argv[1]), Path(sys.argv[2])
    scratch.mkdir(parents=True)
    began = time.perf_counter()
    dcp_to_torch_save(checkpoint, scratch / "whole.pt")
    state = torch.load(scratch / "whole.pt", mmap=True, weights_only=True)
    save_file(state["model"], scratch / "model.safetensors", metadata={"format": "pt"})
    print(f"{time.perf_counter() - began:.3f}")


if __name__ == "__main__":
    main()
