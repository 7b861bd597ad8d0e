"""Maps in pages hold what a dictionary holds, over any steps and stores, and touch few pages."""

from __future__ import annotations

import copy
import json
from typing import Any

import attrs
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.kernels.state import store
from krishiv_py.kernels.state.store import Bucket, MemoryStore, Runs, SortedMap


@attrs.define
class Kept:
    """Pages as text."""

    held: dict[str, str] = attrs.field(factory=dict)
    calls: int = 0

    def read(self, name: str) -> Any:
        self.calls += 1
        return json.loads(self.held[name])

    def write(self, name: str, note: Any) -> None:
        self.calls += 1
        self.held[name] = json.dumps(note)

    def remove(self, name: str) -> None:
        self.calls += 1
        del self.held[name]


def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "MOST", 3)
    monkeypatch.setattr(store, "_FULL", 2)


def again(actual: SortedMap[int], pages: Kept | None) -> SortedMap[int]:
    """As the next step has it."""
    return SortedMap("m", int, pages, json.loads(json.dumps(actual.stored())))


keys = st.integers(-30, 30)
actions = st.lists(st.tuples(st.sampled_from(["set", "set", "set", "pop", "pop", "store", "copy"]), keys), max_size=150)


@pytest.mark.parametrize("paged", [True, False])
@given(actions, keys, keys)
def test_a_map_is_a_dictionary_in_order(paged: bool, given_actions: list[tuple[str, int]], low: int, high: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        small(patch)
        pages = Kept() if paged else None
        actual, plain = SortedMap("m", int, pages), dict[int, int]()
        for number, (what, key) in enumerate(given_actions):
            if what == "set":
                actual[key] = plain[key] = number
            elif what == "pop":
                assert actual.pop(key, None) == plain.pop(key, None)
            elif what == "store":
                actual = again(actual, pages)
            else:
                before = None if pages is None else dict(pages.held)
                copied = copy.deepcopy(actual)
                copied[key] = -1
                copied.remove(list(copied)[::2])
                assert pages is None or pages.held == before
        order = sorted(plain)
        for one in (actual, again(actual, pages)):
            assert list(one) == order and len(one) == len(order)
            assert list(one.values()) == [plain[k] for k in order]
            assert one.between(low, high) == [k for k in order if low <= k < high]
            assert one.between(low, None, most=2) == [k for k in order if low <= k][:2]
            assert one.before(low) == max((k for k in order if k < low), default=None)
            assert one.after(low) == min((k for k in order if k > low), default=None)
            assert (low in one, one.get(low)) == (low in plain, plain.get(low))
        if pages is not None:
            last = again(actual, pages)
            last.remove(list(last))
            assert last.stored() == {} and pages.held == {}


def test_a_key_that_is_not_there_is_an_error() -> None:
    actual = SortedMap("m", int, None, {"5": 1})
    for key in (4, 5, 6):
        if key != 5:
            with pytest.raises(KeyError):
                _ = actual[key]
            with pytest.raises(KeyError):
                del actual[key]
    assert actual[5] == 1


@pytest.mark.parametrize("n", [100, 100_000])
def test_a_change_touches_as_many_pages_as_there_are_levels(n: int) -> None:
    pages = Kept()
    actual = again(SortedMap("m", int, pages, {str(k): [k] for k in range(n)}), pages)
    for key in (n // 2, n + 7, 0, n // 3):
        pages.calls = 0
        actual[key] = [1]
        assert actual.before(key) is not None or key == 0
        root = actual.stored()
        assert len(json.dumps(root)) <= 8_000
        assert pages.calls <= 10
        actual = again(actual, pages)


@given(st.lists(st.tuples(st.booleans(), st.lists(st.integers(0, 40), max_size=12)), max_size=12), st.integers(1, 5))
def test_windows_are_counted_by_what_has_come_and_gone(changes: list[tuple[bool, list[int]]], width: int) -> None:
    """A run lies in `width` windows in a row."""

    def windows(runs: list[int]) -> int:
        assert runs == sorted(set(runs))
        return len({w for run in runs for w in range(run, run + width)})

    bucket = Bucket(MemoryStore())
    table = pa.table({"x": [1]})
    runs = Runs(bucket, "r", None)
    for again_, names in changes:
        runs = Runs(bucket, "r", None) if again_ else runs
        for name in names:
            runs.drop(name) if name in runs else runs.append(name, table)
        assert runs.counted(windows) == windows(runs.names())
        assert runs.total_rows() == len(runs)
