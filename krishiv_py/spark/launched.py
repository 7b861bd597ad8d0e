"""Spark's query, started again where it failed before its first batch because a Python process was slow to begin."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable
from typing import Final

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException, StreamingQueryException
from pyspark.sql.streaming.query import StreamingQuery

from krishiv_py.errors import EnvironmentSetupError

_SLOW: Final = "Python worker failed to connect back"
"""Spark's words where the Python that tells which state an operator keeps did not answer in 10 s; that time is fixed."""
_TIMES: Final = 2
"""How often a query is started again."""
_LATE: Final = "waiting for the Python worker to connect back"
"""Spark's words where the Python that publishes over Spark Connect did not begin in 10 s; that is fixed too."""
_ATTEMPTS: Final = 5


class Launched:
    """Stands for Spark's ``StreamingQuery`` where a query is waited for, asked and stopped.

    On a machine without a free core, or with a slow disk, a process may take longer to begin than Spark waits for it. No row
    was read by then, so the query may be started again from its checkpoint as if nothing had been.
    """

    def __init__(self, start: Callable[[], StreamingQuery], name: str) -> None:
        self._start = start
        self._name = name
        self._turn = threading.Lock()
        self._left = _TIMES
        self.query: StreamingQuery = start()
        """Spark's own handle, of the latest start."""
        # a query nobody asks about must go on as well
        threading.Thread(target=self._watch, name=f"{name}-launched", daemon=True).start()

    def _watch(self) -> None:
        try:
            self.await_termination()
        except (PySparkException, Py4JError, OSError):
            return  # reported to whoever waits for the query

    def is_active(self) -> bool:
        """Return whether it runs."""
        return bool(self.query.isActive) or self._again(self.query)

    def await_termination(self) -> None:
        """Wait for its end, and raise what made it fail."""
        self._tried(lambda query: query.awaitTermination())

    def process_all_available(self) -> None:
        """Wait until what there is was processed, and raise what made it fail."""
        self._tried(lambda query: query.processAllAvailable())

    def exception(self) -> StreamingQueryException | None:
        """Return what made it fail."""
        query = self.query
        error = query.exception()
        return None if error is not None and self._again(query) else error

    def stop(self) -> None:
        """Stop it; it is not started again."""
        with self._turn:
            self._left = 0
        self.query.stop()

    def _tried(self, call: Callable[[StreamingQuery], object]) -> None:
        while True:
            query = self.query
            try:
                call(query)
            except StreamingQueryException:
                if not self._again(query):
                    raise
            else:
                return

    def _again(self, query: StreamingQuery) -> bool:
        """Start another query in the place of this one, which has ended, where that may help; return whether there is one."""
        with self._turn:
            if self.query is not query:
                return True
            problem = query.exception()
            if self._left == 0 or problem is None or _SLOW not in str(problem) or query.lastProgress is not None:
                return False
            self._left -= 1
            warnings.warn(
                f"query {self._name!r}: Spark gave up waiting for a Python process to begin (10 s), before the first batch; "
                "the query is started again from its checkpoint. Hint: leave a core and some memory free",
                RuntimeWarning,
                stacklevel=2,
            )
            self.query = self._start()
            return True


def patiently(begin: Callable[[], StreamingQuery], name: str) -> StreamingQuery:
    """Begin a query over Spark Connect; again, where Spark gave up waiting for the server's process.

    Spark has not started the query in that process yet.

    Raises
    ------
    EnvironmentSetupError
        When it gives up every time.
    """
    for _ in range(_ATTEMPTS):
        try:
            return begin()
        except PySparkException as problem:
            if _LATE not in str(problem):
                raise
            last = problem
            warnings.warn(
                f"query {name!r}: the Spark Connect server gave up waiting for a Python process to begin (10 s); the query is "
                "started again. Hint: leave a core and some memory of its machine free",
                RuntimeWarning,
                stacklevel=2,
            )
    raise EnvironmentSetupError(
        "no Python process begins in time on the machine of the Spark Connect server",
        got=f"{_ATTEMPTS} attempts, for each of which Spark waits 10 s",
        hint="see what keeps that machine busy, or how long `python -c 'import pyspark.sql.connect'` takes there",
    ) from last
