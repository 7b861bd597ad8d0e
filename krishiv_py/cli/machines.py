"""Commands about machines with Spark: ``doctor`` compares those of a cluster, ``warm`` makes starts shorter."""

from __future__ import annotations

import contextlib
import fcntl
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from krishiv_py.cli.doctor import DoctorReport
from krishiv_py.connectors.sinks.known import MemorySink
from krishiv_py.errors import EnvironmentSetupError, KrishivError, failure_text
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.session import Session
from krishiv_py.spark import internals
from krishiv_py.spark.setup.agreement import Machine, probed, survey, versions
from krishiv_py.spark.setup.config import JVM_OPTIONS, check_stores, session_settings
from krishiv_py.spark.setup.jvm import SWITCH, archive_path, checksum, checksum_path, require_java
from krishiv_py.spark.tasks.failures import as_own
from krishiv_py.storage.local import absolute

_SKEW_S = 1.0
_HINTS = (
    ("ModuleNotFoundError", "pack the Python side for the executors (docs/deployment.md), or install it on every machine"),
    ("PYTHON_VERSION_MISMATCH", "set PYSPARK_PYTHON to a Python of the driver's minor version on every machine"),
    ("Cannot run program", "PYSPARK_PYTHON names an interpreter that a machine does not have"),
)


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


_DUMPED_S: Final = 300


def warm(*, again: bool = True) -> Path:
    """Run a small pipeline in a process of its own, and keep the classes its JVM loads; the path of the archive.

    Nothing is done where there is one already, and it is not to be made `again`.

    Raises
    ------
    EnvironmentSetupError
        Without Java, and when the archive cannot be made or kept.
    """
    final = archive_path(require_java())
    try:
        final.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        final.parent.chmod(0o700)
        with _alone(final.parent):
            if not again and checksum_path(final).exists():
                return final
            for left in final.parent.glob(f"{final.stem}-*"):  # of one that was killed
                shutil.rmtree(left, ignore_errors=True)
            with tempfile.TemporaryDirectory(prefix=f"{final.stem}-", dir=final.parent) as folder:
                _make(final, Path(folder, "classes.jsa"))
    except OSError as problem:
        hint = "set XDG_CACHE_HOME to a folder of yours with 200 MB to spare"
        raise EnvironmentSetupError("the class archive cannot be kept", got=failure_text(problem), hint=hint) from problem
    return final


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Keep others from making an archive there; that ends with the process, however it ends."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _make(final: Path, made: Path) -> None:
    run = subprocess.run(
        [sys.executable, "-m", "krishiv_py.cli.machines", str(made)],
        env={**os.environ, SWITCH: "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode or not made.is_file():
        what = "the class archive could not be made"
        hint = "see that the small pipeline of examples/quickstart.py runs, and that the disk has 200 MB"
        raise EnvironmentSetupError(what, got=(run.stderr.strip().splitlines() or ["no file was written"])[-1], hint=hint)
    made.chmod(0o600)
    said = checksum(made)
    checksum_path(final).unlink(missing_ok=True)  # without it nobody uses what is being replaced
    made.replace(final)
    checksum_path(made).write_text(said)
    checksum_path(made).replace(checksum_path(final))


def warm_in_background() -> None:
    """Make the archive while others work: give way to them, and do nothing where somebody else makes it."""
    os.nice(19)
    with contextlib.suppress(KrishivError):
        warm(again=False)


def run_small(archive: str) -> None:
    """A window over a memory stream and the same over rows that end, in a JVM that writes down its classes at its end."""
    options = f'{session_settings()[JVM_OPTIONS]} "-XX:ArchiveClassesAtExit={archive}"'
    with Session.builder().config(JVM_OPTIONS, options).get_or_create() as session:
        jvm = internals.jvm_process()
        stream, sender = session.memory_stream("key string, at bigint")
        counts = stream.watermark("at", "1 s").key_by("key").tumbling_window("1 min").agg(count())
        query = counts.start(MemorySink())
        for time_ms in (0, 30_000, 90_000):
            sender.send([{"key": "a", "at": time_ms}])
            query.process_all_available()
        sender.close()
        query.process_all_available()
        query.stop()
        counts.collect()
    if jvm is None:
        return
    if jvm.stdin is not None:
        jvm.stdin.close()
    jvm.wait(_DUMPED_S)


if __name__ == "__main__":
    if sys.argv[1:]:
        run_small(sys.argv[1])
    else:
        warm_in_background()
