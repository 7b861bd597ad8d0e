"""The operator as Spark carries it to its workers: what it needs is loaded with the first rows, not with the operator."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from typing import Any, Final

from pyspark.serializers import CPickleSerializer
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from krishiv_py.spark.setup.types import flat_type
from krishiv_py.spark.tasks.processor import BucketProcessor

STATE: Final = "chunks"
"""The one state variable: what a bucket keeps, by name."""
ANSWER_S: Final = 60.0
"""How long Spark's server of the state may take for its first answer, which needs milliseconds; a dead thread gives none."""
NO_ANSWER: Final = "Spark's server of the state gave no answer"
"""The error of a task that waited in vain begins so; the driver runs the batch again."""


def carried(processor: BucketProcessor) -> StatefulProcessor:
    """A processor that Spark's worker on the driver can open in no time.

    Spark starts a Python there for each operator of a query, only to ask which state it keeps; to load the kernels for that
    answer took a second of CPU an operator. A class made in a function travels as it is, so not even this package is loaded.
    """
    packed = CPickleSerializer().dumps(processor)  # type: ignore[no-untyped-call]
    # as types: of a text each task, in each batch, would ask the JVM what it means
    name, blob = flat_type("name string"), flat_type("blob binary")
    variable, answer_s, no_answer = STATE, ANSWER_S, NO_ANSWER

    class Operator(StatefulProcessor):
        """Stands for the processor until there are rows."""

        def init(self, handle: StatefulProcessorHandle) -> None:
            """Open the one state variable."""
            self.handle = handle
            self.loaded: Any = None
            client = getattr(handle, "_statefulProcessorApiClient", getattr(handle, "statefulProcessorApiClient", None))
            socket = getattr(client, "_client_socket", None)
            if socket is not None:
                socket.settimeout(answer_s)
            try:
                self.state = handle.getMapState(variable, name, blob)
            except TimeoutError:
                raise RuntimeError(
                    f"{no_answer} (got: none in {answer_s:g} s): the batch cannot go on. "
                    "Hint: start the query again, it goes on from its checkpoint."
                ) from None
            if socket is not None:
                socket.settimeout(None)

        def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Row]:
            """Rows of a bucket."""
            yield from self.processor().handle_rows(key, rows, timerValues)

        def handleExpiredTimer(self, key: Any, timerValues: Any, expiredTimerInfo: Any) -> Iterator[Row]:
            """A bucket's timer."""
            yield from self.processor().handle_timer(key, timerValues)

        def close(self) -> None:
            """The task is over."""
            if self.loaded is not None:
                self.loaded.close()

        def processor(self) -> Any:
            """The processor, loaded at its first use."""
            if self.loaded is None:
                self.loaded = pickle.loads(packed)
                self.loaded.open(self.handle, self.state)
            return self.loaded

    return Operator()
