"""The exceptions of krishiv_py.

Every error says what is wrong, which value was given, and a hint; what follows from it only where that is news::

    KrishivError
    ├── PlanError                      a pipeline that is not valid (also ValueError)
    │   ├── DurationError              a size, gap, lag or slide that is not a duration (also TypeError)
    │   ├── ColumnError                a column that is missing or has the wrong type (also KeyError)
    │   ├── ExpressionError            an expression that cannot be typed or parsed
    │   ├── CallError                  arguments that do not fit each other (also TypeError)
    │   ├── MethodError                a name that a column, stream, driver, query … does not have (also AttributeError)
    │   └── OrderError                 a builder step called too early or too late (also TypeError)
    ├── SchemaError                    a batch or schema that does not fit (also ValueError)
    ├── SourceError                    input that cannot be read: names file, line and text (also RuntimeError)
    ├── SenderClosedError              a batch sent after ``close()`` (also RuntimeError)
    ├── SpoolError                     a send that could not be written: a full disk, missing rights (also OSError)
    ├── SessionClosedError             a session used after ``stop()``, or whose JVM has ended (also RuntimeError)
    ├── CheckpointError                a checkpoint this plan cannot continue (also RuntimeError)
    ├── EnvironmentSetupError          Java or a supported Spark is missing (also RuntimeError)
    ├── MissingExtraError              an optional package that is not installed (also ImportError)
    └── OperatorError                  a failure inside a running operator (also RuntimeError)
        └── AggregateOverflowError     an integer sum beyond 64 bits (also OverflowError)
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any, Final

from krishiv_py.failures.redaction import redacted
from krishiv_py.failures.transient import Verdict, verdict
from krishiv_py.version import __version__

RAISED: Final = (Exception, SystemExit)
"""Exceptions of a user's function that become an error of ours with its name: ``sys.exit()`` too, but never Ctrl-C."""
_LONGEST_SHOWN: Final = 200
_LONGEST_TEXT: Final = 2_000
_LONGEST_SECRET: Final = 2_100
"""The number of characters more to read, to see that it is one: see the rules of :mod:`krishiv_py.failures.redaction`."""
_LONGEST_PATH: Final = 4_096
_QUOTES: Final = "'", '"'
_PATH: Final = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]*:|~[a-z]*|\.\.?|[A-Za-z0-9_.-]+)?/")
"""The begin of a path, or of a URI."""
_AFTER_PATH: Final = re.compile(r"""[\s'",;)\]]""")
_NOT_GIVEN: Final = object()
_OWN = __file__.rpartition("errors.py")[0]
_STANDARD = (traceback.__file__ or "").rpartition("traceback.py")[0]
_FOREIGN = re.compile(r"(?:^|[/\\])(?:pyspark(?:\.zip)?|py4j|pyarrow|pandas|numpy)[/\\]|^<")


class KrishivError(Exception):
    """Base of all errors raised by krishiv_py. Their texts show no secrets.

    Parameters
    ----------
    what:
        The fault, without a full stop.
    got:
        The value that was given.
    then:
        The consequence, only where the reader would not guess it.
    hint:
        What to write instead, so that it can be followed as it is.
    transient:
        Whether a repetition without any change may help; None where that follows from what caused the error.

    Examples
    --------
    >>> print(PlanError("`lag` is negative", got=-5, hint="pass 0 or more"))
    `lag` is negative (got: -5). Hint: pass 0 or more.
    """

    _verdict: Verdict | None = None

    def __init__(
        self, *what: object, got: object = _NOT_GIVEN, then: str = "", hint: str = "", transient: bool | None = None
    ) -> None:
        parts = what
        if got is not _NOT_GIVEN or then or hint:
            given = "" if got is _NOT_GIVEN else f" (got: {got})"
            parts = (f"{what[0]}{given}{f': {then}' if then else ''}.{f' Hint: {hint}.' if hint else ''}",)
        super().__init__(*(redacted(a) if isinstance(a, str) else a for a in parts))
        if transient is not None:
            self._verdict = "transient" if transient else "lasting"

    @property
    def transient(self) -> bool:
        """Return whether a repetition without any change may help, as something was away that it needs.

        Examples
        --------
        >>> SourceError("no broker answers", transient=True).transient
        True
        """
        return verdict(self) == "transient"


