"""Scripts one after the other on one Spark session: ``python -m tests.spark.example_scripts SCRIPT [ARGUMENT ...] , ...``."""

from __future__ import annotations

import runpy
import sys

from krishiv_py import Session


def main(words: list[str]) -> None:
    """Each as if it were called alone; it takes the session that runs, whose micro-batches have one task to take less time."""
    calls: list[list[str]] = [[]]
    for word in words:
        if word == ",":
            calls.append([])
        else:
            calls[-1].append(word)
    with Session.builder().config("spark.sql.shuffle.partitions", 1).get_or_create():
        for call in calls:
            sys.argv = call
            runpy.run_path(call[0], run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
