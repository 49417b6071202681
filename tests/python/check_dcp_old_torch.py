"""Whether the torch that runs this loads the torch DCP folders that `ckpt` writes; any torch from 2.4 on, in any
environment. No test runs it, since each torch needs 2 to 5 GB; by hand, for a version of choice:

    python3 -m venv OLD && OLD/bin/pip install torch==2.4.1 numpy && OLD/bin/python check_dcp_old_torch.py CKPT

CKPT is the command. Two checks, in a temporary folder:

1. each committed fixture of torch DCP is converted to torch DCP and loaded by `dcp.load`: every tensor has the SHA-256
   that was noted when the fixture was saved, and every other value its type and content. Tensors of a dtype that this torch
   can't save and load itself are left out, and said to be;
2. a model and its AdamW, trained and saved by this torch, go to a native store and back to torch DCP, and are loaded
   into a fresh model and optimizer. Two more steps end in the same bits as without the detour.
"""

import argparse
import functools
import io
import json
import pickle
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "fixtures/torch_dcp"
sys.path.insert(0, str(ROOT / "fixtures/scripts"))

import expected  # noqa: E402


def run(ckpt, *arguments):
    done = subprocess.run([ckpt, *map(str, arguments)], capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"ckpt {' '.join(map(str, arguments))} ended with {done.returncode}\n{done.stderr}")


def loaded(folder, beyond):
    """Everything that the metadata names but tensors of the dtypes `beyond`, loaded over what must be overwritten."""
    state = {}
    for name, item in dcp.FileSystemReader(str(folder)).read_metadata().state_dict_metadata.items():
        if not isinstance(item, TensorStorageMetadata):
            state[name] = "not loaded"
        elif str(item.properties.dtype).removeprefix("torch.") not in beyond:
            state[name] = torch.zeros(item.size, dtype=item.properties.dtype)
    dcp.load(state, checkpoint_id=str(folder))
    return state


def differing(state, model):
    """Names whose value isn't the one that was noted; of both sides."""
    tensors = {name: {k: v for k, v in noted.items() if k != "chunks"} for name, noted in model["tensors"].items()}
    found = {name: expected.tensor(value) for name, value in state.items() if isinstance(value, torch.Tensor)}
    others = {n: expected.tagged(v) for n, v in state.items() if not isinstance(v, torch.Tensor)}
    pairs = [(found, tensors), (others, model["objects"])]
    return [n for here, noted in pairs for n in sorted(here.keys() | noted.keys()) if here.get(n) != noted.get(n)]


@functools.cache
def loadable(dtype):
    """Whether this torch saves and loads tensors of `dtype`, as DCP does it: 2.4 can't with uint16."""
    file = io.BytesIO()
    try:
        torch.save(torch.zeros(2, dtype=torch.uint8).to(getattr(torch, dtype)), file)
        file.seek(0)
        torch.load(file, weights_only=True)
    except (AttributeError, KeyError, RuntimeError, pickle.UnpicklingError):
        return False
    return True


def fixtures(ckpt, scratch):
    """(name, model, dtypes that were left out, names that differ) of each fixture."""
    for path in sorted(FIXTURES.glob("*.json")):
        model = json.loads(path.read_text())
        if not model["format"].startswith("torch_dcp"):  # Written by DCP for Hugging Face: `ckpt` gives its names a `model.` there.
            continue
        dtypes = {noted["dtype"] for noted in model["tensors"].values()}
        beyond = sorted(dtype for dtype in dtypes if not loadable(dtype))
        model["tensors"] = {name: noted for name, noted in model["tensors"].items() if noted["dtype"] not in beyond}
        target = scratch / path.stem
        run(ckpt, "convert", path.with_suffix(""), target, "--as", "torch-dcp")
        yield path.stem, model, beyond, differing(loaded(target, beyond), model)


def verdict(names):
    return f"{len(names)} differ: {names[:4]}" if names else "equal"


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = torch.nn.Embedding(37, 24)
        self.up = torch.nn.Linear(24, 50)
        self.norm = torch.nn.LayerNorm(50)
        self.down = torch.nn.Linear(50, 37)

    def forward(self, tokens):
        return self.down(self.norm(torch.nn.functional.gelu(self.up(self.embed(tokens)))))


def fresh(seed):
    torch.manual_seed(seed)
    net = Net()
    return net, torch.optim.AdamW(net.parameters(), lr=1e-2, weight_decay=0.1)


def train(net, optimizer, steps):
    for step in steps:
        generator = torch.Generator().manual_seed(step)
        tokens = torch.randint(0, 37, (4, 9), generator=generator)
        torch.nn.functional.cross_entropy(net(tokens[:, :-1]).transpose(1, 2), tokens[:, 1:]).backward()
        optimizer.step()
        optimizer.zero_grad()


def content(net, optimizer):
    weights, state = get_state_dict(net, optimizer)
    return {"model": weights, "optim": state}


def tagged(state):
    return {".".join(map(str, path)): expected.tagged(value) for path, value in expected.flatten(state)}


def resumed(ckpt, scratch):
    """Names that differ between a run that went on and one that was saved, converted twice, and loaded."""
    net, optimizer = fresh(1)
    train(net, optimizer, range(3))
    dcp.save(content(net, optimizer), checkpoint_id=str(scratch / "saved"))
    run(ckpt, "convert", scratch / "saved", scratch / "store", "--to", "3x1x1", "--place", "**=dp:0")
    run(ckpt, "convert", scratch / "store", scratch / "back", "--as", "torch-dcp")
    other, its_optimizer = fresh(2)
    state = content(other, its_optimizer)
    dcp.load(state, checkpoint_id=str(scratch / "back"))
    set_state_dict(other, its_optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    for pair in [(net, optimizer), (other, its_optimizer)]:
        train(*pair, range(3, 5))
    ours, theirs = tagged(content(other, its_optimizer)), tagged(content(net, optimizer))
    return len(theirs), [name for name in sorted(ours.keys() | theirs.keys()) if ours.get(name) != theirs.get(name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("ckpt", type=Path)
    ckpt = parser.parse_args().ckpt.resolve()
    warnings.simplefilter("ignore")
    print(f"torch {torch.__version__}, Python {sys.version.split()[0]}")
    failed = folders = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name, model, beyond, names in fixtures(ckpt, Path(scratch)):
            counts = f"{len(model['tensors']):3} tensors, {len(model['objects']):3} values"
            note = f" (not loadable by this torch: {', '.join(beyond)})" if beyond else ""
            print(f"{name:20} {counts}  {verdict(names)}{note}", flush=True)
            failed += bool(names)
            folders += 1
        count, names = resumed(ckpt, Path(scratch))
        print(f"resumed AdamW: {count} values after two more steps  {verdict(names)}")
        failed += bool(names)
    if failed or not folders:
        raise SystemExit(f"{failed} of {folders + 1} checks failed")
    print(f"{folders} folders and a resumed optimizer: all equal")


if __name__ == "__main__":
    main()
