"""The micro-batch loop: a batch, and the batch without rows that a query runs when the watermark has moved."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from krishiv_py.engine.stage import BatchDone, Packed, StageOperator
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.state.store import Bucket

NO_ROWS: Final = Packed()


def micro_batch(
    stage: StageOperator, bucket: Bucket, packed: Packed, moment: Moment, following: Callable[[], Moment], *, waits: bool
) -> Iterator[BatchDone]:
    """Run a micro-batch of one bucket, and the batch without rows that may follow it (SEMANTICS §2.3).

    Parameters
    ----------
    stage : Stage
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The rows of the batch.
    moment : Moment
        What is in force in it.
    following : callable
        What is in force after it; asked when it is done.
    waits : bool
        Whether the query waits for input after it, or the input has ended. Only then does a batch without rows follow, and
        only if the watermark has moved. Spark itself follows the same rule in a streaming query.
    """
    yield stage.step(bucket, packed, moment)
    then = following()
    if waits and then.watermark_us > moment.watermark_us:
        yield stage.step(bucket, NO_ROWS, then)
