"""Rows are split by a number as one mask for each number would split them."""

from __future__ import annotations

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.arrays.ranges import split


@pytest.mark.parametrize("stretch", [1, 7, 63, 64, 65, 400])
@given(
    n=st.sampled_from([0, 1, 2, 500, 3_000]),
    numbers=st.integers(1, 9),
    pieces=st.integers(1, 4),
    seed=st.integers(0, 2**32 - 1),
)
def test_every_number_has_its_rows_in_their_order(stretch: int, n: int, numbers: int, pieces: int, seed: int) -> None:
    dice = np.random.default_rng(seed)
    of_row = np.repeat(dice.integers(-3, numbers, n // stretch + 1), stretch)[:n]
    places = pa.array(np.arange(n))
    texts = pa.array([None if place % 5 == 0 else f"row {place}" for place in range(n)], pa.string())
    cuts = [0, *sorted(dice.integers(0, n + 1, pieces - 1).tolist()), n]
    whole = pa.table({"place": places, "text": texts})
    table = pa.concat_tables([whole.slice(low, high - low) for low, high in itertools.pairwise(cuts)])
    given_rows = dict(split(table, of_row))
    assert list(given_rows) == sorted(set(of_row.tolist()))
    for number, rows in given_rows.items():
        assert rows.to_pylist() == whole.filter(pa.array(of_row == number)).to_pylist()
