"""``krishiv doctor``: what the machines of a cluster have, next to the driver's."""

from __future__ import annotations

import platform
import socket

import attrs

from krishiv_py.errors import KrishivError
from krishiv_py.redaction import redacted
from krishiv_py.session import Session
from krishiv_py.spark.checkpoint.cluster import probed
from krishiv_py.spark.setup.stores import check_stores
from krishiv_py.spark.setup.survey import Machine, survey, versions
from krishiv_py.spark.tasks.failures import as_own
from krishiv_py.storage.folders import absolute

_SKEW_S = 1.0
_HINTS = (
    ("ModuleNotFoundError", "pack the Python side for the executors (docs/deployment.md), or install it on every machine"),
    ("PYTHON_VERSION_MISMATCH", "set PYSPARK_PYTHON to a Python of the driver's minor version on every machine"),
    ("Cannot run program", "PYSPARK_PYTHON names an interpreter that a machine does not have"),
)


@attrs.frozen
class DoctorReport:
    """Holds what was found: `problems`, one line each, and the whole as `text`."""

    text: str
    problems: tuple[str, ...]


def examine(session: Session, checkpoint: str | None = None) -> DoctorReport:
    """Run tasks on the executors of `session`, which is stopped afterwards, and report on them.

    Raises
    ------
    KrishivError
        When the driver cannot use `checkpoint`.
    """
    home = None if checkpoint is None else absolute(checkpoint)
    with session:
        try:  # as the start of a query: tasks would wait for a minute first
            check_stores(session.spark, [home], written=True)
        except KrishivError as problem:
            return _report([], home, [f"driver: {problem}"])
        try:
            with probed([] if home is None else [home]) as folders, as_own("krishiv doctor"):
                machines = survey(session.spark, folders)
        except OSError as problem:
            return _report([], home, [f"driver: {home} cannot be used: {problem}"])
        except KrishivError as problem:
            said = " ".join(str(problem).split())
            hint = next((hint for mark, hint in _HINTS if mark in said), "see the executors' logs")
            return _report([], home, [f"tasks fail: {said[:600]}. Hint: {hint}"])
    return _report(machines, home, [line for one in machines for line in _problems(one)])


def _problems(machine: Machine) -> list[str]:
    own, where = versions(), f"executor {machine.executor} on {machine.host}"
    lines = []
    if machine.python.split(".")[:2] != platform.python_version().split(".")[:2]:
        lines.append(f"{where}: Python {machine.python}, the driver has {platform.python_version()}")
    for name, version in own.items():
        if machine.versions.get(name) != version:
            has = machine.versions.get(name) or "missing"
            lines.append(f"{where}: {name} {has}, the driver has {version or 'none'}")
    if abs(machine.skew_s) > _SKEW_S:
        lines.append(f"{where}: its clock is off by at least {machine.skew_s:+.1f} s; processing time would jump")
    lines += [f"{where}: {path}: {problem}" for path, problem in machine.problems.items()]
    return lines


def _report(machines: list[Machine], home: str | None, problems: list[str]) -> DoctorReport:
    own = versions()
    rows = [("executor", "host", "Python", *own, "clock", "checkpoint")]
    rows.append(
        (
            "(driver)",
            socket.gethostname(),
            platform.python_version(),
            *(v or "-" for v in own.values()),
            "",
            redacted(home or "-"),
        )
    )
    for one in machines:
        reach = "-" if home is None else ("no" if one.problems else "yes")
        clock = "ok" if abs(one.skew_s) <= _SKEW_S else f"{one.skew_s:+.1f} s"
        seen = (one.versions.get(name) or "-" for name in own)
        rows.append((one.executor, one.host, one.python, *seen, clock, reach))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    verdict = [f"problem: {line}" for line in problems] or [f"no problem found on {len(machines)} executor(s)"]
    return DoctorReport("\n".join([*lines, "", *verdict]), tuple(problems))
