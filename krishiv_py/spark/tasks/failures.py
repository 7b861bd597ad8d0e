"""Define what went wrong on Spark, as an error of ours: raised in a task, found in a stack trace, or because the JVM
has gone.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final
from urllib.parse import unquote

from py4j.protocol import Py4JError, Py4JJavaError, Py4JNetworkError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from krishiv_py import errors
from krishiv_py.engine.stage import located
from krishiv_py.errors import (
    KrishivError,
    OperatorError,
    PlanError,
    SchemaError,
    SessionClosedError,
    SourceError,
    failure_text,
    own_type,
)
from krishiv_py.failures.transient import PASSES, verdict, verdict_of_text
from krishiv_py.runtime.reading import gone, shown_path
from krishiv_py.runtime.tables import tables_of
from krishiv_py.spark import internals

_OWN: Final = re.compile(
    r"^krishiv_py\.errors\.(\w+): (.*?)"
    r"(?=^ ?SQLSTATE: |^\tat |^JVM stacktrace|^Driver stacktrace|^\nThe above exception was|^\nDuring handling of|\Z)",
    re.MULTILINE | re.DOTALL,
)
_OWN_IN_A_LINE: Final = re.compile(r"krishiv_py\.errors\.(\w+): ([^\n]+)")
_TRACEBACK: Final = "Traceback (most recent call last):\n"
_JAVA: Final = re.compile(r"^(?:Caused by: )?(?:[a-z_$][\w$]*\.)+([A-Z]\w*(?:Error|Exception)): ([^\n]+)", re.MULTILINE)
_VANISHED: Final = re.compile(r"FAILED_READ_FILE\.FILE_NOT_EXIST\] .*?reading file (\S.*?)\. File does not exist")
_HEADER: Final = re.compile(r"CSV header does not conform to the schema\.(.*?)CSV file: ([^\n]+)", re.DOTALL)
_SERVER_GONE: Final = re.compile(r"StatusCode\.UNAVAILABLE|failed to connect|Connection refused|INVALID_HANDLE\.SESSION_")
_LONGEST_CHAIN: Final = 20
_LONGEST_TEXT: Final = 100_000
_WRAPPERS: Final = ("PythonException", "Py4JException", "ExecutionException", "StreamingQueryException")


@contextmanager
def in_task(operator: str, step: str, batch: int | None = None, checkpoint: str | None = None) -> Iterator[None]:
    """Let what is raised in the body name where it happened: the operator, the step, the micro-batch.

    Inside, tables of lookup joins are those of the batch of the query with this checkpoint, where it is known.
    """
    try:
        with tables_of(checkpoint, batch):
            yield
    except GeneratorExit:
        raise
    except BaseException as problem:  # noqa: BLE001  # sys.exit() too: Spark would only say that a worker has gone
        error = located(problem, operator, step, batch)
        if verdict(problem) == "transient" and verdict_of_text(str(error)) != "transient":
            error = type(error)(f"{error}{PASSES}")  # only its text reaches the driver
        raise error from passable(problem)


def passable(problem: BaseException | None) -> BaseException | None:
    """Return an exception whose traceback can be handed to the JVM with all that caused it; None if it cannot.

    Spark and py4j send the texts of the whole chain: one that cannot be encoded ends the worker, or leaves Spark without an
    answer, and one of many megabytes is copied several times.
    """
    cause = problem
    for _ in range(_LONGEST_CHAIN):
        if cause is None:
            return problem
        try:
            if len(str(cause).encode()) > _LONGEST_TEXT:
                return None
        except Exception:  # noqa: BLE001  # whatever a foreign __str__ raises
            return None
        cause = cause.__cause__ or (None if cause.__suppress_context__ else cause.__context__)
    return None


def failed_batch(problem: BaseException, operator: str, batch: int) -> KrishivError:
    """Return what went wrong with a micro-batch on the driver, or in a task it waited for."""
    kind, said = (type(problem), str(problem)) if isinstance(problem, KrishivError) else heart(problem)
    where = f"operator {operator}, " if "operator " not in said else ""
    prefix = f"batch {batch}: " if f"batch {batch}" not in said else ""
    return _with_verdict(own_type(kind)(f"{where}{prefix}{said}"), problem, said)


def failure(problem: BaseException, what: str) -> KrishivError:
    """Return what made `what` fail: of our own type if a task raised one, with the heart of a stack trace, not its length."""
    if is_gone(problem):
        hint = "stop() the session and make a new one; a query with a checkpoint goes on from there"
        return SessionClosedError(f"{what} failed: Spark's JVM has gone", got=type(problem).__name__, hint=hint)
    if isinstance(problem, KrishivError):
        return _with_verdict(own_type(type(problem))(f"{what} failed: {problem}"), problem, "")
    kind, said = heart(problem)
    return _with_verdict(kind(f"{what} failed: {said}"), problem, said)


def _with_verdict(error: KrishivError, problem: BaseException, said: str) -> KrishivError:
    """Let an error say what a repetition can do: as the one that it stands for, or by the words of a task."""
    of_a_task = isinstance(problem, (Py4JError, PySparkException))
    error._verdict = verdict_of_text(said) if of_a_task else verdict(problem)
    if error._verdict == "unknown" and isinstance(error, (PlanError, SchemaError, SourceError)):
        error._verdict = "lasting"
    return error


def cause(problem: BaseException) -> BaseException | None:
    """Return what to show above our error: nothing where pages of Spark's say once more what a task of ours has reported."""
    spark = isinstance(problem, (Py4JError, PySparkException))
    return None if spark and (_OWN.search(str(problem)) or is_gone(problem)) else problem


