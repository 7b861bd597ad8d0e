"""Several keyed streams as one, for process functions that have a call for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import attrs

from krishiv_py.api.several import side_by_side
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.errors import PlanError, shown

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
        if not isinstance(stream, KeyedStream) or not stream._draft.keys:
            hint = 'write .watermark("at", "5 s").key_by("user") on it'
            raise PlanError(f"{name!r} is no keyed stream", got=type(stream).__name__, hint=hint)
    draft = side_by_side(dict(streams), SOURCE)
    return ConnectedStream(draft, next(iter(streams.values()))._runner)
