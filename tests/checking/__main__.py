"""T13 in its long form: many streams for a correct plan of each operator, one operator after the other.

``python -m tests.checking --cases 10000`` prints a line for each plan and clock, ``--only session`` takes those with this
word in their name. It ends with 1 where a plan has a finding, after all of them were tried.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, Final

from krishiv_py.testing import CheckFailedError, check
from tests.checking.operators import PLANS, TABLES

_CLOCKS: Final = ("row", "batch")


def plans(only: str) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Give the plans by name: each operator under the row clock first, then under the clock of batches."""
    for clock in _CLOCKS:
        for name, build in PLANS.items():
            if only in name:
                yield f"{name}, {clock} clock", partial(build, clock)
    for name, table in TABLES.items():
        if only in name:
            yield name, table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.checking", description=__doc__)
    parser.add_argument("--cases", type=int, default=10_000, help="streams for each plan")
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--only", default="", help="plans whose name has this text")
    options = parser.parse_args()
    findings = 0
    print("| plan | cases | findings | CPU s |\n|---|---:|---:|---:|", flush=True)
    for name, build in plans(options.only):
        began = time.process_time()
        try:
            report = check(build(), cases=options.cases, seconds=36_000, seed=options.seed, keep=None)
        except CheckFailedError as error:
            findings += 1
            print(f"| {name} | | 1 | {time.process_time() - began:.0f} |\n\n{error}\n", flush=True)
        else:
            print(f"| {name} | {report.cases} | 0 | {time.process_time() - began:.0f} |", flush=True)
    return min(findings, 1)


if __name__ == "__main__":
    sys.exit(main())
