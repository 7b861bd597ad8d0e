"""Everything in turn.

``python -m benchmarks`` runs krishiv_py next to native PySpark in all modes, ``python -m benchmarks --peers`` next to the other
sides, backlog alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from benchmarks import report, run
from benchmarks.sides import SIDES

OURS = ["krishiv", "krishiv_window"]
NATIVE = ["native_rocksdb", "native_hdfs"]
PEER_JOBS = ["J1", "J2", "J3", "J4", "J5"]


def plan(*, peers: bool) -> list[list[str]]:
    """Command lines of ``benchmarks.run``."""
    if peers:
        others = [name for name in SIDES if name not in (*OURS, *NATIVE, "in_process")]
        return [
            ["backlog", "--jobs", *PEER_JOBS, "--sides", OURS[0], *others],
            ["backlog", "--jobs", "J8", "F1", "--sides", OURS[0], "flink"],
        ]
    return [
        ["backlog", "--jobs", "J1", "J2", "J3", "F1", "--sides", *OURS, *NATIVE],
        ["micro"],
        ["steady", "--sets", "B"],
        ["open_state"],
        ["bounded"],
    ]


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; options that are not known go to every ``benchmarks.run``."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--peers", action="store_true", help="all peers that are installed (python -m benchmarks.envs)")
    given, rest = parser.parse_known_args(argv)
    codes = [run.main([*line, *rest]) for line in plan(peers=given.peers)]
    report.main([])
    return max(codes)
