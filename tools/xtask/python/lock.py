"""Write `requirements.lock`: every package the Python side needs, pinned, with the SHA-256 of each wheel; and, cut out
of it, `libtorch.lock` and `libtorch-cuda.lock`: the wheels that the trainer's libtorch is taken from. And
`servers.lock`, the same for the object store servers that tests start.

    python3 lock.py          resolve requirements.in for this machine, then collect the hashes
    python3 lock.py cut      only cut the two smaller ones out of the requirements.lock that is there
    python3 lock.py servers  resolve servers.in instead

pip resolves once, on Linux; the same versions are then looked up (nothing is downloaded) for every Python and
platform in `TARGETS`. A package that only Linux needs gets a marker. Installing uses `--require-hashes --no-deps`,
so that what is not written here cannot come in.
"""

import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
PYTHONS = ["3.11", "3.12", "3.13", "3.14"]
LINUX = {
    arch: [f"manylinux_2_{minor}_{arch}" for minor in range(5, 36)] + [f"manylinux2014_{arch}", f"linux_{arch}"]
    for arch in ("x86_64", "aarch64")
}
MAC = {"arm64": [f"macosx_{major}_0_arm64" for major in range(11, 16)] + ["macosx_10_12_universal2"]}
# `libtorch_cpu.so` links two libraries of CUDA although it is the CPU one; the CUDA build takes every nvidia wheel.
LIBTORCH = ["torch", "nvidia-cuda-runtime", "nvidia-cuda-cupti"]


def report(arguments):
    """What pip would install, as its own JSON report."""
    with tempfile.TemporaryDirectory() as scratch:
        path = Path(scratch) / "report.json"
        command = [sys.executable, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed"]
        command += ["--report", str(path), "--only-binary=:all:", *arguments]
        subprocess.run(command, check=True)
        return json.loads(path.read_text())["install"]


def resolve(stem):
    return {
        item["metadata"]["name"].lower().replace("_", "-"): item["metadata"]["version"]
        for item in report(["-r", str(HERE / f"{stem}.in")])
    }


def only_on_linux(name):
    return name.startswith(("nvidia-", "cuda-")) or name == "triton"


def hashes(pins):
    """name -> the digests of its wheels over all targets."""
    found = {name: set() for name in pins}
    for python in PYTHONS:
        for system, platforms in [*(("linux", p) for p in LINUX.values()), *(("mac", p) for p in MAC.values())]:
            names = [n for n in pins if system == "linux" or not only_on_linux(n)]
            target = ["--no-deps", "--target", "unused", "--python-version", python, "--implementation", "cp"]
            for platform in platforms:
                target += ["--platform", platform]
            for item in report([*target, *(f"{n}=={pins[n]}" for n in names)]):
                name = item["metadata"]["name"].lower().replace("_", "-")
                found[name].add(item["download_info"]["archive_info"]["hashes"]["sha256"])
            print(f"{python} {system} {platforms[-1]}", file=sys.stderr)
    return found


def cut(source, target, wanted):
    """Copies the entries of `source` whose package is `wanted`."""
    _, *entries = re.split(r"^(?=[a-z])", source.read_text(), flags=re.MULTILINE)
    kept = [entry for entry in entries if wanted(entry.partition("==")[0])]
    target.write_text("# Cut out of requirements.lock by lock.py.\n" + "".join(kept))


def cut_libtorch():
    lock = HERE / "requirements.lock"
    cut(lock, HERE / "libtorch.lock", LIBTORCH.__contains__)
    cut(lock, HERE / "libtorch-cuda.lock", lambda name: name == "torch" or name.startswith("nvidia-"))


def resolve_anew(stem):
    pins = resolve(stem)
    lines = [
        f"# Written by lock.py from {stem}.in: exact versions and the SHA-256 of every wheel for CPython",
        f"# {', '.join(PYTHONS)} on Linux (x86_64, aarch64) and macOS (arm64).",
    ]
    for name, digests in sorted(hashes(pins).items()):
        marker = ' ; sys_platform == "linux"' if only_on_linux(name) else ""
        lines.append(f"{name}=={pins[name]}{marker} \\")
        lines += [f"    --hash=sha256:{digest} \\" for digest in sorted(digests)]
        lines[-1] = lines[-1].removesuffix(" \\")
    (HERE / f"{stem}.lock").write_text("\n".join(lines) + "\n")


def main():
    if sys.argv[1:] == ["servers"]:
        resolve_anew("servers")
        return
    if sys.argv[1:] != ["cut"]:
        resolve_anew("requirements")
    cut_libtorch()


if __name__ == "__main__":
    main()
