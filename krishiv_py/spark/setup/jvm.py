"""The JVM of an embedded session: started apart from the terminal, heard where it says something that concerns the user."""

from __future__ import annotations

import logging
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any, Final

from py4j.protocol import Py4JError
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkException
from pyspark.java_gateway import launch_gateway
from pyspark.sql import SparkSession

from krishiv_py.errors import EnvironmentSetupError, cut
from krishiv_py.redaction import redacted
from krishiv_py.spark.setup.waiting import on_main_thread

_FORKED_S: Final = 0.05
_KEPT_LINES: Final = 50
_LAST_WORDS_S: Final = 2.0
_LONGEST_REASON: Final = 400
_BOOT: Final = "Error occurred during initialization of VM"
_OPENING: Final = re.compile(rf"(?:NOTE: )?Picked up |{_BOOT}$")
"""What a JVM says before it comes to the reason."""
_END_S: Final = 10.0
_CHATTER: Final = re.compile(
    rb"WARNING: Using incubator modules: jdk\.incubator\.vector\r?\n"
    rb"|Using Spark's default log4j profile: .*\r?\n"
    rb"|Setting default log level to .*\r?\n"
    rb"|To adjust logging level use sc\.setLogLevel.*\r?\n"
    rb"|(?:Starting )?Streaming TransformWithState(?:InPandas)? Python worker"
    rb"(?:\.| finish init stage | received parameters | Starting execution | Completed execution ).*\r?\n"
)
"""What the JVM and PySpark's worker on the driver write at every start, whatever the log level: no setting turns it off."""


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
    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    conf = SparkConf()
    for name, value in settings.items():
        conf.set(name, value)
    errors, prints = _Heard("stderr", 2), _Heard("stdout", 1)
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
    SparkContext._ensure_initialized(gateway=gateway)
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


class _Heard:
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
    process = getattr(SparkContext._gateway, "proc", None)
    if process is None or process.poll() is None:
        return
    kept: Any = SparkContext
    kept._active_spark_context = kept._gateway = kept._jvm = None
    of_session: Any = SparkSession
    of_session._instantiatedSession = None


def end_jvm() -> None:
    """End what was begun where Spark could not go on, so that a new session starts afresh, with settings of its own."""
    context, gateway = SparkContext._active_spark_context, SparkContext._gateway
    with suppress(PySparkException, Py4JError, OSError):
        if context is not None:
            context.stop()
    process = getattr(gateway, "proc", None)
    if gateway is None or process is None:  # it is not ours: spark-submit began it
        return
    with suppress(Py4JError, OSError):
        gateway.shutdown()
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
    context: Any = SparkContext._active_spark_context
    if active is not None or context is None or context._jsc is None:
        return active
    begun: SparkSession | None = SparkSession._instantiatedSession
    return begun


def _part_with_accumulators(context: Any) -> None:
    """Let PySpark's server of accumulators end by itself: it looks once a second whether it should, and stop() waits for it."""
    server = getattr(context, "_accumulatorServer", None)
    if server is not None:
        server.shutdown = threading.Thread(target=server.shutdown, name="krishiv-accumulators", daemon=True).start


def stop_spark(spark: SparkSession) -> None:
    """Stop Spark, which complains of whatever still ran; it may have gone already."""
    try:
        context = getattr(spark, "_sc", None)
        if context is not None and context._jsc is not None:
            context.setLogLevel("OFF")
            _part_with_accumulators(context)
        spark.stop()
    except (PySparkException, Py4JError, OSError):
        forget_dead_jvm()
