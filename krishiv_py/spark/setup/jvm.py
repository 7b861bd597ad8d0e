"""The JVM of an embedded session: found, started apart from the terminal, heard where it concerns the user."""

from __future__ import annotations

import hashlib
import logging
import os
import re
import shutil
import signal
import stat
import subprocess
import threading
import time
import warnings
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import pyspark
from py4j.protocol import Py4JError
from pyspark import SparkConf
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, cut
from krishiv_py.failures.redaction import redacted
from krishiv_py.spark import internals
from krishiv_py.spark.setup.waiting import on_main_thread

_PACKAGED: Final = (
    ("apt-get", "apt-get install -y openjdk-17-jre-headless"),
    ("dnf", "dnf install -y java-17-openjdk-headless"),
    ("microdnf", "microdnf install -y java-17-openjdk-headless"),
    ("zypper", "zypper install -y java-17-openjdk-headless"),
    ("apk", "apk add openjdk17-jre-headless"),
    ("pacman", "pacman -S --noconfirm jre17-openjdk-headless"),
    ("brew", "brew install openjdk@17"),
)
"""Package managers, and how each installs Java; those of a system come before those people add to it."""


def _hint() -> str:
    """Return what to type on the system at hand."""
    conda = "`conda install -c conda-forge openjdk=17`"
    packaged = next(((name, command) for name, command in _PACKAGED if shutil.which(name)), None)
    if packaged is None:
        return f"Hint: install a Java 17 or 21 ({conda} needs no rights), or set JAVA_HOME to one"
    name, command = packaged
    if name != "brew" and os.geteuid() != 0:
        if not shutil.which("sudo"):
            return f"Hint: install it with {conda}, or let an administrator run `{command}`; or set JAVA_HOME"
        command = f"sudo {command}"
    refreshed = "apt-get update" if name == "apt-get" else ""
    before = f"{'sudo ' if command.startswith('sudo') else ''}{refreshed} && " if refreshed else ""
    return f"Hint: install it with `{before}{command}` (or {conda}), or set JAVA_HOME"


def _version(java: str) -> str:
    """Return what a Java says of its version: in a file next to it, or else it is asked, which takes a tenth of a second."""
    with suppress(OSError, UnicodeDecodeError):
        noted = re.search(r'^JAVA_(VERSION=".*")', (Path(java).resolve().parent.parent / "release").read_text(), re.MULTILINE)
        if noted:
            return noted.group(1).replace("=", " ")
    return subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr


def java_found() -> str | None:
    """Return the Java executable Spark will use, whatever its version; None when there is none."""
    home = os.environ.get("JAVA_HOME")
    java = os.path.join(home, "bin", "java") if home else shutil.which("java")
    return java if java and os.path.exists(java) else None


def require_java() -> str:
    """Return the Java executable Spark will use.

    Raises
    ------
    EnvironmentSetupError
        Naming the command that installs Java, when there is none or it is older than 17.
    """
    home, java = os.environ.get("JAVA_HOME"), java_found()
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise EnvironmentSetupError(f"no Java found (looked in {where}): Spark runs on the JVM and cannot start. {_hint()}")
    match = re.search(r'version "(\d+)(?:\.(\d+))?', _version(java), re.IGNORECASE)
    major = int(match.group(1)) if match else 0
    if match and major < 17:
        raise EnvironmentSetupError(f"Java {major} found at {java}: Spark 4 needs Java 17 or newer. {_hint()}")
    return java


SWITCH: Final = "KRISHIV_CLASS_ARCHIVE"
"""``off`` in this environment variable: no archive is used. ``auto``: a session that finds none has it made."""
_PIECE: Final = 1 << 22


def archive_path(java: str) -> Path:
    """Return where the archive for this Java and the installed Spark is, or would be."""
    home = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(home, "krishiv_py", f"classes-{_key(java)}.jsa")


def archive_options(java: str) -> str:
    """Options of the JVM that use the archive; none where there is no whole one, or others could have written it.

    Made by ``krishiv warm`` and used when it is there. The JVM maps it into memory and checks by itself that it fits; a name of
    its own for each Java, Spark and set of jars keeps it from having to complain.
    """
    if os.environ.get(SWITCH, "").lower() == "off":
        return ""
    try:
        path = archive_path(java)
        if not _is_ours(path) or not _is_ours(path.parent):
            return ""
        whole = checksum_path(path).read_text() == checksum(path)  # a JVM does not look, and dies of a changed byte
    except (OSError, RuntimeError):  # no such file, or no home
        return ""
    if not whole:
        warnings.warn(f"{path} is damaged, and is not used. Hint: make it again with `krishiv warm`", stacklevel=2)
        return ""
    if set(str(path)) & set('"\\'):
        return ""
    return f' "-XX:SharedArchiveFile={path}" -Xlog:cds*=off'


