"""Sources, stages and outputs of a query as a drawing: boxes in columns, from the left to the right."""

from __future__ import annotations

from typing import Final

import attrs

from krishiv_py.display.html import shown

_WIDE: Final = 200
_HIGH: Final = 58
_ACROSS: Final = 46
_DOWN: Final = 16
_EDGE: Final = 2
_LONGEST: Final = 27
"""Letters that fit into a box."""


@attrs.frozen
class Box:
    """A source, a stage or an output.

    Attributes
    ----------
    kind : {"source", "stage", "output"}
        What it is.
    name, detail, numbers : str
        Its three lines.
    inputs : tuple of int
        The boxes that rows come from, by their place in the list; they stand before it.
    """

    kind: str
    name: str
    detail: str = ""
    numbers: str = ""
    inputs: tuple[int, ...] = ()


def drawn(boxes: tuple[Box, ...]) -> str:
    """Return the drawing as SVG; its colours come from the page.

    Examples
    --------
    >>> "per minute" in drawn((Box("source", "events"), Box("stage", "per minute", inputs=(0,))))
    True
    """
    columns: list[int] = []
    for box in boxes:
        columns.append(1 + max((columns[n] for n in box.inputs), default=-1))
    last = max((c for c, box in zip(columns, boxes, strict=True) if box.kind == "stage"), default=0)
    columns = [last + 1 if box.kind == "output" else c for c, box in zip(columns, boxes, strict=True)]
    used = [0] * (max(columns) + 1)
    places: list[tuple[int, int]] = []
    for box, column in zip(boxes, columns, strict=True):
        # a box lies below all that an arrow to it passes: the arrow bends in the gap after its beginning, and then is level
        passed = min((columns[n] for n in box.inputs), default=column - 1) + 1
        row = max(used[passed : column + 1])
        places.append((_EDGE + column * (_WIDE + _ACROSS), _EDGE + row * (_HIGH + _DOWN)))
        used[passed : column + 1] = [row + 1] * (column + 1 - passed)
    wide = max(x for x, _ in places) + _WIDE + _EDGE
    high = max(y for _, y in places) + _HIGH + _EDGE
    arrows = "".join(_arrow(places[n], places[number]) for number, box in enumerate(boxes) for n in box.inputs)
    label = ", ".join(f"{box.kind} {box.name}" for box in boxes)
    return (
        f"<svg class='graph' width='{wide}' height='{high}' viewBox='0 0 {wide} {high}' role='img' aria-label='{shown(label)}'>"
        + arrows
        + "".join(_box(box, *place) for box, place in zip(boxes, places, strict=True))
        + "</svg>"
    )


def _box(box: Box, x: int, y: int) -> str:
    lines = [(line, style) for line, style in ((box.name, "name"), (box.detail, "soft"), (box.numbers, "soft")) if line]
    text = "".join(
        f"<text x='{x + 10}' y='{y + 18 + 17 * n}' class='{style}'>{shown(_cut(line))}</text>"
        for n, (line, style) in enumerate(lines)
    )
    whole = shown(", ".join(line for line, _ in lines))
    frame = f"<rect class='{box.kind}' x='{x}' y='{y}' width='{_WIDE}' height='{_HIGH}' rx='6'/>"
    return f"<g><title>{whole}</title>{frame}{text}</g>"


def _cut(line: str) -> str:
    return line if len(line) <= _LONGEST else line[: _LONGEST - 1] + "…"


def _arrow(one: tuple[int, int], other: tuple[int, int]) -> str:
    x, y, to_x, to_y = one[0] + _WIDE, one[1] + _HIGH // 2, other[0], other[1] + _HIGH // 2
    bend = x + _ACROSS
    middle = x + _ACROSS // 2
    return (
        f"<path class='arrow' d='M{x} {y}C{middle} {y} {middle} {to_y} {bend - 6} {to_y}H{to_x - 6}'/>"
        f"<path class='head' d='M{to_x - 7} {to_y - 4}L{to_x} {to_y}L{to_x - 7} {to_y + 4}Z'/>"
    )
