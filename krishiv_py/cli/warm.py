"""``krishiv warm``: makes the class archive that shortens the start of sessions."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from krishiv_py.connectors.sinks.program import MemorySink
from krishiv_py.errors import EnvironmentSetupError, KrishivError, failure_text
from krishiv_py.plan.aggregates.numbers import count
from krishiv_py.session import Session
from krishiv_py.spark.setup.class_archive import SWITCH, archive_path, checksum, checksum_path, running_jvm
from krishiv_py.spark.setup.config import JVM_OPTIONS, session_settings
from krishiv_py.spark.setup.java import require_java

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
        raise EnvironmentSetupError(
            "the class archive cannot be kept",
            got=failure_text(problem),
            hint="set XDG_CACHE_HOME to a folder of yours with 200 MB to spare",
        ) from problem
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
        [sys.executable, "-m", "krishiv_py.cli.warm", str(made)],
        env={**os.environ, SWITCH: "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode or not made.is_file():
        raise EnvironmentSetupError(
            "the class archive could not be made",
            got=(run.stderr.strip().splitlines() or ["no file was written"])[-1],
            hint="see that the small pipeline of examples/quickstart.py runs, and that the disk has 200 MB",
        )
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
    options = f'{session_settings("dev-local")[JVM_OPTIONS]} "-XX:ArchiveClassesAtExit={archive}"'
    with Session.builder().config(JVM_OPTIONS, options).get_or_create() as session:
        jvm = running_jvm()
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
    if jvm.stdin is not None:
        jvm.stdin.close()
    jvm.wait(_DUMPED_S)


if __name__ == "__main__":
    if sys.argv[1:]:
        run_small(sys.argv[1])
    else:
        warm_in_background()
