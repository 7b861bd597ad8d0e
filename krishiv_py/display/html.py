"""Plans and running queries as HTML for notebooks.

Styles stand in the elements, for notebook viewers strip style sheets; text inherits its colour and greys are half
transparent, so that light and dark pages both read well. Meaning is never in a colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from krishiv_py.plan.durations import show_instant
from krishiv_py.plan.running.progress import Progress
from krishiv_py.redaction import redacted

if TYPE_CHECKING:
    from krishiv_py.planner.explain import Checked, Explained

_CARD: Final = "max-width:64em;padding:.6em 1em;border:1px solid rgba(128,128,128,.45);border-radius:6px;line-height:1.5"
_HEAD: Final = "margin-bottom:.4em;font-weight:600"
_GRID: Final = "display:grid;grid-template-columns:max-content 1fr;gap:.15em 1.2em;margin:0"
_LABEL: Final = "margin:0;font-weight:400;opacity:.75;white-space:nowrap"
_VALUE: Final = "margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums"
_CODE: Final = "font-family:monospace"
_ASIDE: Final = "font-weight:400;opacity:.75"
_WARNING: Final = "margin:.5em 0 0;padding:.25em .8em;border-left:4px solid #d98200;background:rgba(255,165,0,.16)"
_FAILURE: Final = "margin:.5em 0 0;padding:.25em .8em;border-left:4px solid #d5322e;background:rgba(213,50,46,.14)"
_SIGNS: Final = {"running": ("●", "#1f9d55"), "stopped": ("■", "#808080"), "failed": ("✖", "#d5322e")}


def plan_html(plan: Explained) -> str:
    """The way of the rows from the source to the route they are computed by, its reason, and the warnings.

    Parameters
    ----------
    plan : Explained
        What :func:`krishiv_py.planner.explain.explain` gathered.

    Returns
    -------
    str
        One ``<div>``, complete in itself.
    """
    heart = plan.physical.steps[-2]
    steps = [(part.title if at == 0 else f"↓ {part.title}", _code(part.detail)) for at, part in enumerate(plan.flow)]
    route = "collect() and run(): one Spark job; start(): micro-batches" if heart.route == "bounded" else heart.route
    steps.append(("↓ route", f"<b>{shown(route)}</b>, because {shown(heart.why)}"))
    stages = [(s.name, f"{shown(s.what)}, because {shown(s.why)}") for s in plan.physical.steps]
    several = len(plan.checked) > 1
    return _card(
        f"<div style='{_HEAD}'>{_title(plan)}{f', {len(plan.checked)} stages' if several else ''}</div>",
        _grid(steps),
        *(f"<div style='{_WARNING}'><b>⚠ warning</b> {shown(w)}</div>" for w in plan.physical.warnings),
        "<details style='margin-top:.5em'><summary style='cursor:pointer'>Time, columns and physical stages</summary>",
        _grid([*(fact for stage in plan.checked for fact in _checked(stage)), *stages]),
        "</details>",
    )


_TITLES: Final = {"WindowAggregate": "Windowed aggregation", "Join": "Join", "Deduplicate": "Deduplication", "Rows": "Rows"}


def _title(plan: Explained) -> str:
    """Return the kind of the last stage, in words."""
    return next((_TITLES[part.title] for part in plan.logical if part.title in _TITLES), "Rows")


def _checked(stage: Checked) -> list[tuple[str, str]]:
    kept = [("keeps", _code("; ".join(stage.keeps)))] if stage.keeps else []
    return [("time", _code(stage.time)), ("reads", _code(", ".join(stage.reads))), *kept]


def query_html(name: str, status: str, progress: Progress, problem: str | None = None) -> str:
    """Where a running query stands.

    Parameters
    ----------
    name : str
        The query's name.
    status : str
        ``running``, ``stopped`` or ``failed``.
    progress : Progress
        Its watermark, counts and state.
    problem : str, optional
        What made it fail.

    Returns
    -------
    str
        One ``<div>``, complete in itself.

    Examples
    --------
    >>> page = query_html("per minute", "running", Progress(batch_id=3, rows=1_200, late={"late": 7}))
    >>> "per minute" in page, "<b>7</b> late" in page
    (True, True)
    """
    sign, colour = _SIGNS.get(status, ("?", "#808080"))
    rows = [
        ("batch", "none yet" if progress.batch_id < 0 else _number(progress.batch_id)),
        ("watermark", shown(progress.watermark)),
        *((f"↳ {n}", shown(show_instant(us))) for n, us in progress.source_watermarks_us.items()),
        ("rows", _number(progress.rows)),
        ("late rows", _late(progress.late)),
        ("open windows", _number(progress.open_windows)),
        ("state", _bytes(progress.state_bytes)),
        ("firings", _number(progress.firings)),
    ]
    failed = [] if problem is None else [f"<div style='{_FAILURE}'><b>✖</b> {shown(problem)}</div>"]
    mark = f"<span style='color:{colour}'>{sign}</span> <span style='{_ASIDE}'>{shown(status)}</span>"
    return _card(f"<div style='{_HEAD}'>Query {shown(name)} \u00a0{mark}</div>", _grid(rows), *failed)


def shown(text: str) -> str:
    """A `text` without secrets, as HTML."""
    return html.escape(redacted(text))


def _card(*parts: str) -> str:
    return f"<div style='{_CARD}'>\n" + "\n".join(parts) + "\n</div>"


def _grid(rows: Iterable[tuple[str, str]]) -> str:
    """Labels, escaped here, beside values that are HTML already."""
    pairs = "\n".join(f"<dt style='{_LABEL}'>{shown(label)}</dt><dd style='{_VALUE}'>{value}</dd>" for label, value in rows)
    return f"<dl style='{_GRID}'>\n{pairs}\n</dl>"


def _late(late: dict[str, int]) -> str:
    return ", ".join(f"<b>{_number(n)}</b> {shown(reason)}" for reason, n in late.items() if n) or "none"


def _number(n: int) -> str:
    return f"{n:,}".replace(",", "\u202f")  # a narrow space cannot be taken for a decimal mark


def _code(text: str) -> str:
    return f"<span style='{_CODE}'>{shown(text)}</span>"


def _bytes(n: int) -> str:
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    at = min(max(n.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{n} B" if at == 0 else f"{n / 1024**at:.1f} {units[at]}"
