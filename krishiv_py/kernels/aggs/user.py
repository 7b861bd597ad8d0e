"""User-defined aggregates: accumulators as bytes, one per group."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.errors import OperatorError, message, told
from krishiv_py.kernels.aggs.accumulators import StateTypes
from krishiv_py.kernels.aggs.base import Rows, valid_rows
from krishiv_py.kernels.grouping import Ints
from krishiv_py.plan.aggregates import Aggregator


@attrs.frozen(eq=False, slots=False)
class User:
    """Runs an :class:`~krishiv_py.Aggregator`."""

    aggregator: Aggregator[Any]
    type: pa.DataType
    label: str

    @property
    def partial_types(self) -> list[pa.DataType]:
        return [pa.binary()]

    @property
    def result_type(self) -> pa.DataType:
        return self.type

    def _fail(self, step: str, problem: Exception, value: object) -> OperatorError:
        return OperatorError(message(f"{self.label} failed in `{step}`", repr(value)[:200],
                                     told(problem), f"mend `{step}` of the aggregator"))

    @cached_property
    def _types(self) -> StateTypes:
        return StateTypes([type(self.aggregator.create()), *getattr(self.aggregator, "state_types", ())])

    def _written(self, accumulators: list[Any], step: str) -> list[pa.Array]:
        out = []
        for accumulator in accumulators:
            try:
                out.append(self._types.dumps(accumulator))
            except Exception as problem:  # pickling calls user code too
                hint = "keep plain values in it, or name its classes: state_types = (MyClass,) on the aggregator"
                raise OperatorError(message(f"{self.label}: what `{step}` returned cannot be kept in state",
                                            repr(accumulator)[:200], f"{type(problem).__name__}: {problem}", hint)) from problem
        return [pa.array(out, pa.binary())]

    def _read(self, blob: bytes) -> Any:
        try:
            return self._types.loads(blob)
        except Exception as problem:  # whatever the class of an accumulator raises
            hint = "name the class in `state_types` of the aggregator if you trust the checkpoint, or start with a new one"
            raise OperatorError(message(f"{self.label}: an accumulator in state cannot be read", blob[:60],
                                        f"{type(problem).__name__}: {problem}", hint)) from problem

    def _added(self, values: list[Any], ids: Ints, n: int) -> list[Any]:
        partial = getattr(self.aggregator, "partial", None)
        try:
            accumulators = [self.aggregator.create() for _ in range(n)]
        except Exception as problem:  # user code, as below
            raise self._fail("create", problem, f"{n} groups") from problem
        for value, at in zip(values, ids.tolist(), strict=True) if partial is None else ():
            try:
                accumulators[at] = self.aggregator.add(accumulators[at], value)
            except Exception as problem:  # user code: whatever it raises is reported with its row
                raise self._fail("add", problem, value) from problem
        return accumulators

    def create(self, rows: Rows) -> list[pa.Array]:
        assert rows.values is not None
        kept, ids, _ = valid_rows(rows.values, rows.ids)
        partial = getattr(self.aggregator, "partial", None)
        try:
            accumulators = self._added(kept.to_pylist(), ids, rows.n) if partial is None else partial(kept, ids, rows.n)
        except OperatorError:
            raise
        except Exception as problem:  # user code, see above
            raise self._fail("partial", problem, kept) from problem
        return self._written(list(accumulators), "add" if partial is None else "partial")

    def merge(self, partials: list[pa.Array], ids: Ints, n: int) -> list[pa.Array]:
        merged: list[Any] = [None] * n
        seen = np.zeros(n, np.bool_)
        for blob, at in zip(partials[0].to_pylist(), ids.tolist(), strict=True):
            accumulator = self._read(blob)
            try:
                merged[at] = self.aggregator.merge(merged[at], accumulator) if seen[at] else accumulator
            except Exception as problem:  # user code, see above
                raise self._fail("merge", problem, accumulator) from problem
            seen[at] = True
        return self._written(merged, "merge")

    def finish(self, partials: list[pa.Array]) -> pa.Array:
        results = []
        for blob in partials[0].to_pylist():
            accumulator = self._read(blob)
            try:
                results.append(self.aggregator.finish(accumulator))
            except Exception as problem:  # user code, see above
                raise self._fail("finish", problem, accumulator) from problem
        try:
            return pa.array(results, self.type)
        except (pa.ArrowException, TypeError, ValueError, OverflowError) as problem:
            raise self._fail("finish", problem, results) from problem
