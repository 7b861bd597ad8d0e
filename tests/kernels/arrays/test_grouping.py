"""Group numbers: equal keys, and only those, share one, whatever their type and spread."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.arrays import grouping
from krishiv_py.arrays.grouping import buckets, group, key_hashes
from krishiv_py.arrays.types import pick

NEAR = st.integers(-3, 3)
FAR = st.one_of(NEAR, st.sampled_from([-(2**63), 2**63 - 1, 10**12]))
INTS = st.one_of(st.lists(NEAR, max_size=30), st.lists(FAR, max_size=30), st.lists(st.none() | NEAR, max_size=30))
TYPES = st.sampled_from([pa.int64(), pa.string()])


@given(INTS, TYPES, st.data())
def test_equal_keys_share_a_number(values: list[int | None], type_: pa.DataType, data: st.DataObject) -> None:
    other = data.draw(st.lists(NEAR, min_size=len(values), max_size=len(values)))
    keys = pa.array([v if v is None or type_ == pa.int64() else str(v) for v in values], type_)
    groups = group([pa.chunked_array([keys]), np.array(other, np.int64)], len(values))
    rows = list(zip(values, other, strict=True))
    assert groups.n == len(set(rows)) == len(set(groups.ids.tolist()))
    assert [rows[groups.first[g]] for g in groups.ids] == rows
    assert all(rows.index(rows[f]) == f for f in groups.first.tolist())


@given(st.lists(FAR, min_size=1, max_size=30), st.booleans())
def test_few_keys_have_the_numbers_that_many_have(values: list[int], two: bool) -> None:
    keys = pa.array(values)
    columns = [keys, np.array([value % 3 for value in values])] if two else [keys]
    few = group(columns, len(values))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(grouping, "_FEW", 0)
        many = group(columns, len(values))
    assert (few.ids.tolist(), few.first.tolist(), few.n) == (many.ids.tolist(), many.first.tolist(), many.n)


@given(st.lists(FAR | st.none(), min_size=1, max_size=20), st.data())
def test_numbers_are_picked_as_others_are(values: list[int | None], data: st.DataObject) -> None:
    wanted = np.array(data.draw(st.lists(st.integers(0, len(values) - 1), max_size=20)), np.int64)
    column = pa.array([0, *values], pa.int64()).slice(1)
    assert pick(column, wanted).equals(pick(column, pa.array(wanted)))


@pytest.mark.parametrize("type_", [pa.int8(), pa.int16(), pa.int32(), pa.int64()])
def test_narrow_integers_do_not_overflow(type_: Any) -> None:
    low, high = {pa.int8(): (-128, 127)}.get(type_, (-200, 200))
    values = [*range(low, high + 1), low, high]
    groups = group([pa.array(values, type_)], len(values))
    assert groups.n == high - low + 1
    assert groups.ids[-2] == groups.ids[0] and groups.ids[-1] == groups.ids[high - low]


@given(
    st.lists(st.none() | FAR, min_size=1, max_size=60),
    st.integers(1, 9),
    st.integers(1, 70),
    st.sampled_from([pa.int64(), pa.string()]),
)
def test_a_bucket_is_the_remainder_of_the_hash_in_whatever_blocks(
    values: list[int | None], n: int, block: int, type_: pa.DataType
) -> None:
    keys = pa.array([v if v is None or type_ == pa.int64() else str(v) for v in values], type_)
    columns: list[Any] = [pa.chunked_array([keys[: len(keys) // 2], keys[len(keys) // 2 :]]), pa.array(range(len(keys)))]
    hashes = [int(key_hashes([column.slice(i, 1) for column in columns], 1).view(np.uint64)[0]) for i in range(len(keys))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(grouping, "_HASHED_ROWS", block)
        assert key_hashes(columns, len(keys)).view(np.uint64).tolist() == hashes
        assert buckets(columns, len(keys), n).tolist() == [one % n for one in hashes]


@given(
    st.lists(st.integers(-40, 40), min_size=1, max_size=30),
    st.sampled_from([1, 1_000_000, 60_000_000, 1 << 40, 1 << 56]),
    st.integers(-(10**15), 10**15),
    st.none() | st.integers(-(10**9), 10**9),
    st.sampled_from([1, 2, 40]),
    st.booleans(),
)
def test_numbers_on_a_grid_are_numbered_in_their_order(
    places: list[int], step: int, origin: int, extra: int | None, times: int, other: bool
) -> None:
    values = np.array(places * times, np.int64) * step + origin
    values = values if extra is None else np.append(values, origin + extra)
    _, first, ids = np.unique(values, return_index=True, return_inverse=True)
    for column, many in ((values, 4_096), (pa.array(values), 4_096), (pa.array(values), 1)):
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(grouping, "_MANY", many)
            groups = group([column, np.zeros(len(values), np.int64)] if other else [column], len(values))
        order = np.argsort(values[groups.first], kind="stable") if isinstance(column, pa.Array) else np.arange(groups.n)
        assert groups.n == len(first) and np.argsort(order)[groups.ids].tolist() == ids.tolist()
        assert groups.first[order].tolist() == first.tolist()


def test_grids_far_apart_have_no_table() -> None:
    values = np.array([0, 10**6, 10**15, 10**15 + 10**6] * 100, np.int64)
    keys = np.arange(400, dtype=np.int64) * 3
    groups = group([values, keys], 400)
    assert groups.n == 400
    assert groups.first[groups.ids].tolist() == list(range(400))
    assert grouping._on_grid(values, 0, int(values.max()), 10**6) is None
    assert grouping._on_grid(values, 0, int(values.max()), 10**10) is not None
