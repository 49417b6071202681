"""Reads a native store as dcp/FORMAT.md describes it, and nothing else: the oracle of the Rust writer. Checks the commit
log, all digests, that chunks tile every tensor, and fingerprints where asked. As a library: `read(root)`; as a command,
`native_reader.py ROOT [--fingerprints]` prints what the newest checkpoint holds as JSON."""
import hashlib, json, os, pathlib, re, sqlite3, struct, sys
import numpy as np
load = lambda *parts: pathlib.Path(*parts).read_bytes()
sha = lambda data: hashlib.sha256(data).hexdigest()
bits_of = lambda dtype: {"bool": 8, "f4_e2m1x2": 8}.get(dtype) or int(re.match(r"[a-z]+(\d+)", dtype)[1])

def need(condition, *what):
    if not condition:
        raise ValueError(" ".join(map(str, what)))

def records(root):
    """The commit log from its first record on."""
    prev, root_id, seq = None, None, 1
    while os.path.exists(path := f"{root}/commits/{seq:020}.json"):
        data = load(path)
        need(data[-77:] == b',"check":"%s"}\n' % sha(data[:-77]).encode(), path, "is cut short or changed")
        record = json.loads(data[:-77] + b"}")
        need(record["format"] == 1 and not record["must_understand"], path, "needs a newer reader")
        place = record["seq"], record["prev"], record["root"]
        need(place == (seq, prev, root_id or place[2]), path, "is of another log")
        yield record
        prev, root_id, seq = sha(data), record["root"], seq + 1

def fold(log):
    """What the records amount to: {seq: content of the commit} of the checkpoints that exist."""
    live, run_of, runs, tags, retired, condemned, pins, whole = {}, {}, {}, {}, set(), set(), set(), set()
    dirs = lambda commit: {commit["attempt"], *commit["directories"]}
    for record in log:
        (kind, it), = record["action"].items()
        run, seq, parent, of = record["run"], record["seq"], record["parent"], it.get("checkpoint")
        epoch, tip = runs.get(run, (0, None))
        if record["epoch"] < epoch or (kind == "epoch" and record["epoch"] == epoch) or (of and of not in live):
            continue
        tip = tip if record["epoch"] == epoch else None
        if kind == "commit":
            taken = it["attempt"] in retired | {c["attempt"] for c in live.values()} or dirs(it) & condemned
            if taken or (parent and (parent >= seq or tip not in (None, parent))):
                continue
            live[seq], run_of[seq], tip = it, run, seq
        elif kind == "retire":
            if of in pins or of in tags.values() or of == max((s for s in whole if run_of[s] == run_of[of]), default=0):
                continue
            retired.add(live.pop(of)["attempt"]), whole.discard(of)
        elif kind == "condemn":
            if set(it["directories"]) & set().union(*map(dirs, live.values())):
                continue
            condemned |= set(it["directories"])
            retired -= condemned
        elif kind in ("tag", "untag"):
            if not of and it["name"] not in tags:
                continue
            tags.update({it["name"]: of}) if of else tags.pop(it["name"])
        elif kind in ("pin", "verified"):
            marked = pins if kind == "pin" else whole
            marked.add(of) if it.get("held", it.get("whole")) else marked.discard(of)
        runs[run] = record["epoch"], tip
    return live

def decode(codec, stored, length):
    """A block from its stored bytes: as they are, or a zstd frame of `codec` planes."""
    if codec == 0:
        return stored
    import zstandard
    frame = zstandard.get_frame_parameters(stored)
    need(frame.content_size == length and not frame.dict_id and stored[:4] == b"\x28\xb5\x2f\xfd", "another frame")
    zstd = zstandard.ZstdDecompressor().decompressobj()
    planes, whole = np.frombuffer(zstd.decompress(stored), np.uint8), length // codec * codec
    need(zstd.eof and not zstd.unused_data and len(planes) == length, "a frame of another length")
    return planes[:whole].reshape(codec, -1).T.tobytes() + planes[whole:].tobytes()

def check_blocks(table, data):
    """The logical bytes of a file, every stored byte of which is compared with its block table."""
    magic, major, _, flags, size, n = struct.unpack_from("<8sHHIQQ", table)
    need(magic == b"CKPTBLKS" and major == 1 and flags < 2 and len(table) == 32 + (41 if flags else 36) * n, "another table")
    lengths = stored = struct.unpack_from(f"<{n}I", table, 32)
    codecs, digests, at, out = bytes(n), 32 + 4 * n, 0, []
    if flags:
        stored, codecs, digests = struct.unpack_from(f"<{n}I", table, 32 + 4 * n), table[32 + 8 * n:][:n], 32 + 9 * n
        need(any(codecs), "columns for codecs, and no codec")
    need(size == len(data) == sum(stored) and all(0 < length <= 1 << 20 for length in lengths), "lengths of blocks")
    for block, (length, here, codec) in enumerate(zip(lengths, stored, codecs)):
        need(codec in (0, 1, 2, 4, 8) and (0 < here < length if codec else here == length), "a block of another kind")
        part = data[at:at + here]
        digest = hashlib.sha256(part).digest()
        need(digest == table[digests + 32 * block:][:32], "bytes", at, "to", at + here, "have changed")
        out, at = [*out, decode(codec, part, length)] if flags else out, at + here
    return b"".join(out) if flags else data

def unpack(rank, column):
    """(file, offset, region offsets, region extents, strides or None) of each chunk of a tensor."""
    count, columns = struct.unpack_from("<II", column)
    form = f"<IIQ{rank * (3 if columns & 1 else 2) + (3 if columns & 2 else 0)}Q"
    need(columns < 4 and len(column) == 8 + count * struct.calcsize(form), "chunks of another length")
    for file, flags, offset, *dims in struct.iter_unpack(form, column[8:]):
        yield file, offset, dims[:rank], dims[rank:2 * rank], dims[2 * rank:3 * rank] if flags & 1 else None

