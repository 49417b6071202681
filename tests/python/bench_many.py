"""Write a torch DCP checkpoint of many small tensors, in one process.

    bench_many.py OUT [COUNT]
"""

import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp


def main():
    count = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
    warnings.simplefilter("ignore")  # "running without a process group"
    state = {f"model.layers.{i}.mlp.up_proj.weight": torch.full((8, 8), float(i)) for i in range(count)}
    dcp.save(state, checkpoint_id=sys.argv[1])


if __name__ == "__main__":
    main()
