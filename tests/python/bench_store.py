"""Save by four gloo processes with torch's `dcp.save`, whenever a line on stdin says where to: what the store is measured against.

    bench_store.py --gigabytes 3

The state is that of `dcp/benches/store`: f32 tensors of 4096 x 2048, sharded by rows over four ranks, in memory before the first save. A
save is timed from a barrier to a barrier; after it comes one line of JSON. The end of stdin ends it.
"""

import argparse
import json
import os
import sys
import tempfile
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

RANKS = 4
ROWS, COLUMNS = 4096, 2048


def serve(rank, meeting, tensors, stdin):
    torch.set_num_threads(max(1, (os.cpu_count() or 1) // RANKS))
    dist.init_process_group("gloo", init_method=f"file://{meeting}", rank=rank, world_size=RANKS)
    mesh = init_device_mesh("cpu", (RANKS,), mesh_dim_names=("dp",))
    torch.manual_seed(rank)
    state = {
        f"layers.{at}.weight": DTensor.from_local(torch.randn(ROWS // RANKS, COLUMNS), mesh, [Shard(0)], run_check=False)
        for at in range(tensors)
    }
    lines = os.fdopen(os.dup(stdin)) if rank == 0 else None
    while True:
        place = [lines.readline().strip() if rank == 0 else None]
        dist.broadcast_object_list(place, src=0)
        if not place[0]:
            break
        dist.barrier()
        began = time.perf_counter()
        dcp.save(state, checkpoint_id=place[0])
        dist.barrier()
        if rank == 0:
            took = time.perf_counter() - began
            print(json.dumps({"seconds": took, "bytes": tensors * ROWS * COLUMNS * 4}), flush=True)
    dist.destroy_process_group()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--gigabytes", type=float, default=3.0)
    tensors = max(1, round(parser.parse_args().gigabytes * 1e9 / (ROWS * COLUMNS * 4)))
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    with tempfile.TemporaryDirectory() as folder:
        # Forked, so that rank 0 reads the lines that we are told.
        context = torch.multiprocessing.get_context("fork")
        arguments = [(rank, os.path.join(folder, "meeting"), tensors, sys.stdin.fileno()) for rank in range(RANKS)]
        ranks = [context.Process(target=serve, args=given) for given in arguments]
        for process in ranks:
            process.start()
        for process in ranks:
            process.join()
        sys.exit(max(abs(process.exitcode or 0) for process in ranks))


if __name__ == "__main__":
    main()
