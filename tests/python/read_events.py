"""Read TensorBoard's event files by the definition of their format, and print what they hold as JSON.

    read_events.py FOLDER

Written against the format alone, not against the trainer that writes it: TFRecord framing (length, masked CRC-32C of the length, data,
masked CRC-32C of the data), and in it messages of tensorflow's event.proto and summary.proto in protobuf's wire format. Why not the
tensorboard package: it would more than double what the tests' environment downloads beside torch (grpc, protobuf, a data server), and would
read four message types of it. That package was held against these files by hand, and found the same.

Files are read in the order of their names, as TensorBoard does. A `SessionLog.START` at a step voids what was read of that step and later
ones. Prints {"files": N, "tags": {TAG: [[STEP, BITS OF F32], ...]}}; a wrong checksum or an unknown message ends it with an error.
"""

import json
import os
import struct
import sys


def crc32c(data):
    """Castagnoli's, bit by bit (RFC 3720)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


assert crc32c(b"123456789") == 0xE3069283, "the check value of the polynomial"


def masked(data):
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def records(data, name):
    at = 0
    while at < len(data):
        head = data[at : at + 8]
        length = struct.unpack("<Q", head)[0]
        (of_head,) = struct.unpack("<I", data[at + 8 : at + 12])
        body = data[at + 12 : at + 12 + length]
        (of_body,) = struct.unpack("<I", data[at + 12 + length : at + 16 + length])
        if of_head != masked(head) or of_body != masked(body):
            sys.exit(f"{name}: the record at byte {at} has a wrong checksum")
        yield body
        at += 16 + length


def varint(data, at):
    value, shift = 0, 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def fields(data):
    """(field number, value) of a message: numbers of VARINT fields, bytes of all others."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        wire = key & 7
        if wire == 0:
            value, at = varint(data, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
            value, at = data[at : at + size], at + size
        elif wire == 2:
            size, at = varint(data, at)
            value, at = data[at : at + size], at + size
        else:
            sys.exit(f"wire type {wire} of field {key >> 3}")
        yield key >> 3, value


def main(folder):
    names = sorted(name for name in os.listdir(folder) if ".tfevents." in name)
    tags = {}
    for name in names:
        with open(os.path.join(folder, name), "rb") as file:
            events = list(records(file.read(), name))
        if dict(fields(events[0])).get(3) != b"brain.Event:2":
            sys.exit(f"{name}: the first event names no version")
        for event in events[1:]:
            found = dict(fields(event))
            step = found.get(2, 0)
            if struct.unpack("<d", found[1])[0] < 1e9:
                sys.exit(f"{name}: step {step} has no time of our days")
            if 7 in found:
                if dict(fields(found[7])) != {1: 1}:
                    sys.exit(f"{name}: a session log that is no start")
                for values in tags.values():
                    values[:] = [value for value in values if value[0] < step]
                continue
            for number, value in fields(found[5]):
                entry = dict(fields(value))
                if number != 1 or set(entry) != {1, 2}:
                    sys.exit(f"{name}: a summary that is no scalar")
                tag = entry[1].decode("utf-8")
                tags.setdefault(tag, []).append([step, struct.unpack("<I", entry[2])[0]])
    print(json.dumps({"files": len(names), "tags": tags}))


main(sys.argv[1])
