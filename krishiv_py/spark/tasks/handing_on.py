"""What a stage hands to the one behind it, within a micro-batch: its results by the next one's buckets, and a word to go on.

Stages of a query are stateful operators one behind the other. What the last one alone gives to the driver passes through the
others as it is: the late rows and reports of earlier stages.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import attrs
import pyarrow as pa

from krishiv_py.kernels.arrays.grouping import buckets, normal_key
from krishiv_py.kernels.arrays.splitting import split as by_number
from krishiv_py.kernels.columns.evaluate import apply_prefix, one_batch
from krishiv_py.kernels.spec import OperatorSpec

NEXT: Final = "next"
"""Rows for the stage that follows."""
METRICS: Final = "metrics"
"""The report of a bucket."""
STAGE: Final = "@"
"""Stands before the number of a stage that is not the last one."""


def kind_of(kind: str, stage: int, last: int) -> str:
    """What an output of a stage is called on its way to the driver; that of the last stage has its plain name."""
    return kind if stage == last else f"{kind}{STAGE}{stage}"


@attrs.frozen(eq=False)
class HandingOn:
    """How a stage gives its results to the next one.

    Attributes
    ----------
    spec : OperatorSpec
        The next stage's.
    bucket_ids : tuple of int
        Its buckets.
    """

    spec: OperatorSpec
    bucket_ids: tuple[int, ...]

    def parts(self, results: pa.Table) -> Iterator[tuple[int, pa.Table]]:
        """The rows of the next stage behind its stateless steps, by bucket."""
        if not results.num_rows:
            return
        rows = pa.Table.from_batches([apply_prefix(self.spec.prefix, one_batch(results.select(list(self.spec.needs_columns))))])
        if not rows.num_rows:
            return
        if len(self.bucket_ids) == 1 or not self.spec.keys:
            yield self.bucket_ids[0], rows
            return
        keys: list[pa.Array | pa.ChunkedArray] = [normal_key(rows[k].combine_chunks()) for k in self.spec.keys]
        at = buckets(keys, rows.num_rows, len(self.bucket_ids))
        for number, part in by_number(rows, at):
            yield self.bucket_ids[number], part.combine_chunks()


@attrs.frozen(eq=False)
class Place:
    """Where a stage stands among the stages of a query.

    Attributes
    ----------
    number, last : int
        Its number and that of the last one, from 0.
    behind_us : int
        How far its watermark is behind that of the first one, µs.
    following : HandingOn or None
        How it gives results to the next one; None for the last.
    """

    number: int = 0
    last: int = 0
    behind_us: int = 0
    following: HandingOn | None = None
