"""Run a command and print, as JSON on the last line, its exit code, wall time and peak resident memory.

    measured.py COMMAND [ARGUMENT ...]

Both are of the command and the processes that it waited for. The last line that it printed is passed on as `said`.
"""

import json
import resource
import subprocess
import sys
import time


def main():
    began = time.perf_counter()
    done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit
    said = (done.stdout.strip().splitlines() or [""])[-1]
    print(json.dumps({"code": done.returncode, "said": said, "seconds": seconds, "peak_bytes": peak}))


if __name__ == "__main__":
    main()
