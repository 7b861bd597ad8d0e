"""Make a case that breaks a law smaller: fewer rows, fewer batches, fewer keys, plainer values, times nearer to 0."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import attrs
import pyarrow as pa

from krishiv_py.testing.checking.laws import Finding, Law, Subject, Trial, found
from krishiv_py.testing.checking.plans import StreamShape
from krishiv_py.testing.checking.streams import Arrival, time_of, us_of

_MOST_ATTEMPTS: Final = 1_500
"""So many smaller cases are tried: a number, not a time, so that the same seed shrinks to the same case on every machine."""


def shrunk(law: Law, subject: Subject, trial: Trial, finding: Finding, until: float) -> tuple[Trial, Finding]:
    """Return the smallest case found that breaks the law in the same way; `until` is a time of the monotonic clock."""

    def broken(smaller: Trial) -> Finding | None:
        again = found(law, subject, smaller)
        return again if finding.same_kind(again) else None

    going_on, attempts = True, 0
    while going_on:
        going_on = False
        for smaller in _smaller(subject, trial):
            attempts += 1
            if attempts > _MOST_ATTEMPTS or time.monotonic() > until:
                return trial, finding
            if (again := broken(smaller)) is not None:
                trial, finding, going_on = smaller, again, True
                break
    return trial, finding


def without(trial: Trial, begin: int, end: int) -> Trial:
    """Return a case without some rows; what is cut before and after them stays so."""
    gone = end - begin
    cut = sorted({place if place <= begin else max(begin, place - gone) for place in trial.cut})
    left = len(trial.arrivals) - gone
    order = tuple(n if n < begin else n - gone for n in trial.order if not begin <= n < end)
    return Trial(trial.arrivals[:begin] + trial.arrivals[end:], tuple(p for p in cut if 0 < p < left), order)


def _smaller(subject: Subject, trial: Trial) -> Iterator[Trial]:
    """Yield smaller cases, those that are smallest first."""
    n = len(trial.arrivals)
    size = n // 2
    while size:
        for begin in range(n - size, -1, -size):
            yield without(trial, begin, begin + size)
        size //= 2
    for place in trial.cut:
        yield attrs.evolve(trial, cut=tuple(p for p in trial.cut if p != place))
    if trial.order and trial.order != (straight := tuple(range(n))):
        yield attrs.evolve(trial, order=straight)
    yield from _plainer(subject, trial)


def _plainer(subject: Subject, trial: Trial) -> Iterator[Trial]:
    """Yield cases with the same rows, and plainer values."""
    shapes = {shape.name: shape for shape in subject.plan.streams}
    yield from _earlier(subject, shapes, trial)
    for number, arrival in enumerate(trial.arrivals):
        shape = shapes[arrival.of]
        for field in shape.schema:
            value = arrival.row[field.name]
            if field.name == shape.time:
                continue
            for plain in _plain_values(field):
                if repr(plain) == repr(value):
                    break  # what comes after is less plain
                yield _with(trial, number, {field.name: plain})


def _earlier(subject: Subject, shapes: Mapping[str, StreamShape], trial: Trial) -> Iterator[Trial]:
    """Yield cases whose times all lie nearer to 0, by whole lengths of the plan, so that edges stay edges."""
    times = [us for a in trial.arrivals if (column := shapes[a.of].time) and (us := us_of(a.row[column])) is not None]
    if not times:
        return
    for edge_us in sorted(subject.plan.edges_us, reverse=True):
        by_us = min(times) // edge_us * edge_us
        if by_us:
            yield attrs.evolve(trial, arrivals=tuple(_moved(shapes[a.of], a, by_us) for a in trial.arrivals))


def _moved(shape: StreamShape, arrival: Arrival, by_us: int) -> Arrival:
    time_us = None if shape.time is None else us_of(arrival.row[shape.time])
    if shape.time is None or time_us is None:
        return arrival
    moved = time_of(time_us - by_us, shape.schema.field(shape.time).type)
    return attrs.evolve(arrival, row={**arrival.row, shape.time: moved})


def _plain_values(field: pa.Field) -> Sequence[Any]:
    """Return the plainest values of a column, the plainest first."""
    type_ = field.type
    if pa.types.is_string(type_):
        return ("a", "b")
    if pa.types.is_integer(type_):
        return (0, 1)
    if pa.types.is_floating(type_):
        return (0.0, 1.0, 0.1, 0.2, 0.3)
    return (None,) if field.nullable else ()


def _with(trial: Trial, number: int, values: dict[str, Any]) -> Trial:
    arrival = trial.arrivals[number]
    changed = attrs.evolve(arrival, row={**arrival.row, **values})
    return attrs.evolve(trial, arrivals=(*trial.arrivals[:number], changed, *trial.arrivals[number + 1 :]))
