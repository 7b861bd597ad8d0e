"""Time of micro-batches by their parts: a bar of parts with numbers, as HTML, and as text for terminals and files.

Times come as a dict for each batch: seconds by the kind of part. The same HTML is in the page of a session and in notebooks,
so styles are in the elements. A part is named in the table below the bars, so its colour is a help only.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final, TypeAlias

import attrs

from krishiv_py.display.html import shown

Times: TypeAlias = "Sequence[Mapping[str, float]]"
"""Seconds by kind of part, of the last batches, oldest first."""

_KINDS: Final = {
    "plan": ("#4b5563", "note what the batch takes"),
    "read": ("#2563eb", "read the sources"),
    "pack": ("#0f766e", "check, convert and sort rows by key"),
    "compute": ("#b45309", "run the Spark job: read, pack and step in its tasks"),
    "step": ("#b45309", "windows, joins and aggregates"),
    "publish": ("#7c3aed", "write results and late rows"),
    "commit": ("#be185d", "write the checkpoint"),
    "rest": ("#6b7280", "between the parts"),
}
_NAMED_FROM: Final = 0.16
"""The share of a bar from which on the name of a part has room in it."""
_SEEN_FROM: Final = 0.002
_CELLS: Final = 40


@attrs.frozen
class PartTimes:
    """A kind of part: seconds of the last batch, and of a batch on average."""

    kind: str
    last_s: float
    mean_s: float

    @property
    def colour(self) -> str:
        """The colour of its piece of a bar."""
        return _KINDS.get(self.kind, _KINDS["rest"])[0]


def parts_of(times: Times) -> tuple[PartTimes, ...]:
    """Return the parts of the last batches, in the order in which a batch runs them.

    Examples
    --------
    >>> for part in parts_of([{"step": 0.002, "rest": 0.0}, {"read": 0.001, "step": 0.004, "rest": 0.0}]):
    ...     print(part)
    PartTimes(kind='read', last_s=0.001, mean_s=0.0005)
    PartTimes(kind='step', last_s=0.004, mean_s=0.003)
    PartTimes(kind='rest', last_s=0.0, mean_s=0.0)
    """
    if not times:
        return ()
    ran = {kind for one in times for kind in one}
    known = [kind for kind in _KINDS if kind in ran]
    last = times[-1]
    return tuple(
        PartTimes(kind, last.get(kind, 0.0), sum(one.get(kind, 0.0) for one in times) / len(times))
        for kind in [*known, *sorted(ran - set(known))]
    )


def times_text(times: Times) -> str:
    """Return the parts of the last batch as text; empty where nothing is known.

    Examples
    --------
    >>> times_text([{"read": 0.001, "step": 0.0045, "rest": 0.0}])
    'read 1.0 ms, step 4.5 ms'
    """
    parts = parts_of(times)
    whole = sum(part.last_s for part in parts)
    return ", ".join(f"{part.kind} {milliseconds(part.last_s)}" for part in parts if part.last_s > _SEEN_FROM * whole)


def cells(parts: Sequence[PartTimes], most: int = _CELLS) -> list[tuple[PartTimes, int]]:
    """Return how many cells of a bar in a terminal each part of the last batch has, so that all have the right sum.

    The bar has 40 cells, or `most` of them where that is less.

    Examples
    --------
    >>> [n for _, n in cells(parts_of([{"read": 0.001, "step": 0.002, "rest": 0.0}]))]
    [13, 27, 0]
    """
    whole = sum(part.last_s for part in parts)
    taken, done_s = 0, 0.0
    lengths = []
    for part in parts:
        done_s += part.last_s
        upto = round(min(most, _CELLS) * done_s / whole) if whole > 0 else 0
        lengths.append((part, upto - taken))
        taken = upto
    return lengths


def times_html(times: Times) -> str:
    """Return a bar of the last batch and one of the mean, with a table of their numbers; empty where nothing is known."""
    parts = parts_of(times)
    last_s, mean_s = sum(part.last_s for part in parts), sum(part.mean_s for part in parts)
    if max(last_s, mean_s) <= 0:
        return ""
    longest = max(last_s, mean_s)
    many = f"mean of {len(times)}"
    bars = _bar("last batch", [(p, p.last_s) for p in parts], longest)
    if len(times) > 1:
        bars += _bar(many, [(p, p.mean_s) for p in parts], longest)
    head = "".join(
        f"<th style='{_CELL}{_RIGHT if n else ''}'>{name}</th>" for n, name in enumerate(["part", "last", many, "share"])
    )
    lines = "".join(
        f"<tr><td style='{_CELL}' title='{shown(_KINDS.get(p.kind, _KINDS['rest'])[1])}'>"
        f"<i style='{_SWATCH};background:{p.colour}'></i>{shown(p.kind)}</td>"
        + "".join(
            f"<td style='{_CELL}{_RIGHT}'>{text}</td>"
            for text in (milliseconds(p.last_s), milliseconds(p.mean_s), f"{100 * p.mean_s / mean_s if mean_s else 0:.0f} %")
        )
        + "</tr>"
        for p in parts
    )
    return f"<div style='max-width:34em'>{bars}<table style='{_TABLE}'><tr>{head}</tr>{lines}</table></div>"


_CELL: Final = "padding:.1em 0;white-space:nowrap;text-align:left"
_RIGHT: Final = ";text-align:right;padding-left:1em"
_TABLE: Final = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:.4em 0 0;width:100%;font-size:.9em"
_SWATCH: Final = "display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.5em"
_LABEL: Final = "display:flex;justify-content:space-between;font-size:.85em;margin-top:.4em"
_BAR: Final = "display:flex;height:1.5em;gap:1px;border-radius:4px;overflow:hidden"
_PIECE: Final = "color:#fff;font-size:.8em;line-height:1.9;text-align:center;overflow:hidden;white-space:nowrap"


def _bar(name: str, pieces: Sequence[tuple[PartTimes, float]], longest_s: float) -> str:
    """Return one bar; its length compares with that of `longest_s`."""
    whole = sum(seconds for _, seconds in pieces)
    drawn = "".join(
        f"<span style='{_PIECE};background:{part.colour};flex:{seconds / whole:.4f} 1 0' title='{shown(part.kind)}'>"
        f"{shown(part.kind) if seconds >= _NAMED_FROM * longest_s else ''}</span>"
        for part, seconds in pieces
        if whole and seconds > _SEEN_FROM * whole
    )
    label = ", ".join(f"{part.kind} {milliseconds(seconds)}" for part, seconds in pieces)
    return (
        f"<div style='{_LABEL}'><span>{shown(name)}</span><b>{milliseconds(whole)}</b></div>"
        f"<div role='img' aria-label='{shown(label)}' style='{_BAR};width:{max(100 * whole / longest_s, 1):.1f}%'>{drawn}</div>"
    )


def milliseconds(seconds: float) -> str:
    """Return a time in ms, with as many digits as one reads.

    Examples
    --------
    >>> milliseconds(0.00005), milliseconds(0.0123), milliseconds(1.5)
    ('0.05 ms', '12.3 ms', '1,500 ms')
    """
    ms = 1_000 * seconds
    return f"{ms:.2f} ms" if ms < 1 else f"{ms:.1f} ms" if ms < 100 else f"{ms:,.0f} ms"
