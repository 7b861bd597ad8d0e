"""The state and the timers of the keys of a step, as objects of the user's class or as aligned columns, and back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Final

import attrs
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Ints, Mask, flags, last_rows
from krishiv_py.errors import RAISED, OperatorError, failure_text, shown
from krishiv_py.kernels.columns.layout import whole
from krishiv_py.kernels.ordered import NEVER, KeyRows
from krishiv_py.kernels.state.key_table import HAS_STATE, STATE_FIELD
from krishiv_py.plan.durations import UNSET
from krishiv_py.plan.process_calls import CLOCK
from krishiv_py.plan.processing import Processing
from krishiv_py.plan.row_classes import RecordClass

MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)
TIMERS, CALLED, FIRED, CHANGED = "__timers", "__called", "__fired", "__changed"


def timers_of(rows: KeyRows) -> tuple[Ints, pa.Array, Ints]:
    """Return for each timer its key, its name and its time, µs."""
    timers = whole(rows.stored[TIMERS])
    counts = np.diff(timers.offsets.to_numpy())
    first, last = (int(timers.offsets[place].as_py()) for place in (0, len(timers)))
    owners = np.repeat(rows.found, counts)
    return owners, timers.keys[first:last], timers.items[first:last].to_numpy()


def by_clock(names: pa.Array) -> Mask:
    """Return which timers go by the clock."""
    return flags(pc.starts_with(names, CLOCK))


def last_writes(operation: Processing, rows: KeyRows) -> Ints:
    """Return when the state of each key was written last, which is kept where state expires."""
    return rows.numbers(CHANGED, UNSET) if operation.ttl_us is not None else np.full(rows.n, UNSET, np.int64)


def differs(before: Any, now: Any) -> bool:
    """Return whether the contents of a state have changed; what cannot be compared has."""
    try:
        return bool(before != now)
    except Exception:  # noqa: BLE001  # of a user's values
        return True


@attrs.frozen(eq=False)
class KeyUpdates:
    """Holds what is to be stored of the keys of a step.

    Attributes
    ----------
    has : ndarray of bool
        Which keys have a state.
    owners, names, times
        The timers: key, name and time, µs; by key.
    called, fired, changed : ndarray of int64
        When a key was called last, how many timers have fired since its last row, and when its state was written last.
    fields : list of pyarrow.Array
        The fields of the state, null where there is none.
    """

    has: Mask
    owners: Ints
    names: pa.Array
    times: Ints
    called: Ints
    fired: Ints
    changed: Ints
    fields: list[pa.Array]

    @property
    def n(self) -> int:
        """Return how many keys there are."""
        return len(self.has)

    @classmethod
    def joined(cls, parts: Sequence[KeyUpdates]) -> KeyUpdates:
        """Return those of keys that were called in parts, one after the other."""
        before = np.cumsum([0, *(part.n for part in parts)]).tolist()
        called, fired, changed = (
            np.concatenate([getattr(part, name) for part in parts]) for name in ("called", "fired", "changed")
        )
        return cls(
            np.concatenate([part.has for part in parts]),
            np.concatenate([part.owners + low for part, low in zip(parts, before, strict=False)]),
            pa.concat_arrays([part.names for part in parts]),
            np.concatenate([part.times for part in parts]),
            called,
            fired,
            changed,
            [pa.concat_arrays(each) for each in zip(*(part.fields for part in parts), strict=True)],
        )

    def soonest(self, *, clock: bool) -> Ints:
        """Return when the first timer of each key is due, of those by the clock or of the others."""
        first = np.full(self.n, NEVER, np.int64)
        mine = by_clock(self.names) == clock
        np.minimum.at(first, self.owners[mine], self.times[mine])
        return first

    def timer_maps(self) -> pa.Array:
        """Return the timers of each key as a map."""
        offsets = np.zeros(self.n + 1, np.int32)
        np.cumsum(np.bincount(self.owners, minlength=self.n), out=offsets[1:])
        return pa.MapArray.from_arrays(pa.array(offsets), self.names, pa.array(self.times))


class ObjectStates:
    """State as objects of the user's class, and timers as dictionaries."""

    def __init__(self, operation: Processing, rows: KeyRows) -> None:
        self.operation, self.rows = operation, rows
        n = rows.n
        self.states: list[Any] = [None] * n
        self.timers: list[dict[str, int]] = [{} for _ in range(n)]
        self.called: list[int] = rows.numbers(CALLED, UNSET).tolist()
        self.fired: list[int] = rows.numbers(FIRED, 0).tolist()
        self.changed: list[int] = last_writes(operation, rows).tolist()
        owners, names, times = timers_of(rows)
        for key, name, us in zip(owners.tolist(), names.to_pylist(), times.tolist(), strict=True):
            self.timers[key][name] = us
        self.clocked = bool(by_clock(names).any())
        for key, state in zip(rows.found.tolist(), self._read(rows.stored), strict=True):
            self.states[key] = state

    def _read(self, stored: pa.Table) -> list[Any]:
        if self.operation.state is None:
            return [None] * stored.num_rows
        return states_of(self.operation, stored, lambda place: self.rows.shown(int(self.rows.found[place])))

    def stored_state(self, key: int) -> Any:
        """Return the state of a key once more, as it is stored."""
        places = np.flatnonzero(self.rows.found == key)
        stored = self.rows.stored.slice(int(places[0]), 1) if len(places) else None
        return None if stored is None else self._read(stored)[0]

    def misfits(self) -> set[int]:
        """Return the keys whose state its columns do not hold."""
        return {key for key, state in enumerate(self.states) if misfit_of(self.operation, state) is not None}

    def updates(self) -> KeyUpdates:
        """Return what is to be stored."""
        n = self.rows.n
        keeps = self.operation.state is not None
        has = np.fromiter((keeps and state is not None for state in self.states), np.bool_, n)
        names, times = list[str](), list[int]()
        for due in self.timers:
            names += due
            times += due.values()
        owners = np.repeat(np.arange(n), list(map(len, self.timers)))
        called, fired, changed = (np.array(each, np.int64) for each in (self.called, self.fired, self.changed))
        named = pa.array(names, pa.string())
        return KeyUpdates(has, owners, named, np.array(times, np.int64), called, fired, changed, list(self._fields(has)))

    def _fields(self, has: Mask) -> Iterator[pa.Array]:
        state = self.operation.state
        if state is None:
            return
        there = np.flatnonzero(has)
        objects = [self.states[key] for key in there.tolist()]
        written = written_states(state, objects, lambda place: self.rows.shown(int(there[place])))
        places = last_rows(there, len(has), len(there))
        for field in state.schema:
            values = [*written[field.name], None]
            yield field_array(self.operation, field, values, there, self.rows.shown).take(pa.array(places))


