"""Several keyed streams as one, for process functions that have a call for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

import attrs
import pyarrow as pa

from krishiv_py.api.computed import visible
from krishiv_py.api.planning import check
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.errors import PlanError, SchemaError, shown
from krishiv_py.plan.expressions.expr import col, lit
from krishiv_py.plan.nodes import Stage, source_of
from krishiv_py.plan.options.late import DefaultLateEventHandler, one_handler
from krishiv_py.plan.options.query import ExplicitOptions
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec, RowsClock, WatermarkSpec
from krishiv_py.plan.schema import without_order
from krishiv_py.plan.sides import side_by_side
from krishiv_py.types import type_text

if TYPE_CHECKING:
    from krishiv_py.api.stages.results import ResultStream

SOURCE: Final = "source"
"""The column with the name of the stream that a row is of."""


@attrs.frozen(eq=False, repr=False)
class ConnectedStream(KeyedStream):
    """Several keyed streams as one; see :func:`~krishiv_py.connect`.

    Examples
    --------
    >>> from krishiv_py import connect
    >>> from krishiv_py.testing import stream_of
    >>> one, two = (stream_of("user string, at bigint").watermark("at", 0).key_by("user") for _ in range(2))
    >>> connect(one=one, two=two).keys
    ('user',)
    """

    def process(self, function: Any, **options: Any) -> ResultStream:
        """Call a function of your own for the rows and the timers of each key; see :meth:`KeyedStream.process`.

        Parameters
        ----------
        function : object
            An object with a call for each stream, such as ``on_orders(row, state, ctx)`` for the rows of ``orders``, or one
            that :meth:`KeyedStream.process` takes.
        options : object
            Those of :meth:`KeyedStream.process`.

        Examples
        --------
        >>> from krishiv_py import connect
        >>> from krishiv_py.testing import Driver, stream_of
        >>> class Both:
        ...     def on_one(self, row, state, ctx):
        ...         yield {"of": "one"}
        ...     def on_two(self, row, state, ctx):
        ...         yield {"of": "two"}
        >>> one, two = (stream_of("user string, at bigint").watermark("at", 0).key_by("user") for _ in range(2))
        >>> driver = Driver(connect(one=one, two=two).process(Both(), returns="of string"))
        >>> _ = driver.send({"two": [{"user": "a", "at": 1}], "one": [{"user": "a", "at": 1}]})
        >>> driver.close().results["of"].to_pylist()
        ['one', 'two']
        """
        return super().process(function, **options)


def connect(**streams: KeyedStream) -> ConnectedStream:
    """Return several keyed streams as one, with the lag of each: rows of a key are one sequence (SEMANTICS §14.6).

    It is the union of their rows. The keys and the time are called as in the first stream; a column that a stream lacks is null
    in its rows, and the column ``source`` has its name. A process function over it may have a call for each stream, such as
    ``on_orders`` and ``on_payments``; rows of equal time come in the order of the names.

    Parameters
    ----------
    **streams : KeyedStream
        The streams by name, of sources or results of stages, with keys of the same number and types. Columns of one name have
        one type.

    Raises
    ------
    PlanError
        For what is no keyed stream, other keys, several clocks, and streams with options of their own.
    SchemaError
        For columns of one name with two types.

    Examples
    --------
    >>> import attrs
    >>> from krishiv_py import connect
    >>> from krishiv_py.testing import Driver, stream_of
    >>> @attrs.define
    ... class Place:
    ...     city: str | None = None
    >>> class WithCity:
    ...     def on_moved(self, row, state, ctx):
    ...         state.city = row.city
    ...     def on_bought(self, row, state, ctx):
    ...         yield {"amount": row.amount, "city": state.city}
    >>> moved = stream_of("user string, at bigint, city string").watermark("at", "1 min").key_by("user")
    >>> bought = stream_of("buyer string, day bigint, amount bigint").watermark("day", 0).key_by("buyer")
    >>> both = connect(moved=moved, bought=bought)
    >>> driver = Driver(both.process(WithCity(), returns="amount bigint, city string", state=Place))
    >>> sent = {"moved": [{"user": "a", "at": 1, "city": "Oslo"}], "bought": [{"buyer": "a", "day": 2, "amount": 7}]}
    >>> _ = driver.send(sent)
    >>> driver.close().results.to_pylist()
    [{'user': 'a', 'at': 2, 'amount': 7, 'city': 'Oslo'}]
    """
    if len(streams) < 2:
        hint = "give two or more of them, each by a name"
        raise PlanError("connect takes several keyed streams by name", got=shown(list(streams)), hint=hint)
    for name, stream in streams.items():
        _check(name, stream)
    first = next(iter(streams.values()))
    time, keys = first._draft.input.column, first._draft.keys
    renamed = {name: _like_first(name, stream, keys, time) for name, stream in streams.items()}
    parts = _of_equal_columns(renamed, [*keys, time])
    marks = MultiSourceWatermarkSpec.new(clock=_clock_of(streams.values()))
    for name, stream in streams.items():
        spec = stream._draft.input.spec
        assert isinstance(spec, WatermarkSpec)
        marks = marks.source(name, WatermarkSpec(spec.lag_us))
    rows = next(iter(parts.values())).schema
    hint = "name one behind it instead: connect(...).with_late_event_handler(...)"
    late = one_handler((stream._own_late_handler for stream in parts.values()), "connected streams", hint)
    laid_out = {name: (stream._node, [(n, col(n)) for n in rows.names]) for name, stream in parts.items()}
    union = side_by_side(laid_out, rows, SOURCE)
    merged = Stream(union, without_order(union.schema), first._runner, late)
    keyed = merged.with_watermark(marks, time, source_column=SOURCE).key_by(*keys)
    return ConnectedStream(keyed._draft, keyed._runner)


def _clock_of(streams: Iterable[KeyedStream]) -> RowsClock | None:
    """Return what rows of the streams are classified by; results of a stage are classified by nothing."""
    marks = [stream._draft.input for stream in streams]
    clocks = {mark.spec.clock for mark in marks if not isinstance(source_of(mark.input), Stage)}
    if len(clocks) > 1:
        hint = "give each watermark the same clock"
        raise PlanError("the streams go by several clocks", got=shown(sorted(map(str, clocks))), hint=hint)
    return next(iter(clocks), None)


def _check(name: str, stream: object) -> None:
    """Refuse what cannot be one of several streams."""
    if not isinstance(stream, KeyedStream) or not stream._draft.keys:
        hint = 'write .watermark("at", "5 s").key_by("user") on it'
        raise PlanError(f"{name!r} is no keyed stream", got=type(stream).__name__, hint=hint)
    draft = stream._draft
    source = source_of(draft.input.input)
    if isinstance(source, Stage):
        check.check_followed(source)
    spec = draft.input.spec
    if not isinstance(spec, WatermarkSpec) or spec != WatermarkSpec(spec.lag_us, clock=spec.clock):
        hint = f'write .watermark("{draft.input.column}", "5 s") on it'
        raise PlanError(f"the watermark of {name!r} is more than a lag", got=spec._describe(), hint=hint)
    if draft.explicit != ExplicitOptions() or not isinstance(draft.late_handler, DefaultLateEventHandler):
        hint = "write connect(...).allowed_lateness(...), and other options behind it, too"
        raise PlanError(f"{name!r} has options of its own", got=repr(stream), hint=hint)


def _like_first(name: str, stream: KeyedStream, keys: tuple[str, ...], time: str) -> Stream:
    """Return the rows of a stream with the keys and the time under the names of the first one, in front."""
    draft = stream._draft
    if len(draft.keys) != len(keys):
        hint = f"give each stream {len(keys)} key columns, as {', '.join(keys)}"
        raise PlanError(f"{name!r} has another key", got=", ".join(draft.keys), hint=hint)
    rows = Stream(draft.input.input, visible(stream._row_schema()), stream._runner)
    own = [*draft.keys, draft.input.column]
    rest = [field for field in rows.schema.names if field not in own]
    if taken := [field for field in rest if field in (*keys, time, SOURCE)]:
        hint = f'write .rename({taken[0]}="{name}_{taken[0]}") on it'
        raise SchemaError(f"a column of {name!r} is called like a key, the time or {SOURCE!r}", got=shown(taken[0]), hint=hint)
    leading = [col(old).alias(new) for old, new in zip(own, [*keys, time], strict=True)]
    return rows.select(*leading, *rest)


def _of_equal_columns(streams: dict[str, Stream], leading: list[str]) -> dict[str, Stream]:
    """Return streams that all have the columns of each of them."""
    types: dict[str, tuple[str, pa.DataType]] = {}
    for name, stream in streams.items():
        for field in stream.schema:
            other, type_ = types.setdefault(field.name, (name, field.type))
            if type_ != field.type:
                got = f"{type_text(type_)} in {other!r} and {type_text(field.type)} in {name!r}"
                hint = f'write .with_column("{field.name}", col("{field.name}").cast("{type_text(type_)}")) on {name!r}'
                hint = hint if field.name in leading else f'write .rename({field.name}="{name}_{field.name}") on {name!r}'
                raise SchemaError(f"column {field.name!r} has two types", got=got, hint=hint)
    return {
        name: stream.select(
            *(n if n in stream.schema.names else lit(None).cast(type_text(type_)).alias(n) for n, (_, type_) in types.items())
        )
        for name, stream in streams.items()
    }
