"""A stage behind another one: it takes the results of a micro-batch in the same micro-batch (SEMANTICS §7.3)."""

from __future__ import annotations

from collections.abc import Iterator

import attrs
import pyarrow as pa

from krishiv_py.engine.loop import micro_batch
from krishiv_py.engine.stage import BatchDone, Packed, Stage
from krishiv_py.kernels.input.arrival import in_order
from krishiv_py.kernels.moment import Moment
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.state.store import Bucket


def stepping(spec: OperatorSpec) -> OperatorSpec:
    """A specification whose stateless steps were run before the shuffle."""
    return attrs.evolve(spec, prefix=())


def packed_results(stage: Stage, results: pa.Table, judged: Moment) -> Packed:
    """The results of the stage before, judged by what was in force when that fired last, so that none is late."""
    packing = stage.pack(judged)
    for batch in in_order(results, stage.spec.arrives_by).combine_chunks().to_batches():
        packing.take(batch)
    return packing.packed()


def follow(stage: Stage, bucket: Bucket, packed: Packed, judged: Moment, moment: Moment) -> Iterator[BatchDone]:
    """Fold results of the stage before in, then fire.

    Parameters
    ----------
    stage : Stage
        What runs.
    bucket : Bucket
        Its state, changed in place.
    packed : Packed
        The results of the stage before.
    judged, moment : Moment
        What was in force in this stage when the one before fired last, and what is in force now.
    """
    return micro_batch(stage, bucket, packed, judged, lambda: moment, waits=True)