def states_of(operation: Processing, stored: pa.Table, shown_key: Callable[[int], str]) -> list[Any]:
    """Return the state in each stored row, as objects of its class."""
    state = operation.state
    assert state is not None
    has = stored[HAS_STATE].to_numpy(zero_copy_only=False)
    columns = {name: stored[f"{STATE_FIELD}{name}"].filter(stored[HAS_STATE]).to_pylist() for name in state.schema.names}
    states = iter(read_states(state, columns, lambda place: shown_key(int(np.flatnonzero(has)[place]))))
    return [next(states) if there else None for there in has.tolist()]


def read_states(state: RecordClass, columns: dict[str, list[Any]], shown_key: Callable[[int], str]) -> list[Any]:
    """Return the states in columns, as objects of their class."""
    try:
        return state.read(columns)
    except RAISED as problem:
        n = len(next(iter(columns.values())))
        for place in range(n) if n > 1 else ():
            one = {name: values[place : place + 1] for name, values in columns.items()}
            read_states(state, one, partial(_same, shown_key(place)))
        raise unmade_state(state, shown_key(0), problem) from problem


def unmade_state(state: RecordClass, shown_key: str, problem: BaseException) -> OperatorError:
    """Return the error for stored values that the class of the state refuses."""
    name = state.kind.__name__
    hint = f"let {name} take what its fields have held, and refuse rows in the function"
    return OperatorError(f"no {name} can be made of what is stored{shown_key}", got=failure_text(problem), hint=hint)


def _same(text: str, place: int) -> str:
    return text


def written_states(state: RecordClass, states: list[Any], shown_key: Callable[[int], str]) -> dict[str, list[Any]]:
    """Return the columns of states, as Python lists."""
    try:
        return state.written(states)
    except (*MISFITS, AttributeError) as problem:
        for place in range(len(states)) if len(states) > 1 else ():
            written_states(state, states[place : place + 1], partial(_same, shown_key(place)))
        raise unfit_state(state.kind.__name__, shown_key(0), problem) from problem


def misfit_of(operation: Processing, state: Any) -> OperatorError | None:
    """Return what is wrong with the state of a key; None where its columns hold it."""
    if operation.state is None or state is None:
        return None
    try:
        written = written_states(operation.state, [state], lambda _: "")
        for field in operation.state.schema:
            field_array(operation, field, written[field.name], np.zeros(1, np.int64), lambda _: "")
    except OperatorError as problem:
        return problem
    return None


def unfit_state(what: str, shown_key: str, problem: BaseException) -> OperatorError:
    """Return the error for a state that its columns do not hold."""
    hint = "give each field of the state a value of its type"
    return OperatorError(f"{what} does not fit into the columns of state{shown_key}", got=failure_text(problem), hint=hint)


def field_array(
    operation: Processing,
    field: pa.Field,
    values: Sequence[Any] | npt.NDArray[Any],
    keys: Ints,
    shown_key: Callable[[int], str],
) -> pa.Array:
    """Return the values of a field of state as its column; `keys` are those that they are of, for the error."""
    try:
        return exact_array(values, field.type)
    except MISFITS as problem:
        for key, value in zip(keys.tolist(), values, strict=False):
            try:
                exact_array([value], field.type)
            except MISFITS:
                got, name = shown(value), operation.callbacks.name
                hint = f"give the field a type that holds it, or fix {name}"
                what = f"state.{field.name} is not a {field.type}{shown_key(key)}"
                raise OperatorError(what, got=got, hint=hint) from problem
        raise


def exact_array(values: Sequence[Any] | npt.NDArray[Any], type_: pa.DataType) -> pa.Array:
    """Return values as an array of a type; what the type does not hold is an error.

    Arrow cuts fractions off numbers of Python, and takes dates of NumPy for times.
    """
    if isinstance(values, np.ndarray) and values.dtype.kind in "mM":
        values = values.astype(f"{'timedelta64' if values.dtype.kind == 'm' else 'datetime64'}[us]")
    array = pa.array(values, type_)
    if pa.types.is_integer(type_) and not (isinstance(values, np.ndarray) and values.dtype != object):
        cut = next((value for value in values if isinstance(value, float) and not value.is_integer()), None)
        if cut is not None:
            raise pa.ArrowInvalid(f"{cut} is not a whole number")
    return array
