"""Write a torch DCP checkpoint of one tensor of 1,000 rows of 16 KiB.

    bench_rows.py OUT
"""

import sys
import warnings

import torch
import torch.distributed.checkpoint as dcp


def main():
    warnings.simplefilter("ignore")  # "running without a process group"
    generator = torch.Generator().manual_seed(1)
    dcp.save({"w": torch.randn(1000, 4096, generator=generator)}, checkpoint_id=sys.argv[1])


if __name__ == "__main__":
    main()
