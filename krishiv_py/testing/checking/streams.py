"""Streams for a plan: rows whose times lie at the edges of its windows, and values at the constants of its conditions.

A stream follows from the seed alone, on every platform: chance comes from :class:`random.Random`, seeded by a text.
"""

from __future__ import annotations

import datetime as dt
import decimal
from collections.abc import Callable, Mapping, Sequence
from random import Random
from typing import Any, Final, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import is_collection
from krishiv_py.testing.checking.plans import ONLY_STREAM, CheckedPlan, StreamShape

Row: TypeAlias = "dict[str, Any]"
RowsDrawn: TypeAlias = "Callable[[Random], Any]"

SIZES: Final = (1, 2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20, 26, 40)
_TODAY_US: Final = 1_717_200_000_000_000
_EPOCH: Final = dt.datetime(1970, 1, 1, tzinfo=dt.timezone.utc)
_MAX_ITEMS: Final = 3


@attrs.frozen
class Arrival:
    """A row, and the stream that it is of."""

    of: str
    row: Row


Arrivals: TypeAlias = "tuple[Arrival, ...]"


def drawn(plan: CheckedPlan, chance: Random, *, orderly: bool) -> Arrivals:
    """Return the rows of one case in the order in which they arrive; of an `orderly` one no row is later than the lag."""
    pools = _Pools(plan, chance)
    now = {shape.name: _beginning(plan, chance) for shape in plan.streams}
    newest: dict[str, int] = {}
    arrivals = []
    for _ in range(chance.choice(SIZES)):
        shape = chance.choice(plan.streams)
        if chance.randrange(4):
            now[shape.name] += _step_us(plan, shape, chance)
        time_us = _time_us(plan, shape, chance, now[shape.name], newest.get(shape.name), orderly=orderly)
        if time_us is not None:
            newest[shape.name] = max(time_us, newest.get(shape.name, time_us))
        arrivals.append(Arrival(shape.name, _row(shape, pools, time_us)))
    return tuple(arrivals)


