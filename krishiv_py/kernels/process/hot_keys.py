"""Rounds of one key: events one after the other, without what a round of many keys costs.

A round of one event spends nearly all of its time on arrays of one element. Here the state of the key stays in such arrays from
event to event, timers are a dictionary, and what the function says is kept as it is until the run of events ends. An event that
needs more, as it raises, refuses its row, or gives what has to be looked at, is left to a round.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import numpy as np

from krishiv_py.errors import RAISED
from krishiv_py.kernels.ordered import NEVER
from krishiv_py.plan.process_calls import Events, Objects, RoundContext, filled
from krishiv_py.plan.processing import MOST_TIMERS

_CONSTANT: Final = (str, int, float, bool, bytes, type(None))
Call: TypeAlias = "Callable[[Events, Any, RoundContext], Any]"


class SlowError(Exception):
    """An event is to be taken by a round."""


class OneEvent(Events):
    """One event; its columns are parts of those of the run."""

    __slots__ = ()


class OneEventContext(RoundContext):
    """Takes what the function says of one event."""

    __slots__ = ("_columns", "_lengths", "_names", "_us", "emitted", "forgets", "timers")

    def __init__(self, context: RoundContext, columns: Sequence[str]) -> None:
        super().__init__(context.clock, context._now_us)
        self._columns, self._n = set(columns), 1
        self._lengths: dict[str, int] = {}
        self._names = set[str]()
        self.begin(0)

    def begin(self, us: int) -> None:
        """Begin with an event at a time."""
        self._us = us
        self.timers: list[tuple[str | None, int]] = []
        """Timers that are set, those that are cancelled with `NEVER`; None for all that are dropped."""
        self.emitted: list[dict[str, Any]] = []
        self.forgets = False

    def _picks(self, where: Any) -> bool:
        if where is None:
            return True
        if type(where) is np.ndarray and where.shape == (1,) and where.dtype == np.bool_:
            return bool(where[0])
        raise SlowError

    def _leave(self, where: Any) -> None:
        """Leave the event to a round, if it is picked."""
        if self._picks(where):
            raise SlowError

    def timer(self, name: Any, *, after: Any = None, at: Any = None, where: Any = None, clock: Any = "event") -> None:
        """See :class:`~krishiv_py.RoundContext`."""
        length = self._lengths.get(after) if type(after) is str and at is None else None
        if length is not None and type(name) is str and name in self._names and clock == "event":
            if self._picks(where):
                self.timers.append((name, self._us + length))
            return
        if clock != "event" or type(name) is not str:
            self._leave(where)
            return
        self._now = np.array([self._us])
        self._actions = []
        super().timer(name, after=after, at=at, where=where)
        self._names.add(name)
        if type(after) is str:
            self._lengths[after] = self._length(after)
        for action, picked, _, when in self._actions:
            if len(picked):
                self.timers.append((name, int(when[0]) + (self._us if action == "after" else 0)))

    def cancel(self, name: Any, *, where: Any = None, clock: Any = "event") -> None:
        """See :class:`~krishiv_py.RoundContext`."""
        if clock != "event" or type(name) is not str or not name:
            self._leave(where)
        elif self._picks(where):
            self.timers.append((name, NEVER))

    def forget(self, *, where: Any = None) -> None:
        """See :class:`~krishiv_py.RoundContext`."""
        if self._picks(where):
            self.forgets = True
            self.timers.append((None, NEVER))

    def emit(self, columns: Mapping[str, Any] | None = None, *, where: Any = None, **more: Any) -> None:
        """See :class:`~krishiv_py.RoundContext`."""
        given = {**columns, **more} if columns else more
        if given.keys() != self._columns:
            raise SlowError
        if self._picks(where):
            self.emitted.append({name: _copy_of(value) for name, value in given.items()})

    def refuse(self, reason: str, *, where: Any = None) -> None:
        """See :class:`~krishiv_py.RoundContext`."""
        self._leave(where)


def _copy_of(value: Any) -> Any:
    """Return a value as it is now: of an array its only element, in an array unless it is an object."""
    if type(value) is np.ndarray:
        if value.shape != (1,):
            raise SlowError
        if value.dtype != object:
            return value.copy()
        value = value[0]
        return (value if type(value) in _CONSTANT else copy.deepcopy(value),)
    if type(value) not in _CONSTANT:
        raise SlowError
    return (value,)


def column_of(values: list[Any]) -> Objects | None:
    """Return what was kept of events as one array; None where arrays of several types are among them."""
    if all(type(value) is tuple for value in values):
        return filled([value[0] for value in values])
    if all(type(value) is np.ndarray and value.dtype == values[0].dtype for value in values):
        return np.concatenate(values)
    return None


class HotKey:
    """The state and the timers of one key, while its events are taken one after the other.

    Parameters
    ----------
    call : callable
        The user's function.
    context : OneEventContext
        What it gets.
    cells : dict of str to ndarray
        The state, an array of one element for each field.
    defaults : dict
        The fields of a new state.
    due : dict of str to int
        The timers.
    has : bool
        Whether there is a state.
    called, fired : int
        The time of the last call, and how many timers have fired since the last row.
    """

    def __init__(
        self,
        call: Call,
        context: OneEventContext,
        cells: dict[str, Objects],
        defaults: Mapping[str, Any],
        due: dict[str, int],
        *,
        has: bool,
        called: int,
        fired: int,
    ) -> None:
        self.called, self.fired = called, fired
        self.call, self.ctx, self.cells, self.defaults, self.due, self.has = call, context, cells, defaults, due, has
        self.state = type("State", (), {"__slots__": tuple(cells)})()
        for name, cell in cells.items():
            setattr(self.state, name, cell)
        self.emitted: list[dict[str, Any]] = []
        self.times: list[int] = []
        self.calls = 0
        self._least = min(due.values(), default=NEVER)
        self._fixed = [(name, cell, cell.dtype) for name, cell in cells.items()]

    def run(self, times: list[int], events: Callable[[int], Events], timers: Callable[[str, int], Events], due_us: int) -> int:
        """Take rows with their times, and timers up to `due_us`; return how many rows, before one that a round has to take."""
        for place, us in enumerate(times):
            if self._least <= us and not self._fire(min(us, due_us), timers):
                return place
            if not self.take(events(place), us):
                return place
            self.fired = 0
        self._fire(due_us, timers)
        return len(times)

    def _fire(self, upto_us: int, timers: Callable[[str, int], Events]) -> bool:
        """Take the timers up to a time, in order of time and name."""
        while self.due:
            at, name = min((us, name) for name, us in self.due.items())
            if at > upto_us:
                return True
            us = max(at, self.called)
            if self.fired >= MOST_TIMERS:
                return False
            del self.due[name]
            if not self.take(timers(name, us), us):
                self.due[name] = at
                return False
            self._least = min(self.due.values(), default=NEVER)
            self.fired += 1
        return True

    def take(self, event: Events, us: int) -> bool:
        """Call the function for an event; False where a round has to take it, and nothing has changed."""
        cells, ctx = self._fixed, self.ctx
        before = [cell[0] for _, cell, _ in cells]
        if not self.has:
            for name, cell, _ in cells:
                cell[0] = self.defaults[name]
        ctx.begin(us)
        try:
            if self.call(event, self.state, ctx) is not None:
                raise SlowError
            for name, cell, dtype in cells:
                given = getattr(self.state, name)
                if given is not cell:
                    setattr(self.state, name, cell)
                    if type(given) is not np.ndarray or given.shape != (1,) or not np.can_cast(given.dtype, dtype, "same_kind"):
                        raise SlowError
                    cell[0] = given[0]
        except (*RAISED, SlowError):
            for (name, cell, _), value in zip(cells, before, strict=True):
                setattr(self.state, name, cell)
                cell[0] = value
            return False
        self.calls += 1
        self.has = not ctx.forgets
        self.called = max(self.called, us)
        for timer, due_us in ctx.timers:
            if timer is None:
                self.due.clear()
            elif due_us == NEVER:
                self.due.pop(timer, None)
            else:
                self.due[timer] = due_us
        if ctx.timers:
            self._least = min(self.due.values(), default=NEVER)
        if ctx.emitted:
            self.emitted += ctx.emitted
            self.times += [us] * len(ctx.emitted)
        return True
