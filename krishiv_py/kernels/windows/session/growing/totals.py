"""What is kept of sessions with triggers that only grow and join: their totals (:mod:`..book`).

A session has a number ``n``, rows ``r``, of which ``u`` are told by no firing, firings so far ``o``, whether its end was passed
``d``, where a user's trigger is asked the newest event time ``m``, and its partials; discarding, those of the ``u`` rows. A
result is kept if rows came to its session ``n`` after it; without such rows what stands is the session itself.
"""

from __future__ import annotations

from typing import Final

import numpy as np
import pyarrow as pa

from krishiv_py.arrays.picking import pick
from krishiv_py.arrays.types import Ints
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.growing.firings import Sessions, value_schema
from krishiv_py.kernels.windows.session.keyed_state import DONE, HELD, NUMBER, OFTEN, STANDING, UNDER, Book
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ
from krishiv_py.plan.durations import UNSET

ROWS: Final = "r"
PENDING: Final = "u"
NEWEST: Final = "m"
_PLAIN: Final = {HASH: 0, SEQ: 0, NUMBER: -1, TIME: 0, END: 0, ROWS: 0, PENDING: 0, OFTEN: 0, UNDER: -1, KIND: 0, DONE: False}


class Totals(Book):
    """Entries of sessions and of results.

    `values` says whether results that stand are kept with what they hold, `newest` whether sessions keep the newest event time.
    """

    def __init__(self, layout: Layout, *, values: bool, newest: bool = False) -> None:
        self.partials = pa.schema(layout.partial_fields)
        self.values = value_schema(layout) if values else pa.schema([])
        plain = {**_PLAIN, NEWEST: UNSET} if newest else _PLAIN
        super().__init__(layout, plain, [*self.partials, *self.values])

    def sessions(self, keys: pa.Table, numbers: dict[str, Ints], s: Sessions, seq: int) -> pa.Table:
        """Entries of sessions; `keys` has hash and key of each."""
        content = pick(s.partials, pa.array(s.at, mask=s.at < 0))
        told = {**numbers, PENDING: s.pending, OFTEN: s.often, DONE: s.done}
        return self.entries(keys, {**told, **{name: content[name] for name in self.partials.names}}, HELD, seq)

    def standing(self, keys: pa.Table, numbers: dict[str, Ints], values: pa.Table, seq: int) -> pa.Table:
        """Entries of results that stand."""
        return self.entries(keys, {**numbers, **{name: values[name] for name in self.values.names}}, STANDING, seq)


def session_arrays(entries: pa.Table, partials: pa.Schema, *, discarding: bool) -> Sessions:
    """Return what the entries of sessions say."""
    pending = entries[PENDING].to_numpy()
    at = np.arange(entries.num_rows)
    return Sessions(
        pending,
        entries[OFTEN].to_numpy(),
        np.array(entries[DONE].to_numpy(), np.bool_),
        entries.select(partials.names),
        np.where(pending > 0, at, -1) if discarding else at,
    )
