"""Timers as columns are timers in a dictionary for each key."""

from __future__ import annotations

import random

import numpy as np
import pyarrow as pa
import pytest

from krishiv_py.kernels.ordered import NEVER
from krishiv_py.kernels.process.timer_table import TimerTable
from krishiv_py.plan.process_calls import filled
from tests.examples import scaled


def _same(table: TimerTable, wanted: list[dict[str, int]]) -> None:
    keys = np.arange(len(wanted))
    assert [table.of_key(key) for key in keys.tolist()] == wanted
    owners, names, times = table.all()
    pairs = zip(owners.tolist(), names.to_pylist(), times.tolist(), strict=True)
    assert sorted(pairs) == sorted((key, name, us) for key, due in enumerate(wanted) for name, us in due.items())
    due, at = table.soonest(keys)
    first = [min(((us, name) for name, us in each.items()), default=(NEVER, None)) for each in wanted]
    assert due.tolist() == [us for us, _ in first]
    assert table.names_at(at[at >= 0]).tolist() == [name for _, name in first if name is not None]


@pytest.mark.parametrize("seed", range(scaled(30)))
def test_timers_are_those_of_a_dictionary(seed: int) -> None:
    draw = random.Random(seed)
    n, texts = draw.randint(1, 6), [f"t{number}" for number in range(draw.choice([1, 3, 12]))]
    wanted = [{name: draw.randrange(20) for name in texts if draw.random() < 0.3} for _ in range(n)]
    stored = [(key, name, us) for key, due in enumerate(wanted) for name, us in due.items()]
    owners, names, times = ([each[part] for each in stored] for part in range(3))
    table = TimerTable(n, np.array(owners, np.int64), pa.array(names, pa.string()), np.array(times, np.int64))
    _same(table, wanted)
    for _ in range(40):
        keys = np.array(draw.sample(range(n), draw.randint(0, n)), np.int64)
        each = [draw.choice(texts) for _ in keys]
        name = draw.choice(texts) if draw.random() < 0.5 else filled(each)
        named = [name] * len(keys) if isinstance(name, str) else each
        action = draw.choice(["set", "set", "set", "cancel", "clear", "fire"])
        if action == "set":
            due = np.array([draw.randrange(20) for _ in keys], np.int64)
            table.set(keys, name, due)
            for key, text, us in zip(keys.tolist(), named, due.tolist(), strict=True):
                wanted[key][text] = us
        elif action == "cancel":
            table.cancel(keys, name)
            for key, text in zip(keys.tolist(), named, strict=True):
                wanted[key].pop(text, None)
        elif action == "clear":
            table.clear(keys)
            for key in keys.tolist():
                wanted[key].clear()
        else:
            _, at = table.soonest(keys)
            table.remove(at[at >= 0])
            for key in keys.tolist():
                wanted[key].pop(min(wanted[key], key=lambda t, due=wanted[key]: (due[t], t), default=""), None)  # type: ignore[misc]
        _same(table, wanted)


def test_places_follow_what_is_set_and_not_how_many_names_there_were() -> None:
    table = TimerTable(2, np.empty(0, np.int64), pa.array([], pa.string()), np.empty(0, np.int64))
    for number in range(1_000):
        table.set(np.array([0]), f"order {number}", np.array([number]))
        _, at = table.soonest(np.array([0]))
        table.remove(at)
    assert len(table._due) < 4
