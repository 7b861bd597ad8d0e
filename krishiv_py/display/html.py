"""Plans and running queries as HTML for notebooks.

Styles stand in the elements, for notebook viewers strip style sheets; text inherits its colour and greys are half
transparent, so that light and dark pages both read well. Meaning is never in a colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.durations import show_instant
from krishiv_py.plan.running import Progress

if TYPE_CHECKING:
    from krishiv_py.planner.explain import CheckedStage, PlanOutline

_CARD: Final = "max-width:64em;padding:.6em 1em;border:1px solid rgba(128,128,128,.45);border-radius:6px;line-height:1.5"
_HEAD: Final = "margin-bottom:.4em;font-weight:600"
_GRID: Final = "display:grid;grid-template-columns:max-content 1fr;gap:.15em 1.2em;margin:0"
_LABEL: Final = "margin:0;font-weight:400;opacity:.75;white-space:nowrap"
_VALUE: Final = "margin:0;overflow-wrap:anywhere;font-variant-numeric:tabular-nums"
_CODE: Final = "font-family:monospace"
_ASIDE: Final = "font-weight:400;opacity:.75"
_WARNING: Final = "margin:.5em 0 0;padding:.25em .8em;border-left:4px solid #d98200;background:rgba(255,165,0,.16)"
_FAILURE: Final = "margin:.5em 0 0;padding:.25em .8em;border-left:4px solid #d5322e;background:rgba(213,50,46,.14)"
_TABLE: Final = "border-collapse:collapse;font-variant-numeric:tabular-nums;margin:0"
_TD: Final = "text-align:left;white-space:nowrap;padding:.1em .9em .1em 0"
_TH: Final = (
    "text-align:left;font-weight:600;white-space:nowrap;padding:.1em .9em .1em 0;border-bottom:1px solid rgba(128,128,128,.45)"
)
_MOST_ROWS: Final = 20
_LONGEST_CELL: Final = 60
_SIGNS: Final = {"running": ("●", "#1f9d55"), "stopped": ("■", "#808080"), "failed": ("✖", "#d5322e")}


def plan_html(plan: PlanOutline) -> str:
    """Return the way of the rows from the source to the route they are computed by, its reason, and the warnings.

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
    steps = [(part.title if number == 0 else f"↓ {part.title}", _code(part.detail)) for number, part in enumerate(plan.flow)]
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


_TITLES: Final = {
    **{"WindowAggregate": "Windowed aggregation", "Join": "Join", "Deduplicate": "Deduplication", "Rows": "Rows"},
    **{"Process": "Process function", "Absence": "Absence", "Match": "Pattern", "Previous": "Rows before"},
    **{
        "Changelog": "Changelog",
        "Aggregate": "Aggregates of all rows",
        "TopRows": "First rows",
        "Union": "Union",
        "Changes": "Changes",
        "History": "History",
    },
}


def _title(plan: PlanOutline) -> str:
    """Return the kind of the last stage, in words."""
    return next((_TITLES[part.title] for part in plan.logical if part.title in _TITLES), "Rows")


def _checked(stage: CheckedStage) -> list[tuple[str, str]]:
    kept = [("keeps", _code("; ".join(stage.keeps)))] if stage.keeps else []
    depends = [("depends on", html.escape(" and ".join(stage.depends)))] if stage.depends else []
    changes = [("takes", html.escape(stage.takes)), ("gives", html.escape(stage.gives))] if stage.gives else []
    return [("time", _code(stage.time)), ("reads", _code(", ".join(stage.reads))), *changes, *kept, *depends]