def _beginning(plan: CheckedPlan, chance: Random) -> int:
    edge = chance.choice(plan.edges_us)
    return chance.choice((0, 0, 10 * edge, -10 * edge, _TODAY_US // edge * edge))


def _step_us(plan: CheckedPlan, shape: StreamShape, chance: Random) -> int:
    edge, tick = chance.choice(plan.edges_us), shape.tick_us
    return chance.choice((0, tick, edge // 4, edge // 2, edge, edge - tick, edge + tick))


def _time_us(
    plan: CheckedPlan, shape: StreamShape, chance: Random, now_us: int, newest_us: int | None, *, orderly: bool
) -> int | None:
    if chance.randrange(60) == 0:
        return None
    edge, tick, lag = chance.choice(plan.edges_us), shape.tick_us, shape.lag_us
    backs = [0, 0, 0, tick, lag, lag - tick, edge // 3, now_us % edge, now_us % edge - tick, now_us % edge + tick]
    if not orderly:
        backs += [
            lag + tick,
            lag + edge,
            edge,
            edge + tick,
            3 * edge,
            10 * edge,
            -100 * edge if chance.randrange(8) == 0 else 0,
        ]
    time_us = now_us - chance.choice(backs)
    if orderly and newest_us is not None:
        time_us = max(time_us, newest_us - lag)
    return -(-time_us // tick) * tick


@attrs.define(eq=False)
class _Pools:
    """Holds the few keys of a case, and draws all other values."""

    plan: CheckedPlan
    chance: Random
    _keys: dict[str, list[Any]] = attrs.field(factory=dict)

    def value(self, field: pa.Field, keys: frozenset[str]) -> Any:
        """Return a value of a column, or of a field of a struct."""
        if field.name not in keys:
            return self._value(field.type, nullable=field.nullable, keys=keys)
        pool = self._keys.get(str(field.type))
        if pool is None:
            size = self.chance.choice((1, 2, 2, 3, 4))
            pool = self._keys[str(field.type)] = [self._value(field.type, nullable=field.nullable) for _ in range(size)]
        key_value = self.chance.choice(pool)
        return self._value(field.type, nullable=False) if key_value is None and not field.nullable else key_value

    def _value(self, type_: pa.DataType, *, nullable: bool, keys: frozenset[str] = frozenset()) -> Any:
        if nullable and self.chance.randrange(10) == 0:
            return None
        nested = self._nested(type_, keys)
        return self.chance.choice(_values(type_, self.plan.constants)) if nested is None else nested

    def _nested(self, type_: pa.DataType, keys: frozenset[str]) -> Any:
        """Return a list, map or struct; None for all other types."""
        items = range(self.chance.randrange(_MAX_ITEMS)) if pa.types.is_nested(type_) else range(0)
        if pa.types.is_map(type_):
            pairs = [(self._value(type_.key_type, nullable=False), self._value(type_.item_type, nullable=True)) for _ in items]
            return list({repr(name): (name, item) for name, item in pairs}.values())
        if pa.types.is_list(type_) or pa.types.is_large_list(type_):
            return [self._value(type_.value_type, nullable=True) for _ in items]
        if pa.types.is_struct(type_):
            return {field.name: self.value(field, keys) for field in type_}
        return None


def _row(shape: StreamShape, pools: _Pools, time_us: int | None) -> Row:
    row: Row = {}
    for field in shape.schema:
        if field.name != shape.time:
            row[field.name] = pools.value(field, shape.keys)
        elif time_us is None and not field.nullable:
            row[field.name] = time_of(0, field.type)
        else:
            row[field.name] = None if time_us is None else time_of(time_us, field.type)
    return row


def time_of(time_us: int, type_: pa.DataType) -> Any:
    """Return a time, in µs, as a value of a time column."""
    if pa.types.is_int64(type_):
        return time_us // 1_000
    instant = _EPOCH + dt.timedelta(microseconds=time_us)
    return instant if type_.tz else instant.replace(tzinfo=None)


def us_of(value: Any) -> int | None:
    """Return a value of a time column in µs."""
    if value is None or isinstance(value, int):
        return None if value is None else value * 1_000
    instant = value if value.tzinfo else value.replace(tzinfo=dt.timezone.utc)
    return int((instant - _EPOCH) // dt.timedelta(microseconds=1))


def _values(type_: pa.DataType, constants: Sequence[Any]) -> Sequence[Any]:
    """Return values of a type: the odd ones, and those next to constants of the plan."""
    numbers = [c for c in constants if isinstance(c, (int, float)) and not isinstance(c, bool)]
    if pa.types.is_boolean(type_):
        return (True, False)
    if pa.types.is_integer(type_):
        return _integers(type_, numbers)
    if pa.types.is_floating(type_):
        near = [x for c in numbers for x in (float(c), float(c) - 1, float(c) + 1)]
        return (*near, 0.1, 0.2, 0.3, 1.5, -1.0, 0.0, -0.0, 1e10, float("nan"))
    if pa.types.is_decimal(type_):
        digits = decimal.Decimal(1).scaleb(-type_.scale)
        return (decimal.Decimal(0), digits, -digits, 7 * digits)
    if pa.types.is_string(type_) or pa.types.is_large_string(type_):
        texts = [c for c in constants if isinstance(c, str)]
        return (*texts, *(c + "!" for c in texts), "a", "b", "c", "A", "", "é", "long text " * 12)
    if pa.types.is_binary(type_) or pa.types.is_large_binary(type_):
        return (b"", b"a", b"\x00\xff")
    return _times(type_)


def _integers(type_: pa.DataType, numbers: Sequence[float]) -> Sequence[int]:
    signed = pa.types.is_signed_integer(type_)
    most = (1 << (type_.bit_width - signed)) - 1
    near = [x for c in numbers if c == c and abs(c) < most for x in (int(c), int(c) - 1, int(c) + 1)]
    return tuple(x for x in (*near, 0, 1, 2, 3, 7, 100, -1, -2) if (-most if signed else 0) <= x <= most)


def _times(type_: pa.DataType) -> Sequence[Any]:
    if pa.types.is_date(type_):
        return (dt.date(1970, 1, 1), dt.date(2024, 2, 29), dt.date(1969, 12, 31))
    if pa.types.is_timestamp(type_):
        return tuple(time_of(us, type_) for us in (0, 1, _TODAY_US, -1))
    if pa.types.is_duration(type_):
        return (dt.timedelta(0), dt.timedelta(seconds=1))
    if pa.types.is_time(type_):
        return (dt.time(0), dt.time(23, 59, 59))
    return (None,)


def arrivals_of(plan: CheckedPlan, given: Any) -> Arrivals:
    """Return rows of a user's as arrivals: dicts, or of several streams pairs of a name and a dict.

    Raises
    ------
    PlanError
        For anything else.
    """
    hint = "give a list of dicts; of several streams a list of pairs of a name and a dict"
    if not is_collection(given):
        raise PlanError("rows of a check are a list", got=shown(given), hint=hint)
    return tuple(_arrival(plan, one, hint) for one in given)


def _arrival(plan: CheckedPlan, one: Any, hint: str) -> Arrival:
    names = [shape.name for shape in plan.streams]
    of, row = one if isinstance(one, tuple) and len(one) == 2 else (names[0] if len(names) == 1 else None, one)
    if of not in names or not isinstance(row, Mapping):
        raise PlanError("not a row of a stream of the plan", got=shown(one), then=f"the streams are {names}", hint=hint)
    shape = plan.streams[names.index(of)]
    return Arrival(of, {field.name: row.get(field.name) for field in shape.schema})


def in_lines(arrivals: Sequence[Arrival]) -> Any:
    """Return the rows of one batch as ``Driver.send`` takes them."""
    if all(arrival.of == ONLY_STREAM for arrival in arrivals):
        return [arrival.row for arrival in arrivals]
    sent: dict[str, list[Row]] = {}
    for arrival in arrivals:
        sent.setdefault(arrival.of, []).append(arrival.row)
    return sent
