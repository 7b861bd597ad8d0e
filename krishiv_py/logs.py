"""Log lines of running queries, for people and as JSON.

Every finished micro-batch gives one line at INFO on the logger ``krishiv_py.query``. Its numbers are attributes of the record,
too, so a formatter need not parse the text: ``query``, ``batch``, ``rows``, ``late``, ``results``, ``watermark``, ``seconds``.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import logging
import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeAlias

import attrs

from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.durations import show_instant
from krishiv_py.plan.running import Progress

__all__ = ["JsonFormatter"]

_LOG: Final = logging.getLogger("krishiv_py.query")
_RECENT: Final = 60
"""Of how many micro-batches the times are kept."""
_RECENT_SPACING_NS: Final = 50_000_000
"""Of hundreds of micro-batches a second the times of some are kept, ns."""
_TEXT: Final = "query %s: batch %d, %d rows, %d late, %d results, watermark %s, %.3f s"
_OWN: Final = {*vars(logging.makeLogRecord({})), "message", "asctime"}
"""Attributes that every record has."""


BatchPart: TypeAlias = tuple[str, str, int, int]
"""A part of a micro-batch: its kind (``plan``, ``read``, ``pack``, ``step``, ``publish`` or ``commit``; on Spark ``compute``
instead of the first four), the stage that it was for, empty where it was for all, and when it began and ended, ns since the
epoch by the clock of the machine."""


@attrs.frozen
class BatchTimes:
    """Says when a micro-batch and its parts ran.

    Attributes
    ----------
    began_ns, ended_ns : int
        ns since the epoch by the clock of the machine.
    parts : tuple of BatchPart
        Its parts, in their order; what lies between them belongs to none.
    numbers : dict
        What its log line has; of a batch that failed only the name of the query, and nothing for who watches only the times.
    problem : str or None
        The class of the error that ended it; None for a batch that finished.
    """

    began_ns: int
    ended_ns: int
    parts: tuple[BatchPart, ...]
    numbers: dict[str, Any]
    problem: str | None = None

    def seconds(self) -> dict[str, float]:
        """Return how long the parts of each kind took, s, and as ``rest`` what lies between the parts.

        Examples
        --------
        >>> parts = (("step", "a", 0, 2_000_000), ("step", "b", 2_000_000, 3_000_000))
        >>> BatchTimes(0, 4_000_000, parts, {}).seconds()
        {'step': 0.003, 'rest': 0.001}
        """
        sums_ns: dict[str, int] = {}
        for kind, _, began_ns, ended_ns in self.parts:
            sums_ns[kind] = sums_ns.get(kind, 0) + ended_ns - began_ns
        sums_ns["rest"] = max(self.ended_ns - self.began_ns - sum(sums_ns.values()), 0)
        return {kind: spent / 1e9 for kind, spent in sums_ns.items()}

    def stages(self) -> dict[str, tuple[int, int]]:
        """Return when the steps of each stage began and ended, ns; a stage makes two where the watermark went on in between.

        Examples
        --------
        >>> parts = (("step", "a", 0, 2), ("step", "b", 2, 3), ("step", "a", 3, 5), ("commit", "", 5, 6))
        >>> BatchTimes(0, 6, parts, {}).stages()
        {'a': (0, 5), 'b': (2, 3)}
        """
        ran: dict[str, tuple[int, int]] = {}
        for kind, stage, began_ns, ended_ns in self.parts:
            if kind == "step":
                ran[stage] = (ran[stage][0] if stage in ran else began_ns, ended_ns)
        return ran


Watcher: TypeAlias = Callable[[BatchTimes], None]


@attrs.define(eq=False)
class Watch:
    """Somebody who watches the micro-batches of a query.

    Attributes
    ----------
    watcher : callable
        Takes the times of a micro-batch.
    numbers : bool
        Whether it also takes its numbers, for which the progress has to be computed.
    spacing_ns : int
        The times of a micro-batch are noted when the last one of which they were began so long ago, ns. Others take next to
        nothing; of those that fail, or take so long, the watcher gets the times without their parts.
    """

    watcher: Watcher
    numbers: bool = True
    spacing_ns: int = 0
    _noted_ns: int = 0

    def wants(self, now_ns: int) -> bool:
        """Return whether the times of a micro-batch that begins now are to be noted."""
        if 0 <= now_ns - self._noted_ns < self.spacing_ns:
            return False
        self._noted_ns = now_ns
        return True


_PARTS: Final[ContextVar[list[BatchPart] | None]] = ContextVar("krishiv_parts", default=None)
_WATCHES: Final[dict[str, list[Watch]]] = {}
_CHANGES: Final = threading.Lock()
_UNWATCHED: Final = contextlib.nullcontext()


def watch(query: str, watch: Watch) -> None:
    """Call a watcher after micro-batches of a query in this process."""
    with _CHANGES:
        _WATCHES[query] = [*_WATCHES.get(query, ()), watch]


def unwatch(query: str, watch: Watch) -> None:
    """Call it no more."""
    with _CHANGES:
        left = [one for one in _WATCHES.get(query, ()) if one is not watch]
        if left:
            _WATCHES[query] = left
        else:
            _WATCHES.pop(query, None)


class RecentTimes:
    """Keeps how long the parts of the last micro-batches of a query took, from :meth:`begin` to :meth:`end`."""

    def __init__(self, query: str) -> None:
        self._query, self._watch = query, Watch(self._keep, numbers=False, spacing_ns=_RECENT_SPACING_NS)
        self._kept: tuple[BatchTimes, ...] = ()  # replaced as a whole, as other threads read it

    def begin(self) -> None:
        """Begin to keep them."""
        watch(self._query, self._watch)

    def end(self) -> None:
        """Keep no more of them."""
        unwatch(self._query, self._watch)

    def last(self) -> tuple[dict[str, float], ...]:
        """Return the seconds of each kind of part, a dict for each batch that finished, oldest first."""
        return tuple(times.seconds() for times in self._kept)

    def __enter__(self) -> RecentTimes:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def _keep(self, times: BatchTimes) -> None:
        if times.problem is None:
            self._kept = (*self._kept[1 - _RECENT :], times)


def batch_part(kind: str, stage: str = "") -> contextlib.AbstractContextManager[None]:
    """Note when the body ran, as a part of the micro-batch of this thread; costs next to nothing where nobody watches."""
    noted = _PARTS.get()
    return _UNWATCHED if noted is None else _NotedPart(kind, stage, noted)


class _NotedPart(contextlib.AbstractContextManager[None]):
    """Notes when its body ran."""

    __slots__ = ("_began", "_kind", "_noted", "_stage")

    def __init__(self, kind: str, stage: str, noted: list[BatchPart]) -> None:
        self._kind, self._stage, self._noted = kind, stage, noted

    def __enter__(self) -> None:
        self._began = time.time_ns()

    def __exit__(self, *_: object) -> None:
        self._noted.append((self._kind, self._stage, self._began, time.time_ns()))


@attrs.frozen
class BatchCounts:
    """Hold what a query has counted after a micro-batch, as far as the line of one says it.

    Attributes
    ----------
    batch_id : int
        The micro-batch.
    rows, late, firings : int
        Input rows, refused rows and results so far.
    watermark_us : int
        The watermark, µs.
    batch_seconds : float
        How long the micro-batch took, s.
    """

    batch_id: int
    rows: int
    late: int
    firings: int
    watermark_us: int
    batch_seconds: float

    @classmethod
    def of(cls, progress: Progress) -> BatchCounts:
        """Return the counts of a progress."""
        late = sum(progress.late.values())
        return cls(progress.batch_id, progress.rows, late, progress.firings, progress.watermark_us, progress.batch_seconds)


@attrs.define(eq=False)
class BatchLines:
    """Logs a line of each micro-batch of a query, and hands its times to who watches the query.

    Attributes
    ----------
    query : str
        The name of the query.
    look : callable
        Gives what it has counted.
    """

    query: str
    look: Callable[[], BatchCounts]
    _last: BatchCounts | None = None
    """The counts after the last micro-batch, if somebody wanted its numbers."""

    @contextlib.contextmanager
    def batch(self) -> Iterator[None]:
        """Log a line of the micro-batch that the body runs, by what was counted before and after; none when the body raises.

        Who watches the query gets its times, also when the body raises.
        """
        query, before, self._last = self.query, self._last, None
        watches, logged = _WATCHES.get(query, ()), _LOG.isEnabledFor(logging.INFO)
        if not watches and not logged:
            yield
            return
        began = time.time_ns()
        wanted = [watch for watch in watches if watch.wants(began)]
        if before is None and (logged or any(watch.numbers for watch in wanted)):
            before = self.look()
        parts = list[BatchPart]()
        token = _PARTS.set(parts if wanted else None)
        try:
            yield
        except BaseException as problem:
            failed = BatchTimes(began, time.time_ns(), tuple(parts), {"query": redacted(query)}, type(problem).__name__)
            hand(query, watches, failed)
            raise
        finally:
            _PARTS.reset(token)
        ended = time.time_ns()
        for watch in watches:
            if ended - began >= watch.spacing_ns and watch not in wanted:
                wanted.append(watch)
        if not wanted and not logged:
            return
        timers, others = [watch for watch in wanted if not watch.numbers], [watch for watch in wanted if watch.numbers]
        hand(query, timers, BatchTimes(began, ended, tuple(parts), {}))
        if not others and not logged:
            return
        after = self._last = self.look()
        noted = {"query": redacted(query), "batch": after.batch_id}
        if before is not None:
            noted["rows"], noted["late"] = after.rows - before.rows, after.late - before.late
            noted["results"] = after.firings - before.firings
        noted["watermark"], noted["seconds"] = show_instant(after.watermark_us), round(after.batch_seconds, 3)
        hand(query, others, BatchTimes(began, ended, tuple(parts), noted))
        if logged:
            _LOG.info(_TEXT, *noted.values(), extra=noted)


def hand(query: str, watches: Sequence[Watch], times: BatchTimes) -> None:
    """Call watchers with the times of a micro-batch of a query; one that fails is logged."""
    for watch in watches:
        try:
            watch.watcher(times)
        except Exception:  # noqa: BLE001  # a query does not fail over who watches it
            _LOG.warning("a watcher of query %s failed", redacted(query), exc_info=True)


class JsonFormatter(logging.Formatter):
    """Formats a log record as one line of JSON.

    The members are ``time`` (UTC), ``level``, ``logger`` and ``message``, then the attributes that were passed as ``extra``,
    and ``exception`` and ``stack`` where the record has them. Secrets are taken out of all texts. A value that JSON does not
    have is written as its text.

    Examples
    --------
    >>> import logging
    >>> from krishiv_py.logs import JsonFormatter
    >>> record = logging.makeLogRecord({"name": "krishiv_py.query", "levelname": "INFO", "msg": "done", "created": 0, "n": 3})
    >>> print(JsonFormatter().format(record))
    {"time": "1970-01-01T00:00:00.000Z", "level": "INFO", "logger": "krishiv_py.query", "message": "done", "n": 3}
    """

    def format(self, record: logging.LogRecord) -> str:
        """Return the record as a line of JSON."""
        time = dt.datetime.fromtimestamp(record.created, dt.timezone.utc).isoformat(timespec="milliseconds")
        line: dict[str, Any] = {
            "time": time.replace("+00:00", "Z"),
            "level": record.levelname,
            "logger": record.name,
            "message": redacted(record.getMessage()),
        }
        extra = {name: _plain(value) for name, value in vars(record).items() if name not in _OWN}
        line |= {name: value for name, value in extra.items() if name not in line}
        if record.exc_info:
            line["exception"] = redacted(self.formatException(record.exc_info))
        if record.stack_info:
            line["stack"] = redacted(self.formatStack(record.stack_info))
        return json.dumps(line)


def _plain(value: object) -> Any:
    """Return a value as JSON has it."""
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    if isinstance(value, dict):
        return {redacted(str(name)): _plain(one) for name, one in value.items()}
    return redacted(str(value))
