"""Copy a torch DCP checkpoint, flip one bit of a tensor's payload, and show that torch loads it without a word.

    flip_bit_loads_silently.py SOURCE COPY FQN [--element N]

Prints, as JSON, what was flipped: file, byte, bit, and the flat index range of the element. The exit code is 0 only
if `dcp.load` raised nothing *and* the loaded value differs from the original's, so the claim is checked, not assumed.
"""

import argparse
import io
import json
import shutil
import sys
import warnings
import zipfile
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp


def first_blob(metadata, fqn):
    """The storage entry and the box of the first chunk of `fqn`."""
    entries = {index: info for index, info in metadata.storage_data.items() if index.fqn == fqn}
    if not entries:
        sys.exit(f"{fqn} is not in this checkpoint")
    index = min(entries, key=lambda i: tuple(i.offset or ()))
    sizes = {tuple(c.offsets): tuple(c.sizes) for c in metadata.state_dict_metadata[fqn].chunks}
    return entries[index], tuple(index.offset), sizes[tuple(index.offset)]


def payload_offset(path, info):
    """Where, in the file, the bytes of `data/0` of this entry begin."""
    with open(path, "rb") as file:
        file.seek(info.offset)
        blob = file.read(info.length)
    with zipfile.ZipFile(io.BytesIO(blob)) as archive:
        record = archive.getinfo("archive/data/0")
        header = blob[record.header_offset :][:30]
        name, extra = int.from_bytes(header[26:28], "little"), int.from_bytes(header[28:30], "little")
        return info.offset + record.header_offset + 30 + name + extra, record.file_size


def load(folder, metadata, fqn):
    tensor = metadata.state_dict_metadata[fqn]
    target = {fqn: torch.zeros(tensor.size, dtype=tensor.properties.dtype)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # "running without a process group"
        dcp.load(target, checkpoint_id=str(folder), planner=dcp.DefaultLoadPlanner(flatten_state_dict=False))
    return target[fqn]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", type=Path)
    parser.add_argument("copy", type=Path)
    parser.add_argument("fqn")
    parser.add_argument("--element", type=int, default=0, help="element of the tensor's first chunk, row-major")
    given = parser.parse_args()

    shutil.copytree(given.source, given.copy)
    metadata = dcp.FileSystemReader(given.source).read_metadata()
    info, offset, sizes = first_blob(metadata, given.fqn)
    path = given.copy / info.relative_path
    start, length = payload_offset(path, info)
    width = metadata.state_dict_metadata[given.fqn].properties.dtype.itemsize
    position = given.element * width
    if position >= length:
        sys.exit(f"element {given.element} lies outside of the chunk's {length} bytes")
    with open(path, "r+b") as file:
        file.seek(start + position)
        old = file.read(1)[0]
        file.seek(start + position)
        file.write(bytes([old ^ 1]))

    before, after = load(given.source, metadata, given.fqn), load(given.copy, metadata, given.fqn)
    unequal = (before != after).nonzero().tolist()
    print(
        json.dumps(
            {
                "fqn": given.fqn,
                "file": info.relative_path,
                "byte": start + position,
                "bit": 0,
                "chunk": {"offsets": offset, "sizes": sizes},
                "changed_index": unequal,
                "loaded_without_error": True,
            }
        )
    )
    sys.exit(0 if len(unequal) == 1 else 1)


if __name__ == "__main__":
    main()
