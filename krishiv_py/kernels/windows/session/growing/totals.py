"""What is kept of sessions with triggers that only grow and join: a log by key of totals, of results that stand, and one mark.

============  ==========  =========================================================================================
kind ``z``    ``__t, b``  meaning
============  ==========  =========================================================================================
SESSION       bounds      an open session: number ``n``, rows ``r``, of which ``u`` are told by no firing, firings so far
                          ``o``, whether its end was passed ``d``, and its partials; discarding, those of the ``u`` rows
STANDING      bounds      a result of session ``n`` that stands and that rows came after; without such rows what stands is
                          the session itself
MARK          q, q        the key is looked at again when the watermark reaches ``q``
============  ==========  =========================================================================================

Results that stand are told apart by ``i``, in the order in which they were written. A key that is looked at is written anew,
so of its entries only those of the last step (``s``) count.
"""

from __future__ import annotations

from typing import Final

import attrs
import numpy as np
import pyarrow as pa

from krishiv_py.kernels.arrays.sorting import stable_order
from krishiv_py.kernels.arrays.types import Ints
from krishiv_py.kernels.columns.layout import TIME, Layout
from krishiv_py.kernels.state.keyed_log import HASH
from krishiv_py.kernels.windows.session.book import DONE, MARK, OFTEN, STANDING, UNDER, newest
from krishiv_py.kernels.windows.session.growing.firings import Sessions, value_schema
from krishiv_py.kernels.windows.session.rows import END, KIND, SEQ
from krishiv_py.plan.durations import END_OF_TIME

SESSION: Final = 0
ID: Final = "n"
ROWS: Final = "r"
PENDING: Final = "u"
_NUMBERS: Final = (HASH, SEQ, ID, TIME, END, ROWS, PENDING, OFTEN, UNDER)


@attrs.frozen(eq=False)
class Page:
    """Living entries of some keys: sessions by number, results that stand in the order they were written, a mark a key."""

    sessions: pa.Table
    standing: pa.Table
    marks: pa.Table


class Totals:
    """Makes, sifts and merges entries; `values` says whether results that stand are kept with what they hold."""

    def __init__(self, layout: Layout, *, values: bool) -> None:
        self.layout = layout
        self.partials = pa.schema(layout.partial_fields)
        self.values = value_schema(layout) if values else pa.schema([])
        numbers = [pa.field(n, pa.int64()) for n in _NUMBERS]
        flags = [pa.field(KIND, pa.int8()), pa.field(DONE, pa.bool_())]
        self.schema = pa.schema([*numbers, *flags, *layout.key_fields, *self.partials, *self.values])

    def sessions(self, keys: pa.Table, numbers: dict[str, Ints], s: Sessions, seq: int) -> pa.Table:
        """Entries of sessions; `keys` has hash and key of each."""
        content = s.partials.take(pa.array(s.at, mask=s.at < 0))
        columns = {PENDING: pa.array(s.pending), OFTEN: pa.array(s.often), DONE: pa.array(s.done)}
        columns |= {name: pa.array(values) for name, values in numbers.items()}
        columns |= {name: content[name] for name in self.partials.names}
        return self._entries(keys, columns, SESSION, seq)

    def standing(self, keys: pa.Table, numbers: dict[str, Ints], values: pa.Table, seq: int) -> pa.Table:
        """Entries of results that stand."""
        columns = {name: pa.array(given) for name, given in numbers.items()}
        columns |= {name: values[name] for name in self.values.names}
        return self._entries(keys, columns, STANDING, seq)

    def marks(self, keys: pa.Table, moments: Ints, seq: int) -> pa.Table:
        """Marks of keys."""
        return self._entries(keys, {TIME: pa.array(moments), END: pa.array(moments)}, MARK, seq)

    def page(self, entries: pa.Table) -> Page:
        """Sift the entries of some keys."""
        alive = entries.filter(pa.array(newest(self.layout, entries)))
        kinds = alive[KIND].to_numpy()
        sessions, standing = alive.filter(pa.array(kinds == SESSION)), alive.filter(pa.array(kinds == STANDING))
        sessions = sessions.take(pa.array(stable_order(sessions[ID].to_numpy())))
        standing = standing.take(pa.array(stable_order(standing[UNDER].to_numpy())))
        return Page(sessions, standing, alive.filter(pa.array(kinds == MARK)))

    def compact(self, entries: pa.Table, oldest: bool) -> pa.Table:
        """Entries of the last step of each key; a bare mark goes when nothing older remains for it to replace."""
        kept = newest(self.layout, entries)
        if oldest:
            kept &= (entries[KIND].to_numpy() != MARK) | (entries[TIME].to_numpy() != END_OF_TIME)
        return entries.filter(pa.array(kept))

    def _entries(self, keys: pa.Table, columns: dict[str, pa.Array], kind: int, seq: int) -> pa.Table:
        columns = {name: keys[name] for name in (HASH, *self.layout.key_names)} | columns
        plain = {SEQ: seq, KIND: kind, ID: -1, ROWS: 0, PENDING: 0, OFTEN: 0, UNDER: -1, DONE: False}
        arrays = [
            columns[f.name] if f.name in columns else pa.repeat(pa.scalar(plain.get(f.name), f.type), keys.num_rows)
            for f in self.schema
        ]
        return pa.Table.from_arrays(arrays, schema=self.schema)


def session_arrays(entries: pa.Table, partials: pa.Schema, *, discarding: bool) -> Sessions:
    """What the entries of sessions say."""
    pending = entries[PENDING].to_numpy()
    at = np.arange(entries.num_rows)
    return Sessions(
        pending,
        entries[OFTEN].to_numpy(),
        np.array(entries[DONE].to_numpy(), np.bool_),
        entries.select(partials.names),
        np.where(pending > 0, at, -1) if discarding else at,
    )