def heart(problem: BaseException) -> tuple[type[KrishivError], str]:
    """Return the type and text of what is the cause of an exception of Spark's."""
    text = str(problem)
    own = list(_OWN.finditer(text)) or list(_OWN_IN_A_LINE.finditer(text))
    if own:
        kind = getattr(errors, own[-1][1], OperatorError)
        return kind, own[-1][2].strip()
    unread = _unread(text)
    if unread is not None:
        return SourceError, str(unread)
    if _TRACEBACK in text:
        return OperatorError, _last_of_traceback(text.rpartition(_TRACEBACK)[2])
    if not isinstance(problem, (Py4JError, PySparkException)):
        return OperatorError, failure_text(problem)
    java = [(kind, said) for kind, said in _JAVA.findall(text) if kind not in _WRAPPERS]
    if java:
        return OperatorError, ": ".join(java[-1])
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("\t")]
    return OperatorError, " ".join([f"{type(problem).__name__}:", *lines[:3]])


def _unread(text: str) -> SourceError | None:
    """Return the error of ours for what Spark says of an input file it could not read; None for other texts."""
    vanished = _VANISHED.search(text)
    if vanished:
        return gone(shown_path(unquote(vanished[1])))
    header = _HEADER.search(text)
    if header:
        what = f"{shown_path(unquote(header[2]))}: the header names other columns than the schema"
        hint = "pass a schema with the columns of the header, in its order"
        return SourceError(what, got=" ".join(header[1].split()), hint=hint)
    return None


def _last_of_traceback(text: str) -> str:
    """Return the exception at the end of a Python traceback, with the place it was raised at."""
    lines = text.splitlines()
    i = next((n for n, line in enumerate(lines) if line and not line.startswith(" ")), len(lines) - 1)
    places = [line.strip() for line in lines[:i] if line.startswith('  File "')]
    return f"{lines[i]} ({places[-1]})" if places else lines[i]


def is_gone(problem: BaseException) -> bool:
    """Return whether an exception says that nobody answers: the JVM was killed, or has crashed."""
    if isinstance(problem, Py4JJavaError):
        return False  # it has answered
    if type(problem).__name__ == "SparkConnectGrpcException":
        return bool(_SERVER_GONE.search(str(problem)))
    return isinstance(problem, (Py4JNetworkError, ConnectionError, EOFError)) or (
        type(problem) is Py4JError and "An error occurred while calling" in str(problem)
    )


@contextmanager
def as_own(what: str) -> Iterator[None]:
    """Let what Spark raises in the body come out as an error of ours."""
    try:
        yield
    except KrishivError:
        raise
    except (PySparkException, Py4JError, ConnectionError, EOFError) as problem:
        raise failure(problem, what) from cause(problem)


def require_alive(spark: SparkSession, what: str, *, stopped: bool) -> None:
    """See that the session can still run something.

    Raises
    ------
    SessionClosedError
        When it was stopped, by us or by whoever owns it, or its JVM has gone.
    """
    if stopped or not _answers(spark):
        got = "a stopped one" if stopped else "one without a running Spark"
        hint = "make a new session, and the stream from it"
        raise SessionClosedError(f"{what} on a session that is over", got=got, hint=hint)


def _answers(spark: SparkSession) -> bool:
    try:
        spark.conf.get("spark.sql.session.timeZone")
        context = internals.context_of(spark)
        java = None if context is None else internals.java_context(context)
        return context is None or (java is not None and not java.sc().isStopped())
    except (PySparkException, Py4JError, OSError, AttributeError, TypeError):
        return False