class PlanError(KrishivError, ValueError):
    """A pipeline that is not valid."""


class DurationError(PlanError, TypeError):
    """A size, gap, lag or slide that is not a legal duration."""


class ColumnError(PlanError, KeyError):
    """A column that does not exist or has the wrong type."""

    def __str__(self) -> str:
        return str(self.args[0]) if self.args else ""


class ExpressionError(PlanError):
    """An expression that cannot be parsed or typed."""


class OrderError(PlanError, TypeError):
    """A builder step called before the step it needs. A step that a stage does not have is an AttributeError, too."""


class CallError(PlanError, TypeError):
    """A call with arguments that do not fit each other."""


class MethodError(PlanError, AttributeError):
    """A name that a column, aggregate, stream, driver, query or session does not have; says what to write for it."""


class SchemaError(KrishivError, ValueError):
    """A schema, or a batch against a schema, that does not fit."""


class SourceError(KrishivError, RuntimeError):
    """Input that is missing or cannot be read; names the file, and line and text if it has them."""


class SenderClosedError(KrishivError, RuntimeError):
    """A batch was sent after the sender was closed."""


class SpoolError(KrishivError, OSError):
    """A send could not be written; nothing of it was kept, and the sender goes on once there is room."""


class SessionClosedError(KrishivError, RuntimeError):
    """A session was used after it was stopped, or its JVM has ended."""


class CheckpointError(KrishivError, RuntimeError):
    """A checkpoint that this plan cannot continue from."""


class EnvironmentSetupError(KrishivError, RuntimeError):
    """Java or Spark is missing, or its version is not supported."""


class MissingExtraError(KrishivError, ImportError):
    """An optional package is missing; names the extra that installs it."""


class OperatorError(KrishivError, RuntimeError):
    """A failure inside a running operator, naming operator and row."""


class AggregateOverflowError(OperatorError, OverflowError):
    """An integer aggregate left the 64-bit range."""


def own_type(kind: type[BaseException]) -> type[KrishivError]:
    """Return the error of ours that stands for one of this type."""
    own_class = next((k for k in kind.__mro__ if issubclass(k, KrishivError) and k.__module__ == __name__), OperatorError)
    return OperatorError if own_class is KrishivError else own_class


