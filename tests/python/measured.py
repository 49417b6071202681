"""Run a command and print, as JSON on the last line, its exit code, wall time, processor time and peak resident memory.

    measured.py COMMAND [ARGUMENT ...]

All are of the command and the processes that it waited for. What it printed is passed on as `said`. What others wrote before
is flushed first, so that nobody is held up by the pages of the one before.
"""

import json
import os
import resource
import subprocess
import sys
import time


def main():
    os.sync()
    began = time.perf_counter()
    done = subprocess.run(sys.argv[1:], stdout=subprocess.PIPE, text=True, check=False)
    seconds = time.perf_counter() - began
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    print(json.dumps({
        "code": done.returncode, "said": done.stdout.strip(), "seconds": seconds, "processor": used.ru_utime + used.ru_stime,
        "peak_bytes": used.ru_maxrss * unit,
    }))


if __name__ == "__main__":
    main()
