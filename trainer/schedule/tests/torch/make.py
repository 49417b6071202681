"""Writes the CSV files beside it: schedules as torch's own classes make and lower them.

Run it with a Python that has the torch release of this suite; the tests read the files and need neither.
"""

import pathlib
from types import SimpleNamespace

from torch.distributed.pipelining import schedules

MADE = [
    # class, ranks, stages of each rank, microbatches, style
    ("ScheduleInterleaved1F1B", 4, 2, 8, "loop"),
    ("ScheduleInterleaved1F1B", 3, 2, 5, "loop"),
    ("ScheduleInterleavedZeroBubble", 2, 2, 8, "loop"),
    ("ScheduleInterleavedZeroBubble", 4, 1, 8, "loop"),
    ("ScheduleLoopedBFS", 2, 2, 4, "loop"),
    ("ScheduleZBVZeroBubble", 4, 2, 8, "v"),
    ("ScheduleZBVZeroBubble", 3, 2, 2, "v"),
    ("ScheduleDualPipeV", 4, 2, 10, "v"),
]


class Stage(SimpleNamespace):
    """What schedules read of a stage."""

    is_first = is_last = False

    def __init__(self, rank, ranks, index, stages):
        super().__init__(group=None, group_rank=rank, group_size=ranks, stage_index=index, num_stages=stages, submod=None)
        self.has_backward = True


def main():
    here = pathlib.Path(__file__).parent
    for name, ranks, each, microbatches, style in MADE:
        total = ranks * each
        own = range(0, total, ranks) if style == "loop" else (0, total - 1)
        made = getattr(schedules, name)([Stage(0, ranks, index, total) for index in own], microbatches, loss_fn=None)
        for kind in ("compute_only", "compute_comms"):
            short = name.removeprefix("Schedule").lower()
            made._dump_csv(here / f"{short}_{ranks}x{each}_{microbatches}_{kind}.csv", format=kind)


if __name__ == "__main__":
    main()