def shown(value: object) -> str:
    """Return a value for an error text: its ``repr``, cut where it is long, its type where it cannot be shown."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001  # whatever a foreign __repr__ raises must not hide the error we are about to raise
        return f"<{type(value).__name__}>"
    return cut(text, _LONGEST_SHOWN)


def cut(text: str, most: int) -> str:
    """Return the first `most` characters of a text, and ``…`` if there are more.

    Never half of a secret, which could not be recognised, nor half of a path, as its end says which file it is.
    """
    if len(text) <= most:
        return text
    whole = redacted(text[: most + _LONGEST_SECRET + _LONGEST_PATH])
    end = _end_of_path(whole, most)
    return whole if len(text) == end == len(whole) else f"{whole[:end]}…"


def _end_of_path(text: str, place: int) -> int:
    """Return the end of the path that goes over a place in a text; that place without such a path, or without its end."""
    quote = max(text.rfind(mark, 0, place) for mark in _QUOTES)
    if quote >= 0 and _PATH.match(text, quote + 1):  # it may have blanks
        end = text.find(text[quote], place) + 1
    else:
        begin = max(text.rfind(mark, 0, place) for mark in (" ", "\n", *_QUOTES)) + 1
        if not _PATH.match(text, begin):
            return place
        after = _AFTER_PATH.search(text, place)
        end = len(text) if after is None else after.start()
    return end if place <= end <= place + _LONGEST_PATH else place


def failure_text(problem: BaseException, *, placed: bool = True) -> str:
    """Type and text of an exception raised in a user's function, and where `placed` the line of that function it came from.

    Examples
    --------
    >>> failure_text(ValueError("no such user"))
    'ValueError: no such user'
    """
    frames = [f for f in traceback.extract_tb(problem.__traceback__) if of_a_user(f.filename)]
    place = f" ({frames[-1].filename}, line {frames[-1].lineno}, in {frames[-1].name})" if frames and placed else ""
    try:
        text = str(problem)
    except Exception as worse:  # noqa: BLE001  # a foreign __str__, as above
        text = f"its text cannot be shown: {type(worse).__name__}"
    text = cut(text, _LONGEST_TEXT).encode(errors="backslashreplace").decode()  # half a surrogate pair passes no border
    return f"{type(problem).__name__}{': ' if text else ''}{text}{place}"


def cause_of(problem: BaseException) -> BaseException | None:
    """Return the cause with which an error is raised inside a context manager.

    Python takes a RuntimeError that is raised from a StopIteration for the same, and lets the StopIteration go on: it would end
    a loop of the caller without a word.
    """
    return None if isinstance(problem, StopIteration) else problem


def of_a_user(file: str) -> bool:
    """Return whether code is neither ours nor of a library below: a failure there was caused by the line that called it."""
    standard = file.startswith(_STANDARD) and "site-packages" not in file
    return not (file.startswith(_OWN) or standard or _FOREIGN.search(file))


def of_library(value: object) -> bool:
    """Return whether the class of a value is of this library."""
    return type(value).__module__.startswith("krishiv_py.")


def users_line() -> int:
    """Return the ``stacklevel`` with which a warning of the caller names the line of the program that called the library."""
    frame, level = sys._getframe(1), 1
    while frame.f_back is not None and frame.f_code.co_filename.startswith((_OWN, "<attrs generated")):
        frame, level = frame.f_back, level + 1
    return level


def missing_extra(package: str, extra: str, consequence: str, or_else: str = "") -> MissingExtraError:
    """Return a :class:`MissingExtraError` for a `package` that the `extra` of that name installs, `or_else` another way."""
    wheel = f"krishiv_py-{__version__}-py3-none-any.whl[{extra}]"
    hint = (
        f'install the extra {extra}: pip install ".[{extra}]" in a clone, or pip install "{wheel}" with a built wheel{or_else}'
    )
    return MissingExtraError(f"{package} is not installed", got="no such module", then=consequence, hint=hint)


def require_extra(what: str, modules: Iterable[str], extra: str, consequence: str) -> None:
    """Raise :class:`MissingExtraError` unless all `modules`, which an `extra` installs for `what`, can be found."""
    for name in modules:
        try:
            is_installed = importlib.util.find_spec(name) is not None
        except (ModuleNotFoundError, ValueError):  # its parent is missing, or it is switched off
            is_installed = False
        if not is_installed:
            raise missing_extra(f"{name} ({what})", extra, consequence)


def from_extra(module: str, package: str, extra: str, consequence: str) -> Any:
    """Return a module of a `package` that the `extra` of that name installs.

    Raises
    ------
    MissingExtraError
        When it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as missing:
        raise missing_extra(package, extra, consequence) from missing


def unknown_column(name: str, available: Iterable[str], where: str) -> ColumnError:
    """Return a :class:`ColumnError` that suggests the nearest existing names."""
    names = list(available)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.5)
    shown = ", ".join(names[:20]) + (f", … ({len(names)} in all)" if len(names) > 20 else "")
    hint = f"did you mean {' or '.join(repr(n) for n in near)}?" if near else f"the columns are: {shown or '(none)'}"
    if isinstance(name, str) and any(mark in name for mark in "(+*/%<>='"):
        hint = f'here text is the name of a column; write an expression with col(...): col("x") % 3; the columns are: {shown}'
    return ColumnError(f"{where}: there is no column {name!r} among {len(names)} columns. Hint: {hint}")
