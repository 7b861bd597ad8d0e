"""A function of a Spark DataFrame as a sink."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import attrs

from krishiv_py.connectors.sink import FrameSink, OutputBatch
from krishiv_py.errors import PlanError, shown

BatchConsumer: TypeAlias = Callable[[Any, int], None]


@attrs.frozen(eq=False)
class ForeachBatchSink(FrameSink):
    """Calls ``function(dataframe, batch_id)`` for every micro-batch, with a Spark DataFrame of results.

    Attributes
    ----------
    function : callable
        What is called with the rows and the number of the micro-batch.
    """

    function: BatchConsumer = attrs.field()

    @function.validator
    def _can_be_called(self, _attribute: object, value: object) -> None:
        if not callable(value):
            raise PlanError(
                "a batch is taken by a function", got=shown(value), hint="pass a function of a DataFrame and a batch number"
            )

    @property
    def title(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__qualname__", type(self.function).__name__)

    def write_frame(self, batch: OutputBatch, frame: Any) -> None:
        """Call the function with the rows `frame` and the number of the `batch`."""
        self.function(frame, batch.batch_id)
