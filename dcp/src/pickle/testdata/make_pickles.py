"""Writes pickles.bin: one value pickled by CPython with each protocol, for the tests beside.

Layout, repeated: name length (u8), name, protocol (u8), pickle length (u32 LE), pickle.
Run with any CPython 3.8 or later: python make_pickles.py
"""
import argparse
import collections
import pickle
import struct
import pathlib

shared = [1, 2]
ordered = collections.OrderedDict([("weight", 1), ("bias", 2)])
ordered._metadata = {"version": 1}
VALUES = {
    "atoms": [None, True, False, 0, 255, 256, 65535, 65536, -1, 2**31, -(2**63), 2**64, -(2**80), 1.5, -0.0],
    "text": ["", "héllo\n'\\", "x" * 300, "\udcff", b"", b"\x00\xffab", bytearray(b"ba")],
    "tuples": [(), (1,), (1, 2), (1, 2, 3), (1, 2, 3, 4)],
    "sets": [{7}, frozenset([8])],
    "shared": {"a": shared, "b": shared, 3: "int key"},
    "ordered": ordered,
    "namespace": argparse.Namespace(lr=0.5, name="run"),
    "default": collections.defaultdict(list, {"k": [1]}),
    "long": list(range(1200)),
    "complex": 1 + 2j,
}

with open(pathlib.Path(__file__).with_name("pickles.bin"), "wb") as out:
    for name, value in VALUES.items():
        for protocol in range(6):
            data = pickle.dumps(value, protocol)
            out.write(struct.pack("B", len(name)) + name.encode() + struct.pack("<BI", protocol, len(data)) + data)
