"""Orders as NumPy's stable sorts give them, whatever the spread of the numbers."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py.arrays.sorting import close_ranks, hash_order, numbered, order_in_runs, pair_order, sorted_unique, stable_order

SPREADS = {
    "close together": (-700, 700),
    "far from zero": (2**62, 2**62 + 1_500),
    "few values": (0, 3),
    "some": (-50, 50),
    "17 bits": (-(2**16), 2**16),
    "32 bits": (5, 2**32 + 4),
    "33 bits": (5, 2**32 + 5),
    "many": (-(10**12), 10**12),
    "all": (-(2**63), 2**63 - 1),
}


@pytest.mark.parametrize("spread", SPREADS)
@given(n=st.sampled_from([0, 1, 63, 64, 1_000]), seed=st.integers(0, 2**32 - 1))
def test_orders_are_those_of_numpy(spread: str, n: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = SPREADS[spread]
    major, minor = (rng.integers(low, high, n, endpoint=True) for _ in range(2))
    assert stable_order(major).tolist() == np.argsort(major, kind="stable").tolist()
    repeated = np.repeat(major, 2)[rng.permutation(2 * n)]
    assert hash_order(major).tolist() == np.argsort(major, kind="stable").tolist()
    assert hash_order(repeated).tolist() == np.argsort(repeated, kind="stable").tolist()
    assert stable_order(repeated).tolist() == np.argsort(repeated, kind="stable").tolist()
    assert pair_order(major, minor).tolist() == np.lexsort((minor, major)).tolist()
    assert sorted_unique(repeated).tolist() == sorted(set(major.tolist()))
    known, first, ids = np.unique(repeated, return_index=True, return_inverse=True)
    assert [actual.tolist() for actual in numbered(repeated)] == [ids.tolist(), first.tolist()]
    close = close_ranks(repeated)
    assert (close is not None) == (len(repeated) >= 64 and int(repeated.max()) - int(repeated.min()) < 4 * len(repeated))
    assert close is None or [actual.tolist() for actual in close] == [ids.tolist(), known.tolist()]


@pytest.mark.parametrize("spread", SPREADS)
@given(n=st.sampled_from([1, 63, 64, 1_000]), runs=st.sampled_from([1, 5, 10_000]), seed=st.integers(0, 2**32 - 1))
def test_rows_in_runs_are_in_the_order_of_their_hashes(spread: str, n: int, runs: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    low, high = SPREADS[spread]
    run = np.unique(np.sort(rng.integers(0, runs, n)), return_inverse=True)[1]
    hashes = rng.integers(low, high, n, endpoint=True)[rng.integers(0, n, n)]  # some of them twice
    then = rng.integers(0, 3, n), rng.permutation(n)
    assert order_in_runs(run, hashes, *then).tolist() == np.lexsort((*then[::-1], hashes, run)).tolist()