def query_html(name: str, status: str, progress: Progress, problem: str | None = None, times: str = "") -> str:
    """Return the progress of a running query.

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
    times : str
        Where its batches spend their time, as HTML.

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
    failed = [] if problem is None else [f"<div style='{_FAILURE}'><b>✖</b> {shown(problem)}</div>"]
    mark = f"<span style='color:{colour}'>{sign}</span> <span style='{_ASIDE}'>{shown(status)}</span>"
    head = f"<div style='{_HEAD}'>Query {shown(name)} \u00a0{mark}</div>"
    spent = [times] if times else []
    return _card(head, _grid(_facts(progress)), *spent, *_doubts(progress), *failed)


def progress_html(progress: Progress) -> str:
    """Return the progress of a query as one ``<div>``, with that of its stages."""
    fold = "<details style='margin-top:.5em'><summary style='cursor:pointer'>"
    stages = "".join(f"{fold}{shown(name)}</summary>{_grid(_facts(one))}</details>" for name, one in progress.stages.items())
    return _card(f"<div style='{_HEAD}'>Progress</div>", _grid(_facts(progress)), *_doubts(progress), stages)


Progress._repr_html_ = progress_html  # type: ignore[attr-defined]  # the plan knows nothing of displays


def session_html(profile: str, queries: Iterable[tuple[str, str, Progress]]) -> str:
    """Return a session as one ``<div>``: its profile, and a row for each query that runs: name, status and progress."""
    lines = [
        (name, _SIGNS.get(status, ("?", ""))[0] + " " + status, one.watermark, number(one.rows), number(one.firings))
        for name, status, one in queries
    ]
    names = ("query", "status", "watermark", "rows", "firings")
    running = _table(names, lines) if lines else f"<div style='{_ASIDE}'>no query runs</div>"
    return _card(f"<div style='{_HEAD}'>Session <span style='{_ASIDE}'>profile {shown(profile)}</span></div>", running)


def rows_html(title: str, aside: str, tables: Mapping[str, pa.Table]) -> str:
    """Return tables of rows by their names as one ``<div>``, the first rows of each, under a `title`."""
    parts = [f"<div style='{_HEAD}'>{shown(title)} <span style='{_ASIDE}'>{shown(aside)}</span></div>"]
    for name, table in tables.items():
        count = f"{number(table.num_rows)} row{'' if table.num_rows == 1 else 's'}"
        parts.append(f"<div style='margin-top:.5em'>{shown(name)} <span style='{_ASIDE}'>{count}</span></div>")
        if table.num_rows:
            first = table.slice(0, _MOST_ROWS)
            columns = [[cell(value) for value in column.to_pylist()] for column in first.columns]
            parts.append(_table(table.column_names, zip(*columns, strict=True)))
        if table.num_rows > _MOST_ROWS:
            parts.append(f"<div style='{_ASIDE}'>… {number(table.num_rows - _MOST_ROWS)} more</div>")
    return _card(*parts)


def cell(value: object, longest: int = _LONGEST_CELL) -> str:
    """Return a value as the text of a cell, of at most so many characters."""
    text = "null" if value is None else str(value)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def _table(names: Iterable[str], lines: Iterable[Iterable[str]]) -> str:
    head = "".join(f"<th style='{_TH}'>{shown(name)}</th>" for name in names)
    body = "\n".join("<tr>" + "".join(f"<td style='{_TD}'>{shown(cell)}</td>" for cell in line) + "</tr>" for line in lines)
    return f"<div style='overflow-x:auto'><table style='{_TABLE}'><tr>{head}</tr>\n{body}</table></div>"


def _doubts(progress: Progress) -> list[str]:
    doubts = (*progress.stuck.values(), *progress.doubts)
    return [f"<div style='{_WARNING}'><b>⚠ warning</b> {shown(doubt)}</div>" for doubt in doubts]


def _facts(progress: Progress) -> list[tuple[str, str]]:
    """Return the labels and values of a progress."""
    return [
        ("batch", "none yet" if progress.batch_id < 0 else number(progress.batch_id)),
        ("watermark", shown(progress.watermark)),
        *((f"↳ {n}", shown(show_instant(us))) for n, us in progress.source_watermarks_us.items()),
        ("rows", number(progress.rows)),
        ("late rows", _late(progress.late)),
        ("open windows", number(progress.open_windows)),
        ("state", size(progress.state_bytes)),
        ("firings", number(progress.firings)),
    ]


def shown(text: str) -> str:
    """Return a `text` without secrets, as HTML."""
    return html.escape(redacted(text))


def _card(*parts: str) -> str:
    return f"<div style='{_CARD}'>\n" + "\n".join(parts) + "\n</div>"


def _grid(rows: Iterable[tuple[str, str]]) -> str:
    """Labels, escaped here, next to values that are HTML already."""
    pairs = "\n".join(f"<dt style='{_LABEL}'>{shown(label)}</dt><dd style='{_VALUE}'>{value}</dd>" for label, value in rows)
    return f"<dl style='{_GRID}'>\n{pairs}\n</dl>"


def _late(late: dict[str, int]) -> str:
    return ", ".join(f"<b>{number(n)}</b> {shown(reason)}" for reason, n in late.items() if n) or "none"


def number(n: int) -> str:
    """Return a whole number with a narrow space between thousands."""
    return f"{n:,}".replace(",", "\u202f")  # a narrow space cannot be taken for a decimal mark


def digits(value: float, most: int = 3) -> str:
    """Return a number in a few digits, never as a power of ten.

    Examples
    --------
    >>> digits(1_108.4), digits(2.3456), digits(0.00004), digits(0.0123456)
    ('1\u202f108', '2.35', '0', '0.0123')
    """
    if abs(value) >= 10**most:
        return number(round(value))
    text = f"{value:.{most}g}"
    return (f"{value:.{most}f}".rstrip("0").rstrip(".") or "0") if "e" in text else text


def _code(text: str) -> str:
    return f"<span style='{_CODE}'>{shown(text)}</span>"


def size(n: int) -> str:
    """Return a count of bytes in the unit that people read."""
    units = ("B", "KiB", "MiB", "GiB", "TiB")
    unit = min(max(n.bit_length() - 1, 0) // 10, len(units) - 1)
    return f"{n} B" if unit == 0 else f"{n / 1024**unit:.1f} {units[unit]}"
