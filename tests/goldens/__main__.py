"""Run engines over golden cases: ``python -m tests.goldens --engine driver,bounded [FILE...]``."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tests.goldens.cases import OWN_CASES, QUIET_CASES, WORKED_CASES, Case, load
from tests.goldens.compare import differences
from tests.goldens.engines import NAMES, Engine, EngineMissingError, engine_named, unsupported_by


def verdict(engine: Engine, case: Case) -> tuple[str, str]:
    """``ok``, ``FAIL`` or ``skip``, and what to say about it."""
    reason = case.reason_to_skip(unsupported_by(engine))
    if reason is not None:
        return "skip", reason
    try:
        actual = differences(case, engine.run(case))
    except Exception as error:  # one case that breaks must not hide the others
        return "FAIL", f"raised {type(error).__name__}: {error}"
    return ("FAIL", "; ".join(actual)) if actual else ("ok", "")


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit code: 0 if all hold, 1 if any fails, 2 if an engine is missing."""
    parser = argparse.ArgumentParser(prog="python -m tests.goldens", description=__doc__)
    parser.add_argument("--engine", required=True, help=f"one or several, with commas: {', '.join(NAMES)}")
    parser.add_argument("--only", default="", help="run only cases whose id contains this, or one of several with commas")
    parser.add_argument("files", nargs="*", type=Path, metavar="FILE", help="default: the cases kept with the runner")
    options = parser.parse_args(arguments)
    names = [name.strip() for name in options.engine.split(",") if name.strip()]
    try:
        engines = {name: engine_named(name) for name in names}
    except EngineMissingError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    paths = options.files or [OWN_CASES, WORKED_CASES, QUIET_CASES]
    wanted = options.only.split(",")
    cases = [case for path in paths for case in load(path) if any(part in case.id for part in wanted)]
    tally: Counter[str] = Counter()
    for name, engine in engines.items():
        label = f" [{name}]" if len(engines) > 1 else ""
        for case in cases:
            word, why = verdict(engine, case)
            tally[word] += 1
            print(f"{word:<3} {case.id}{label}{': ' if why else ''}{why}", flush=True)
    skipped = f", {tally['skip']} skipped" if tally["skip"] else ""
    print(f"{tally['ok']} passed, {tally['FAIL']} failed{skipped}")
    return 1 if tally["FAIL"] else 0


if __name__ == "__main__":
    sys.exit(main())