def checksum_path(archive: Path) -> Path:
    """Return where the checksum of an archive is."""
    return archive.with_suffix(".crc")


def tried_path(archive: Path) -> Path:
    """Return where it is noted that a session has begun to make an archive."""
    return archive.with_suffix(".tried")


def checksum(path: Path) -> str:
    """Size and CRC-32 of a file."""
    crc, size = 0, 0
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            crc, size = zlib.crc32(piece, crc), size + len(piece)
    return f"{size} {crc:08x}"


def _is_ours(path: Path) -> bool:
    """Return what is in it is run: only its owner may have written it."""
    status = path.stat()
    return status.st_uid == os.geteuid() and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def _key(java: str) -> str:
    place = Path(java).resolve()
    release = place.parent.parent / "release"
    said = [str(place), release.read_text() if release.is_file() else str(place.stat().st_mtime_ns), pyspark.__version__]
    jars = Path(os.environ.get("SPARK_HOME") or Path(pyspark.__file__).parent, "jars")
    for jar in sorted(jars.glob("*.jar")):
        of_jar = jar.stat()
        said.append(f"{jar} {of_jar.st_size} {of_jar.st_mtime_ns}")
    return hashlib.sha256("\n".join(said).encode()).hexdigest()[:16]


_FORKED_S: Final = 0.05
_KEPT_LINES: Final = 50
_LAST_WORDS_S: Final = 2.0
_LONGEST_REASON: Final = 400
_BOOT: Final = "Error occurred during initialization of VM"
_OPENING: Final = re.compile(rf"(?:NOTE: )?Picked up |{_BOOT}$")
"""Lines of a JVM before it comes to the reason."""
_END_S: Final = 10.0
_CHATTER: Final = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector\r?\n"
    rb"|Using Spark's default log4j profile: .*\r?\n"
    rb"|Setting default log level to .*\r?\n"
    rb"|To adjust logging level use sc\.setLogLevel.*\r?\n"
    rb"|(?:Starting )?Streaming TransformWithState(?:InPandas)? Python worker"
    rb"(?:\.| finish init stage | received parameters | Starting execution | Completed execution ).*\r?\n"
)
"""Lines of the JVM and of PySpark's worker on the driver at every start, whatever the log level: no setting turns them off."""


@contextmanager
def quiet_jvm(settings: Mapping[str, str], meanwhile: Callable[[], object] = lambda: None) -> Iterator[None]:
    """Start the JVM for the session made in the body, unless one runs; leave Ctrl-C to whoever had it. See :func:`launch`.

    PySpark's own handler of Ctrl-C cancels all jobs, those of running queries too, from within the main thread's connection.
    """
    before = signal.getsignal(signal.SIGINT)
    launch(settings, meanwhile)
    try:
        yield
    finally:
        if on_main_thread() and before is not None:
            signal.signal(signal.SIGINT, before)


def launch(settings: Mapping[str, str], meanwhile: Callable[[], object] = lambda: None) -> None:
    """Start the JVM with its outputs in our hands, and in a process group of its own: Ctrl-C is for this process.

    It needs a processor and two seconds until it can be talked to; `meanwhile` is done in a thread.

    Raises
    ------
    EnvironmentSetupError
        When it ends before it can be talked to, with what it said.
    """
    if internals.gateway() is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    errors, prints = _JvmPipe("stderr", 2), _JvmPipe("stdout", 1)
    threading.Thread(target=_after_the_fork, args=(meanwhile,), name="krishiv-loading", daemon=True).start()
    try:
        outputs = {"stderr": errors.writing, "stdout": prints.writing}
        gateway: Any = launch_gateway(conf, {**outputs, "start_new_session": True})  # type: ignore[no-untyped-call]
    except PySparkException:
        gateway = None
    finally:
        errors.begun()
        prints.begun()
    if gateway is None:
        raise not_started(settings["spark.master"], _reason(errors.last_words(), prints.last_words()))
    internals.use_gateway(gateway)
    hush_py4j()


def not_started(master: str, reason: str) -> EnvironmentSetupError:
    """Spark cannot be had."""
    return EnvironmentSetupError(
        f"Spark could not be started on {master}",
        got=reason,
        hint="masters are local[*], local[2], spark://host:7077, yarn and k8s://https://host:443; one of a cluster has to run; "
        "settings have to be ones that Spark and Java take",
    )