def fingerprint(dtype, shape, bits, step=1 << 16):
    """The fingerprint of a tensor whose elements, as unsigned numbers in canonical order, are `bits`."""
    times = lambda a, b: 0 if not b else (a if b & 1 else 0) ^ times(a << 1 ^ (0x11b if a & 0x80 else 0), b >> 1)
    inverse = [0] + [next(y for y in range(256) if times(x, y) == 1) for x in range(1, 256)]
    box = np.array([0x63 ^ (z := y ^ y << 1 ^ y << 2 ^ y << 3 ^ y << 4) & 255 ^ z >> 8 for y in inverse], np.uint8)
    double = np.array([times(x, 2) for x in range(256)], np.uint8)
    keys = bytes.fromhex("243f6a8885a308d313198a2e03707344a4093822299f31d0082efa98ec4e6c89"
                         "452821e638d01377be5466cf34e90c6cc0ac29b7c97c50dd3f84d5b5b5470917")
    shift, lanes = [(n + 4 * (n % 4)) % 16 for n in range(16)], np.zeros(2, "<u8")
    for start in range(0, len(bits), step):
        part = bits[start:start + step].astype("<u8")
        s = np.stack([np.arange(start, start + len(part), dtype="<u8"), part], 1).view(np.uint8)
        for key in np.frombuffer(keys, np.uint8).reshape(4, 16):
            s = box[s[:, shift]].reshape(-1, 4, 4)
            a, b, c = (np.roll(s, -k, 2) for k in (1, 2, 3))
            s = (double[s ^ a] ^ a ^ b ^ c).reshape(-1, 16) ^ key
        lanes += np.ascontiguousarray(s).view("<u8").sum(0, dtype="<u8")
    form = b"ckpt fingerprint 1\0" + dtype.encode() + b"\0" + struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return sha(form + lanes.tobytes())[:32]

class Checkpoint:
    """`tensors[fqn, role] = (dtype, shape, array of the elements' bits)`, `objects[key] = bytes`, `meta`."""
    def __init__(self, root, step, image, fingerprints=False):
        (db := sqlite3.connect(":memory:")).deserialize(image)
        rows = lambda columns, table: db.execute(f"SELECT {columns} FROM {table} ORDER BY 1").fetchall()
        self.meta, files = {key: json.loads(value) for key, value in rows("key, value", "meta")}, []
        coded = dict(self.meta.get("coded", {}).get("files", []))
        need(self.meta["version"][0] == 1 and self.meta["features"] == ["coded-blocks"] * bool(coded), "needs a newer reader")
        for id, path, where, size, base, blocks, digest in rows("id, path, location, size, base, blocks, blocks_root", "files"):
            files.append(load({"step": step, "root": root, "external": (base or "").removeprefix("file://")}[where], path))
            need(len(files[-1]) == size, path, "has another size")
            if blocks:
                table = load(root if where == "root" else step, blocks)
                need(sha(table) == digest, blocks, "has changed")
                files[-1] = check_blocks(table, files[-1])
            need(len(files[-1]) == coded.get(id, size), path, "decodes to another size")
        self.objects, self.tensors, self.fingerprints = {}, {}, {}
        for _, key, here, file, start, length in rows("id, key, bytes, file, start, length", "objects"):
            self.objects[key] = here if file is None else files[file][start:start + length]
        for _, fqn, role, dtype, shape, known, chunks in rows("id, fqn, role, dtype, shape, fingerprint, chunks", "tensors"):
            bits, shape = bits_of(dtype), tuple(json.loads(shape))
            scaled = lambda dims: tuple(dims) if bits >= 8 else (*dims[:-1], dims[-1] * bits // 8)
            kind = np.dtype(f"<u{max(bits // 8, 1)}" if bits <= 64 else f"V{bits // 8}")
            whole, seen = np.zeros(scaled(shape), kind), np.zeros(scaled(shape), bool)
            for file, offset, at, extent, strides in unpack(len(shape), chunks):
                if 0 not in extent:
                    box = tuple(slice(a, a + e) for a, e in zip(scaled(at), scaled(extent)))
                    need(not seen[box].any(), fqn, "has chunks that overlap")
                    steps = strides and [kind.itemsize * stride for stride in strides]
                    whole[box], seen[box] = np.ndarray(scaled(extent), kind, files[file], offset, steps), True
            need(seen.all(), fqn, "has elements that no chunk holds")
            self.tensors[fqn, role] = dtype, shape, whole
            if fingerprints:
                found = fingerprint(dtype, shape, whole.reshape(-1).view("<u8" if bits == 128 else kind))
                need(known in (None, found), fqn, role, "has another fingerprint")
                self.fingerprints[fqn, role] = found

def read(root, fingerprints=False, seq=None):
    live = fold(records(root))
    need(live if seq is None else seq in live, "there is no such checkpoint in", root)
    commit = live[seq or max(live)]
    named, step = commit["manifest"], os.path.join(root, commit["attempt"])
    image = load(step, f"manifest-{named['sha256']}.sqlite")
    need(sha(image) == named["sha256"] and len(image) == named["size"], "the manifest has changed")
    return Checkpoint(root, step, image, fingerprints)

if __name__ == "__main__":
    it = read(sys.argv[1], "--fingerprints" in sys.argv)
    tensors = {f"{fqn}|{role}": (dtype, shape, sha(bits.tobytes()), it.fingerprints.get((fqn, role)))
               for (fqn, role), (dtype, shape, bits) in it.tensors.items()}
    print(json.dumps({"objects": {key: sha(value) for key, value in it.objects.items()}, "tensors": tensors} | it.meta))
