"""Plays one seed again and prints what happened: `python -m tests.sim.replay SEED [--mutation NAME]`; or a range: `A:B`."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter

from tests.sim.run import play


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seeds", help="SEED, or FIRST:END")
    parser.add_argument("--mutation", default=None)
    parser.add_argument("--quiet", action="store_true", help="no trace")
    args = parser.parse_args()
    mutation = None
    if args.mutation:
        from tests.sim.mutations import MUTATIONS

        mutation = MUTATIONS[args.mutation].plant
    first, _, end = args.seeds.partition(":")
    if end:
        started, found, steps = time.perf_counter(), Counter[str](), 0
        for seed in range(int(first), int(end)):
            run = play(seed, mutation=mutation)
            steps += run.world.scheduler.steps
            if run.violations:
                print(seed, run.violations[0], flush=True)
                found[run.violations[0][:60]] += 1
        count = int(end) - int(first)
        seconds = time.perf_counter() - started
        print(
            f"{count} runs, {found.total()} with violations, {seconds / count * 1000:.1f} ms and {steps / count:.0f} steps a run"
        )
        for what, times in found.most_common():
            print(f"{times:6}  {what}")
        return int(bool(found))
    run = play(int(first), traced=not args.quiet, mutation=mutation)
    print(run.profile)
    print("\n".join(run.trace))
    print("\n".join(run.violations) or "no violation")
    return int(bool(run.violations))


if __name__ == "__main__":
    sys.exit(main())
