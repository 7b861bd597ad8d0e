"""What all window kinds share."""

from __future__ import annotations

from typing import ClassVar, Final

import pyarrow as pa

from krishiv_py.plan.options.query import QueryOptions

LATER: Final = {"later": True}
"""Metadata of attributes that windows of older releases have not: checkpoints of such windows have their defaults."""


class Window:
    """Base of the window kinds; a frozen value that says which rows belong together."""

    __slots__ = ()
    kind: ClassVar[str]
    bounded_state: ClassVar[bool] = True

    def describe(self) -> str:
        """One line for ``explain()``."""
        raise NotImplementedError

    def result_fields(self, keys: list[pa.Field], row: pa.Schema, bound: pa.DataType) -> list[pa.Field] | None:
        """The result columns before ``op``; None for keys, bounds and aggregates (SEMANTICS §5.5).

        Parameters
        ----------
        keys : list of pyarrow.Field
            The key columns.
        row : pyarrow.Schema
            The rows.
        bound : pyarrow.DataType
            The type of window bounds.
        """
        return None

    def bound_type(self, bound: pa.DataType) -> pa.DataType:
        """The type of ``window_start`` and ``window_end``, `bound` being that of the event time."""
        return bound

    def columns(self) -> tuple[str, ...]:
        """Columns of a row the window itself reads, besides keys and event time."""
        return ()

    def carried(self, keys: tuple[str, ...], row: pa.Schema) -> tuple[str, ...]:
        """Columns of `row`, besides its `keys`, that come out with its result, after the aggregates."""
        return ()

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse a `schema` of rows without the columns the window reads."""

    def settled(self, options: QueryOptions) -> QueryOptions:
        """The `options` as this window has them, or a refusal of those that contradict it.

        Called when the window is chosen and again after every option step, so that both orders give one plan: what it returns
        must not change when it is settled again.
        """
        return options

    def check_options(self, options: QueryOptions) -> None:
        """Refuse `options` that rows in such a window cannot follow; called when the plan is complete."""

    def warnings(self) -> tuple[str, ...]:
        """What a user should know before running this window."""
        return ()
