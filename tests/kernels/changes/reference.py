"""Plain reference of tables that change (SEMANTICS §16): contents by key, and what operators make of whole contents.

After every batch, the folded results of a plan are what :func:`evaluated` gives for the contents of its inputs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from typing import Any

Row = dict[str, Any]
Rows = list[Row]


class Content:
    """The rows of a changelog by key: the last to arrive counts, or the one with the largest sequence."""

    def __init__(self, key: str, sequence: str | None) -> None:
        self.key, self.sequence = key, sequence
        self.by_key: dict[Any, Row] = {}
        self.reached: dict[Any, Any] = {}
        self.counted = Counter[str]()

    def apply(self, change: Row) -> None:
        """Take one change of a log."""
        row = {name: value for name, value in change.items() if name != "op"}
        key = row[self.key]
        if change["op"] not in ("+I", "+U", "-U", "-D"):
            self.counted["bad_op"] += 1
            return
        if self.sequence is not None:
            at = row[self.sequence]
            if key in self.reached and at <= self.reached[key]:
                self.counted["stale"] += 1
                return
            self.reached[key] = at
        if change["op"] in ("-U", "-D"):
            if self.by_key.pop(key, None) is None:
                self.counted["unknown_delete"] += 1
        else:
            if key in self.by_key and same(self.by_key[key], row):
                self.counted["unchanged"] += 1
            self.by_key[key] = row

    @property
    def rows(self) -> Rows:
        """Return the rows."""
        return list(self.by_key.values())


def same(one: Row, other: Row) -> bool:
    """Return whether two rows are equal; NaN is equal to NaN."""
    return text_of(one) == text_of(other)


def text_of(row: Row) -> str:
    """Return the values of a row as text; -0.0 is 0.0."""
    return repr([(name, value + 0.0 if isinstance(value, float) else value) for name, value in sorted(row.items())])


def folded(changes: Iterable[Row]) -> Counter[str]:
    """Return what is left after some changes: rows as text, each with its number."""
    left = Counter[str]()
    for change in changes:
        row = {name: value for name, value in change.items() if name != "op"}
        left[text_of(row)] += 1 if change["op"][0] == "+" else -1
        assert left[text_of(row)] >= 0, f"{row} is withdrawn and was not given"
    return +left


def counted(rows: Iterable[Row]) -> Counter[str]:
    """Return rows as text, each with its number."""
    return Counter(map(text_of, rows))


def total(values: Sequence[float]) -> float | None:
    """Return the double nearest to a sum; null without values."""
    if not values:
        return None
    if any(math.isnan(v) for v in values) or {math.inf, -math.inf} <= set(values):
        return math.nan
    if any(math.isinf(v) for v in values):
        return next(v for v in values if math.isinf(v))
    exact = sum(map(Fraction, values))
    try:
        return float(exact)
    except OverflowError:
        return math.inf if exact > 0 else -math.inf


def grouped(rows: Rows, keys: Sequence[str], aggregates: dict[str, Callable[[Rows], Any]]) -> Rows:
    """Return a row for each group: its keys, and aggregates of its rows."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault(tuple(row[key] for key in keys), []).append(row)
    return [
        dict(zip(keys, key, strict=True)) | {name: compute(members) for name, compute in aggregates.items()}
        for key, members in groups.items()
    ]


def joined(left: Rows, right: Rows, key: str, how: str, columns: tuple[Sequence[str], Sequence[str]]) -> Rows:
    """Return the join of two tables, in the names of the columns of either side."""

    def row(key_value: Any, one: Row | None, other: Row | None) -> Row:
        values = {key: key_value} | {name: None if one is None else one[name] for name in columns[0]}
        return values | {name: None if other is None else other[name] for name in columns[1]}

    def meets(one: Row, other: Row) -> bool:
        return one[key] is not None and one[key] == other[key]

    if how in ("semi", "anti"):
        return [row(one[key], one, None) for one in left if any(meets(one, other) for other in right) == (how == "semi")]
    rows = [row(one[key], one, other) for one in left for other in right if meets(one, other)]
    if how in ("left", "full"):
        rows += [row(one[key], one, None) for one in left if not any(meets(one, other) for other in right)]
    if how in ("right", "full"):
        rows += [row(other[key], None, other) for other in right if not any(meets(one, other) for one in left)]
    return rows


def first_rows(rows: Rows, key: str | None, n: int, order: Callable[[Row], Any], rank: str | None) -> Rows:
    """Return the first rows of each key, with their rank where it is asked for."""
    groups: dict[Any, Rows] = {}
    for row in rows:
        groups.setdefault(None if key is None else row[key], []).append(row)
    return [
        row | ({rank: place} if rank else {})
        for members in groups.values()
        for place, row in enumerate(sorted(members, key=order)[:n], 1)
    ]
