"""A running query, as the user sees it."""

from __future__ import annotations

import datetime as dt
from typing import Any, Protocol

import pyarrow as pa

from krishiv_py.display.progress import Show
from krishiv_py.plan.durations import TimePoint
from krishiv_py.plan.progress import Progress


class Query(Protocol):
    """Handle of a query started with ``start()``."""

    @property
    def name(self) -> str:
        """The name it was started under."""
        ...

    @property
    def id(self) -> str:
        """Spark's query id, kept across restarts from one checkpoint."""
        ...

    @property
    def operator(self) -> str:
        """The name of its operator, as in late rows and ``explain()``."""
        ...

    @property
    def status(self) -> str:
        """``running``, ``stopped`` or ``failed``."""
        ...

    @property
    def progress(self) -> Progress:
        """Watermark, late counts, open windows, state."""
        ...

    def await_termination(self, timeout: dt.timedelta | str | None = None) -> bool:
        """Wait for the end, at most `timeout`; True when it came. Raises what made the query fail.

        `timeout` is a ``timedelta`` or a text such as ``"2 s"``. A bare number is refused, for Spark takes it as seconds, and
        durations of this library take it as milliseconds.
        """
        ...

    def process_all_available(self, *, progress: Show = False) -> None:
        """Wait until everything sent so far is processed and the query is idle.

        Parameters
        ----------
        progress : bool or None
            Whether to show on standard error batch, rows, watermark and late rows while waiting; None for yes where that is a
            terminal and tqdm (the extra ``progress``) is installed.
        """
        ...

    def exception(self) -> Exception | None:
        """What made the query fail, naming operator and row."""
        ...

    def stop(self) -> None:
        """Stop; a later start from the same checkpoint goes on."""
        ...

    def results(self) -> pa.Table:
        """All results so far; for a memory sink only."""
        ...

    def late_rows(self) -> pa.Table:
        """All late rows so far; for a memory side output only."""
        ...

    def state(self) -> pa.Table:
        """The windows in state after the last finished micro-batch: keys, bounds, aggregates so far, ``last_update``.

        Works on a running and on a stopped query, as long as its checkpoint is there (SEMANTICS §6.5).

        Raises
        ------
        CheckpointError
            When the checkpoint is gone: a temporary one goes with :meth:`stop`.
        PlanError
            For look-back windows with ``matches()`` or ``pairs(...)``, whose state holds no aggregates.
        """
        ...

    def why_not_fired(self, window_end: TimePoint) -> str:
        """Say what the window that ends at `window_end` (ms since the epoch, or a datetime) is waiting for."""
        ...

    def explain(self) -> Any:
        """The plan of the query as text."""
        ...
