"""Print the data-loader state of torch DCP checkpoints, read by torch and unpickled by Python, as one JSON list.

    check_rank_state.py CHECKPOINT...

Values of data ranks are bytes that are themselves a pickle, as TorchTitan saves them. Besides, the check does what TorchTitan's
loader does: each data rank finds its own key, and their number is the one that is recorded.
"""

import json
import pickle
import sys

from torch.distributed.checkpoint import FileSystemReader
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict


def loaded(checkpoint):
    state = {}
    reader = FileSystemReader(checkpoint)
    _load_state_dict(state, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    return state


def loader_state(checkpoint):
    state = loaded(checkpoint)
    saved = state["dataloader"]
    ranks = saved["world_size"]
    if set(saved) != {"world_size"} | {f"dp_rank_{rank}" for rank in range(ranks)}:
        raise SystemExit(f"{checkpoint}: {ranks} data ranks and the keys {sorted(saved)}")
    if not all(isinstance(saved[f"dp_rank_{rank}"], bytes) for rank in range(ranks)):
        raise SystemExit(f"{checkpoint}: a value that is no bytes")
    each = [pickle.loads(saved[f"dp_rank_{rank}"]) for rank in range(ranks)]
    return {"world_size": ranks, "step": state["train_state"]["step"], "w": state["w"].tolist(), "ranks": each}


if __name__ == "__main__":
    print(json.dumps([loader_state(checkpoint) for checkpoint in sys.argv[1:]]))
