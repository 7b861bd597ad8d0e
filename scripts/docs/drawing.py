"""What every picture of the docs is drawn with: an SVG file in the making, a line of time, and the colours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from xml.etree import ElementTree as ET

import attrs

WIDTH, LEFT, RIGHT = 420.0, 14.0, 14.0
_HALF_LETTER = 0.27
"""Of a letter half its width over the size of the text, about."""
STYLE = (
    ".ink{fill:#222;stroke:none;font:13px sans-serif}.line{stroke:#222;fill:none}.page{fill:#fff}"
    "@media(prefers-color-scheme:dark){.ink{fill:#ddd}.line{stroke:#ddd}.page{fill:#1e2129}}"
)
ROW, BAR, LATE, OTHER = "#0088cc", "#009e73", "#d55e00", "#a06fc0"


@attrs.define
class Picture:
    """An SVG file in the making. It is as wide as a telephone, and text and lines follow the colours of the page."""

    height: float = 0.0
    parts: list[ET.Element] = attrs.field(factory=list)
    style: str = ""

    def put(self, tag: str, text: str | None = None, /, **more: object) -> None:
        """Add an element; an underscore in a name of an attribute is a hyphen."""
        used = {name.rstrip("_").replace("_", "-"): value for name, value in more.items() if value != ""}
        named = {name: f"{value:g}" if isinstance(value, float) else str(value) for name, value in used.items()}
        element = ET.Element(tag, named)
        element.text = text
        self.parts.append(element)

    def write(self, text: str, x: float, y: float, anchor: str = "middle", fill: str | None = None, size: int = 13) -> None:
        """Add a text in the colour of the page, or in `fill`; one in the middle of a place near an edge moves off it."""
        half = len(text) * size * _HALF_LETTER
        if anchor == "middle":
            x = min(max(x, half), WIDTH - half)
        styles = ([f"font-size:{size}px"] if size != 13 else []) + ([f"fill:{fill}"] if fill else [])
        self.put("text", text, x=x, y=y, text_anchor=anchor, class_="ink", style=";".join(styles))

    def line(self, x1: float, y1: float, x2: float, y2: float, **more: object) -> None:
        """Add a line in the colour of the page."""
        self.put("line", x1=x1, y1=y1, x2=x2, y2=y2, class_="line", **more)

    def svg(self) -> str:
        """Return the text of the file."""
        root = ET.Element(
            "svg", {"xmlns": "http://www.w3.org/2000/svg", "viewBox": f"0 0 {WIDTH:g} {self.height:g}", "class": "drawn"}
        )
        ET.SubElement(root, "style").text = STYLE + self.style
        root.extend(self.parts)
        ET.indent(root, "")
        return ET.tostring(root, encoding="unicode") + "\n"


@attrs.frozen
class Axis:
    """Time from `low` to `high` over the width of a picture."""

    low: float
    high: float
    left: float = LEFT
    right: float = WIDTH - RIGHT

    def x(self, value: float) -> float:
        """Return where a time is drawn."""
        return round(self.left + (value - self.low) / (self.high - self.low) * (self.right - self.left), 2)

    def draw(self, to: Picture, y: float, ticks: Sequence[float], label: Callable[[float], str]) -> None:
        """Draw the line of time with its ticks below."""
        to.line(self.left, y, self.right, y)
        for tick in ticks:
            to.line(self.x(tick), y, self.x(tick), y + 4)
            to.write(label(tick), self.x(tick), y + 17)
