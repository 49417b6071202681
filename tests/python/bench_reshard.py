"""What torch does to put a checkpoint on another mesh: load it under the new mesh, and save it again. Four gloo processes.

    bench_reshard.py write OUT [--gigabytes 3]     a checkpoint on dp2,tp2: rows cut over dp, columns over tp
    bench_reshard.py reshard IN OUT                the same on dp4: rows cut over dp

The state is f32: the tensors of a model of the 1B class (Llama's shapes) with both moments, its layers as many as the size allows. Nothing
is checked on the way. `reshard` prints the seconds that it took to use memory once, which are no part of the job, and those from a barrier
before the load to a barrier after the save.
"""

import argparse
import mmap
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import tiny_llama

HIDDEN, FFN, KV, VOCABULARY = 2048, 5632, 512, 32_000
COPIES = 3


def shapes(gigabytes):
    layer = {
        "self_attn.q_proj": (HIDDEN, HIDDEN), "self_attn.k_proj": (KV, HIDDEN), "self_attn.v_proj": (KV, HIDDEN),
        "self_attn.o_proj": (HIDDEN, HIDDEN), "mlp.gate_proj": (FFN, HIDDEN), "mlp.up_proj": (FFN, HIDDEN),
        "mlp.down_proj": (HIDDEN, FFN), "input_layernorm": (HIDDEN,), "post_attention_layernorm": (HIDDEN,),
    }
    ends = {"model.embed_tokens": (VOCABULARY, HIDDEN), "model.norm": (HIDDEN,), "lm_head": (VOCABULARY, HIDDEN)}
    count = lambda shapes: sum(torch.Size(shape).numel() for shape in shapes.values())
    layers = max(1, round((gigabytes * 1e9 / 4 / COPIES - count(ends)) / count(layer)))
    all_layers = {f"model.layers.{at}.{name}": shape for at in range(layers) for name, shape in layer.items()}
    return {f"{name}.weight": shape for name, shape in (all_layers | ends).items()}


def state(found, make):
    model = {name: make(shape) for name, shape in found.items()}
    moments = {name: {"exp_avg": make(shape), "exp_avg_sq": make(shape)} for name, shape in found.items()}
    return {"model": model, "optim": {"state": moments}}


def local(shape, ranks):
    return [extent // ranks[dim] if dim < len(ranks) else extent for dim, extent in enumerate(shape)]


def warm(gigabytes):
    """Uses memory once and frees it, as all that is measured beside this is given memory that has just been used."""
    with mmap.mmap(-1, int(gigabytes * 1e9)) as memory:
        for at in range(0, len(memory), mmap.PAGESIZE):
            memory[at] = 1


def write(out, gigabytes):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    torch.manual_seed(dist.get_rank())

    def make(shape):
        if len(shape) == 1:
            return DTensor.from_local(torch.randn(local(shape, [2])), mesh["dp"], [Shard(0)], run_check=False)
        return DTensor.from_local(torch.randn(local(shape, [2, 2])), mesh, [Shard(0), Shard(1)], run_check=False)

    dcp.save(state(shapes(gigabytes), make), checkpoint_id=str(out))


def reshard(source, out, gigabytes):
    # It fills fresh memory with NaN, which costs torch a pass over everything.
    torch.use_deterministic_algorithms(False)
    mesh = init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
    started = time.perf_counter()
    # What is loaded, what is written, and buffers.
    warm((2 * gigabytes + 1) / 4)
    dist.barrier()
    began = time.perf_counter()

    def make(shape):
        return DTensor.from_local(torch.empty(local(shape, [4])), mesh, [Shard(0)], run_check=False)

    found = state(shapes(gigabytes), make)
    dcp.load(found, checkpoint_id=str(source))
    dcp.save(found, checkpoint_id=str(out))
    dist.barrier()
    if dist.get_rank() == 0:
        print(began - started, time.perf_counter() - began, sep="\n", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    writing = commands.add_parser("write")
    writing.add_argument("out", type=Path)
    moving = commands.add_parser("reshard")
    moving.add_argument("source", type=Path)
    moving.add_argument("out", type=Path)
    for command in (writing, moving):
        command.add_argument("--gigabytes", type=float, default=3.0)
    given = parser.parse_args()
    if given.command == "write":
        tiny_llama.launch(write, 4, given.out, given.gigabytes)
    else:
        tiny_llama.launch(reshard, 4, given.source, given.out, given.gigabytes)


if __name__ == "__main__":
    main()
