"""Writes the archives beside: what torch 2.13.0 itself saves. Run: python make_archives.py"""
import os
import pathlib
import warnings

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

HERE = pathlib.Path(__file__).parent


def plain():
    base = torch.arange(12, dtype=torch.float32).reshape(3, 4)
    return {
        "w": base,
        "transposed": base.t(),
        "rows": base[1:],
        "expanded": torch.ones(1).expand(5),
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(7, dtype=torch.int64),
        "f8": torch.zeros(4, dtype=torch.float8_e4m3fn),
        "u16": torch.ones(3, dtype=torch.uint16),
        "param": torch.nn.Parameter(torch.ones(2, dtype=torch.bfloat16)),
        "frozen": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "step": 3,
        "betas": (0.9, 0.95),
    }


def shards(rank, size):
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29611")
    dist.init_process_group("gloo", rank=rank, world_size=size)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    a = distribute_tensor(torch.arange(20, dtype=torch.float32).reshape(5, 4), mesh, [Shard(0), Replicate()])
    b = distribute_tensor(torch.arange(20, dtype=torch.bfloat16).reshape(5, 4), mesh, [Replicate(), Shard(1)])
    torch.save({"a": a, "b": b, "p": torch.nn.Parameter(a)}, HERE / f"shard_{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    torch.manual_seed(0)
    torch.save(plain(), HERE / "plain.pt")
    torch.save({"z": torch.ones(2, dtype=torch.complex64).conj()}, HERE / "conj.pt")
    torch.save({"s": torch.eye(2).to_sparse()}, HERE / "sparse.pt")
    torch.save({"q": torch.quantize_per_tensor(torch.ones(2), 0.5, 0, torch.qint8)}, HERE / "quantized.pt")
    torch.save({"w": torch.ones(2)}, HERE / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.jit.save(torch.jit.script(torch.nn.Linear(1, 1)), HERE / "script.pt")
    torch.serialization.set_crc32_options(False)
    torch.save({"w": torch.ones(2)}, HERE / "nocrc.pt")
    torch.serialization.set_crc32_options(True)
    mp.spawn(shards, args=(4,), nprocs=4)