def _reason(errors: Iterable[bytes], prints: Iterable[bytes]) -> str:
    """Return what a JVM that ended said first; that it has read the user's options is not it.

    It tells of an option it does not know on standard error, of a value it does not take on standard output.
    """
    printed = [[line.decode(errors="replace").strip() for line in lines] for lines in (errors, prints)]
    first, second = ([line for line in lines if line and not _OPENING.match(line)] for lines in printed)
    failed = next((line for line in first if line.startswith("Exception in thread")), None)
    if failed is not None:
        causes = [line.partition(": ")[2] for line in first if line.startswith("Caused by: ")]
        whole = "; caused by ".join([failed.partition('" ')[2], *causes[-1:]])
        return cut(redacted(whole), _LONGEST_REASON)
    firm = [line for line in first if "VM warning:" not in line]
    at_boot = second if _BOOT in printed[1] or not firm else []
    reason = "; ".join([*firm[:1], *at_boot[:1]] or first[:1])
    return cut(redacted(reason), _LONGEST_REASON) or "it ended without a word"


def _after_the_fork(work: Callable[[], object]) -> None:
    """Do `work` a moment later: the process of the JVM is forked first, from a process that does nothing else."""
    time.sleep(_FORKED_S)
    with suppress(Exception):  # who needs what could not be loaded tells of it
        work()


def hush_py4j() -> None:
    """Keep from the log what py4j writes of an exception that reaches the user, or nobody, anyway."""
    for name in ("py4j.clientserver", None):  # py4j/java_gateway.py logs on the root logger
        logging.getLogger(name).addFilter(_of_interest)


def _of_interest(record: logging.LogRecord) -> bool:
    """Return whether a record is worth showing: not py4j's that a stopped query's batch was broken off, or that Ctrl-C
    was pressed.
    """
    if record.exc_info is None or record.exc_info[0] is None or "py4j" not in record.pathname:
        return True
    return record.exc_info[0].__name__ not in ("BatchStoppedError", "KeyboardInterrupt")


class _JvmPipe:
    """A pipe for one output of the JVM, all of which is passed on to the same one of this process."""

    def __init__(self, name: str, to: int) -> None:
        reading, self.writing = os.pipe()
        self._said: list[bytes] = []
        arguments = reading, self._said, to
        self._passing = threading.Thread(target=_pass_on, args=arguments, name=f"krishiv-jvm-{name}", daemon=True)
        self._passing.start()

    def begun(self) -> None:
        """The JVM has the other end, or has ended."""
        os.close(self.writing)

    def last_words(self) -> list[bytes]:
        """Return what it said, once it has ended."""
        self._passing.join(_LAST_WORDS_S)
        return self._said


def _pass_on(reading: int, said: list[bytes], to: int) -> None:
    """Pass on what the JVM writes, but for its chatter; what is not a whole line yet at once where a bar is drawn.

    The first lines are kept as `said`, in case they are its last.
    """
    left, hush = b"", False
    while True:
        try:
            read = os.read(reading, 1 << 16)
        except OSError:
            read = b""
        *lines, left = (left + read).splitlines(keepends=True) or [b""]
        if left.endswith(b"\n") or not read or b"\r" in left:
            lines, left = [*lines, left], b""
        for line in lines:
            chatter = _CHATTER.fullmatch(line) is not None
            if not chatter and not (hush and not line.strip()):
                _write(line, to)
                if len(said) < _KEPT_LINES:
                    said.append(line)
            hush = chatter and b"Python worker" in line
        if not read:
            os.close(reading)
            return


def _write(line: bytes, to: int) -> None:
    try:
        os.write(to, line)
    except OSError:
        return  # it is closed: nobody listens


def forget_dead_jvm() -> None:
    """Let a new session be made after the JVM was killed, or has crashed: PySpark would go on talking to it."""
    process = internals.jvm_process()
    if process is not None and process.poll() is not None:
        internals.forget_gateway()


def end_jvm() -> None:
    """End what was begun where Spark could not go on, so that a new session starts afresh, with settings of its own."""
    context, gateway, process = internals.active_context(), internals.gateway(), internals.jvm_process()
    with suppress(PySparkException, Py4JError, OSError):
        if context is not None:
            context.stop()
    if gateway is None or process is None:  # it is not ours: spark-submit began it
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
        if process.stdin is not None:
            process.stdin.close()  # it ends when nobody can talk to it any more
    try:
        process.wait(_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    forget_dead_jvm()


def running_session() -> SparkSession | None:
    """Return the session that runs, whichever thread began it: PySpark tells of the active one of a thread only."""
    active = SparkSession.getActiveSession()
    context = internals.active_context()
    if active is not None or context is None or internals.java_context(context) is None:
        return active
    return internals.first_session()


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, which complains of whatever still ran; it may have gone already."""
    try:
        context = internals.context_of(spark)
        if context is not None and internals.java_context(context) is not None:
            context.setLogLevel("OFF")
            internals.stop_accumulators_apart(context)
        spark.stop()
    except (PySparkException, Py4JError, OSError):
        forget_dead_jvm()
