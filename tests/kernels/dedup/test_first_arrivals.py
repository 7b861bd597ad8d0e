"""Which rows pass, against a walk row by row: many rows that pass of one identity, close together, in and out of order."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.kernels import dedup as tested
from krishiv_py.kernels.dedup import first_arrivals

ROWS = st.lists(st.tuples(st.integers(0, 2), st.integers(-30, 30)), max_size=40)


def walked(rows: list[tuple[int, int]], held: list[tuple[int, int]], within: int) -> list[bool]:
    known, passed = list(held), []
    for id_, time in rows:
        passed.append(not any(i == id_ and abs(t - time) < within for i, t in known))
        if passed[-1]:
            known.append((id_, time))
    return passed


def spread(rows: list[tuple[int, int]], within: int) -> list[tuple[int, int]]:
    """Rows as state can hold them: of one identity none is close to another."""
    return [row for row, passed in zip(rows, walked(rows, [], within), strict=True) if passed]


def arrays(rows: list[tuple[int, int]]) -> tuple[np.ndarray, np.ndarray]:
    table = np.array(rows, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


@pytest.mark.parametrize("rounds", [0, 1, 4])
@given(rows=ROWS, held=ROWS, within=st.integers(1, 25), in_order=st.booleans())
def test_as_a_walk_row_by_row(
    rounds: int, rows: list[tuple[int, int]], held: list[tuple[int, int]], within: int, in_order: bool
) -> None:
    rows = sorted(rows, key=lambda r: r[1]) if in_order else rows
    known = spread(held, within)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tested, "ROUNDS", rounds)
        actual = first_arrivals(*arrays(rows), *arrays(known), within)
    assert actual.tolist() == walked(rows, known, within)


def test_times_at_the_ends_of_the_calendar() -> None:
    far = 250_000_000_000_000_000
    rows = [(0, far), (0, -far), (0, 0), (0, far - 5), (1, far)] * 3
    for within in (5, 6, far):
        assert first_arrivals(*arrays(rows), *arrays([]), within).tolist() == walked(rows, [], within)
