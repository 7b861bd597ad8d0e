"""The lines of a change log: what stood is withdrawn right before what takes its place (SEMANTICS §5.4)."""

from __future__ import annotations

from typing import TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from krishiv_py.arrays.sorting import pair_order, stable_order
from krishiv_py.arrays.types import Ints, Mask

Texts: TypeAlias = npt.NDArray[np.str_]


@attrs.frozen(eq=False)
class Lines:
    """Lines in the order in which they are written.

    Attributes
    ----------
    result : ndarray of int64
        Number of the result each tells of.
    cause : ndarray of int64
        Number of the result whose firing wrote it; its own for one that is new.
    op : str or ndarray of str
        ``+I`` or, after a result of the same window, ``+U``; ``-U`` or, where the window has other bounds now, ``-D``.
    """

    result: Ints
    cause: Ints
    op: str | Texts


def compose(fires: Ints, gone: Ints, by: Ints, order: tuple[Ints, ...] = (), bounds: tuple[Ints, Ints] | None = None) -> Lines:
    """The lines of some firings.

    Parameters
    ----------
    fires : ndarray of int64
        Numbers of the results that are written, ascending.
    gone, by : ndarray of int64
        Numbers of the results that are withdrawn, and of the one that takes the place of each.
    order : tuple of ndarray
        What firings are ordered by, the weightiest last, by number of the result; then they go by number.
    bounds : tuple of ndarray, optional
        Start and end of the window by number of the result; None where windows never change their bounds.
    """
    if not len(gone):
        at = fires[_ordered(order, fires)] if order else fires
        return Lines(at, at, "+I")
    same = np.ones(len(gone), np.bool_)
    if bounds is not None:
        same = (bounds[0][gone] == bounds[0][by]) & (bounds[1][gone] == bounds[1][by])
    again = np.isin(fires, by[same])
    result, cause = np.concatenate([gone, fires]), np.concatenate([by, fires])
    op = np.concatenate([np.where(same, "-U", "-D"), renewed(again)])
    adds = np.arange(len(cause)) >= len(gone)
    line = np.lexsort((adds, cause, *(key[cause] for key in order))) if order else stable_order(2 * cause + adds)
    return Lines(result[line], cause[line], op[line])


def renewed(again: Mask) -> Texts:
    """The op of results that are written, some of them in place of one of the same window."""
    return np.where(again, "+U", "+I")


def _ordered(order: tuple[Ints, ...], fires: Ints) -> Ints:
    keys = [key[fires] for key in order]
    return pair_order(keys[1], keys[0]) if len(keys) == 2 else np.lexsort(keys)
