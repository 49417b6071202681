"""Hold two runs of the trainer against each other and their logs against themselves, by what the files say alone.

    check_trainer_run.py STEPS BATCH METRICS LOG [OTHER_METRICS]

METRICS is a rank's `rank_00000.jsonl`: the losses of the whole run, of which an incarnation voids what came after the
step that it resumed from. LOG is the run's log of consumed samples, folded likewise. Checks: one loss for each of STEPS steps;
each step consumed BATCH samples, the first begins at sample 0 and each begins where the one before ended; no sample is
twice in a pass over the data; OTHER_METRICS has the same losses, bit for bit. Prints what it found.
"""

import json
import sys

LOSS = "loss_metrics/global_avg_loss"


def records(path):
    """The JSON lines of a file. A line that a kill has cut is no record, if an incarnation begins behind it."""
    cut = None
    for number, line in enumerate(open(path, encoding="utf-8", errors="replace"), 1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except ValueError:
            cut = number
            continue
        begins = record.get("name") == "incarnation" or record.get("kind") == "start"
        if cut and not begins:
            sys.exit(f"{path}:{cut} is no record")
        cut = None
        yield begins, record


def fold(path, keep):
    """What `keep` makes of each record, by step, and how often the run was begun."""
    steps, begun = {}, 0
    for begins, record in records(path):
        if begins:
            begun += 1
            steps = {step: kept for step, kept in steps.items() if step <= record["step"]}
        elif (kept := keep(record)) is not None:
            steps[record["step"]] = kept
    return steps, begun


def curve(path):
    return fold(path, lambda record: record["bits"] if record["name"] == LOSS else None)


def check_samples(path, steps, batch):
    taken, begun = fold(path, lambda record: (record["cursor"], record["samples"]))
    if sorted(taken) != list(range(1, steps + 1)):
        sys.exit(f"{path} has steps {sorted(taken)}, not 1 to {steps}")
    seen = set()
    for step, (cursor, samples) in sorted(taken.items()):
        if cursor != (step - 1) * batch or len(samples) != batch:
            sys.exit(f"step {step} took {len(samples)} samples from {cursor} on, not {batch} from {(step - 1) * batch}")
        seen.update(map(tuple, samples))
    if len(seen) != steps * batch:
        sys.exit(f"{steps * batch - len(seen)} samples were consumed twice")
    return len(seen), begun


def main():
    steps, batch, metrics, log, *other = sys.argv[1:]
    steps, batch = int(steps), int(batch)
    losses, begun = curve(metrics)
    if sorted(losses) != list(range(1, steps + 1)):
        sys.exit(f"{metrics} has losses of steps {sorted(losses)}, not 1 to {steps}")
    samples, incarnations = check_samples(log, steps, batch)
    said = f"{steps} losses in {begun} incarnations; {samples} samples, each once, in {incarnations} incarnations"
    for path in other:
        theirs, _ = curve(path)
        apart = [step for step in losses if theirs.get(step) != losses[step]]
        if apart or theirs.keys() != losses.keys():
            step = min(apart, default=max(theirs))
            sys.exit(f"losses part at step {step}: {losses.get(step)} and {theirs.get(step)}")
        said += "; the other run's are the same, bit for bit"
    print(said)


if __name__ == "__main__":
    main()
