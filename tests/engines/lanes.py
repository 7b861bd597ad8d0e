"""A source of lanes whose batches are drawn, to try that results depend on lanes alone (SEMANTICS §2.8)."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any

import attrs
import pyarrow as pa

from krishiv_py.connectors import JsonValue, Planned, Source

Row = dict[str, Any]
Lanes = Sequence[Sequence[Row]]


@attrs.frozen
class LanesInCuts(Source):
    """Lanes of rows, a few of each batch; where a batch ends follows from `seed` and where the last one ended.

    Attributes
    ----------
    lanes : sequence of sequence of dict
        The rows of each lane in their order.
    schema : pyarrow.Schema
        Their columns.
    seed : int
        Another one cuts in other places.
    most : int
        How many rows of a lane a batch has at most.
    there : float
        Which share of each lane is there yet; below 1 the source goes on later.
    """

    lanes: Lanes
    schema: pa.Schema
    seed: int
    most: int
    there: float = 1.0
    finite: bool = attrs.field(init=False)

    @finite.default
    def _finite(self) -> bool:
        return self.there == 1.0

    def plan(self, last: Any) -> Planned | None:
        begins = [0] * len(self.lanes) if last is None else list(last)
        ends = [int(len(rows) * self.there) for rows in self.lanes]
        if begins == ends:
            return None
        chance, taken = random.Random(f"{self.seed} {begins}"), begins
        while taken == begins:
            taken = [
                min(begin + chance.choice((0, chance.randint(1, self.most))), end)
                for begin, end in zip(begins, ends, strict=True)
            ]
        middles = [chance.randint(begin, end) for begin, end in zip(begins, taken, strict=True)]
        halves: list[JsonValue] = []
        for these in (zip(begins, middles, strict=True), zip(middles, taken, strict=True)):
            some = [[lane, begin, end] for lane, (begin, end) in enumerate(these) if begin < end]
            chance.shuffle(some)  # lanes come in any order, and a lane in two pieces
            halves += some
        return Planned(taken, halves)

    def read(self, planned: Any, columns: Sequence[str]) -> Iterator[pa.RecordBatch]:
        lane, begin, end = planned
        yield pa.RecordBatch.from_pylist(list(self.lanes[lane][begin:end]), self.schema).select(list(columns))

    def partition_of(self, planned: Any) -> str:
        return f"lane {planned[0]}"

    def partitions_at(self, position: JsonValue) -> list[str]:
        return [f"lane {number}" for number in range(len(self.lanes))]
