"""A running query shown where one looks: in a terminal with rich, in a notebook, or as lines; drawn again in place."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from typing import Any, Final, TextIO

import attrs

from krishiv_py.display.html import query_html
from krishiv_py.display.progress import in_notebook, of_query
from krishiv_py.display.times import Times, cells, milliseconds, parts_of, times_html, times_text
from krishiv_py.errors import missing_extra
from krishiv_py.plan.running import Progress
from krishiv_py.redaction import redacted

_SIGNS: Final = {"running": ("●", "green"), "stopped": ("■", "dim"), "failed": ("✖", "red")}


@attrs.frozen
class Seen:
    """A query at one moment: its name, status, progress, what made it fail, and the times of its last batches."""

    name: str
    status: str
    progress: Progress
    problem: str | None = None
    times: Times = ()


def watch(look: Callable[[], Seen], *, every_s: float, until: float | None = None, to: TextIO | None = None) -> None:
    """Show what `look` returns until the query has ended, until a time of the monotonic clock, or until Ctrl-C.

    Parameters
    ----------
    look : callable
        Returns the query as it is now.
    every_s : float
        Seconds between two looks.
    until : float, optional
        When to end, on ``time.monotonic()``.
    to : text stream, optional
        Where to; standard output, or the notebook.
    """
    stream = to or sys.stdout
    notebook = in_notebook() if to is None else None
    if notebook is not None:
        draw, close = _page(notebook)
    elif stream.isatty():
        draw, close = _screen(stream)
    else:
        draw, close = _lines(stream), lambda: None
    try:
        while True:
            now = look()
            draw(now)
            if now.status != "running" or (until is not None and time.monotonic() >= until):
                return
            left = every_s if until is None else min(every_s, until - time.monotonic())
            time.sleep(max(left, 0.0))
    except KeyboardInterrupt:
        return  # who watches has seen enough; the query goes on
    finally:
        close()


def _page(notebook: Any) -> tuple[Callable[[Seen], None], Callable[[], None]]:
    """Return how to draw into one output of a notebook."""
    output = notebook.display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)

    def draw(now: Seen) -> None:
        text = redacted(f"{now.name}: {now.status}, {now.progress}")
        html = query_html(now.name, now.status, now.progress, now.problem, times_html(now.times))
        output.update({"text/html": html, "text/plain": text}, raw=True)

    return draw, lambda: None


def _lines(stream: TextIO) -> Callable[[Seen], None]:
    """Return how to write a line for each batch that was finished, as into a file."""
    last: list[object] = []

    def draw(now: Seen) -> None:
        if last != [now.progress.batch_id, now.status]:
            last[:] = [now.progress.batch_id, now.status]
            shown = of_query(now.name, now.progress)
            failed = "" if now.problem is None else f": {redacted(now.problem)}"
            spent = times_text(now.times)
            stream.write(
                f"{shown.label}: {shown.done} rows, {shown.note}; {spent}{'; ' if spent else ''}{now.status}{failed}\n"
            )
            stream.flush()

    return draw


def _screen(stream: TextIO) -> tuple[Callable[[Seen], None], Callable[[], None]]:
    """Return how to draw a table in place, and how to leave it there.

    Raises
    ------
    MissingExtraError
        Without rich.
    """
    if importlib.util.find_spec("rich") is None:
        raise missing_extra("rich", "progress", "no query can be watched in a terminal")
    from rich.console import Console  # here: rich is optional, and heavy
    from rich.live import Live

    live = Live(console=Console(file=stream), auto_refresh=False, transient=False)
    live.start()
    return lambda now: live.update(_table(now), refresh=True), live.stop


def _table(now: Seen) -> Any:
    """Return the numbers of a query: a row for each stage, its sources, its warnings."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    sign, style = _SIGNS.get(now.status, ("?", ""))
    progress = now.progress
    batch = "no batch yet" if progress.batch_id < 0 else f"batch {progress.batch_id}, {1_000 * progress.batch_seconds:,.0f} ms"
    head = Text.assemble((f"{sign} {redacted(now.name)}", style), f"  {now.status}, {batch}")
    table = Table(box=box.SIMPLE, pad_edge=False)
    for name in ("stage", "watermark"):
        table.add_column(name, overflow="fold")
    for name in ("rows", "late", "open windows", "state bytes", "results"):
        table.add_column(name, justify="right")
    for name, one in (progress.stages or {"": progress}).items():
        numbers = (one.rows, sum(one.late.values()), one.open_windows, one.state_bytes, one.firings)
        table.add_row(Text(redacted(name)), one.watermark, *(f"{n:,}" for n in numbers))
    late = ", ".join(f"{n:,} {reason}" for reason, n in progress.late.items() if n)
    more = [f"late: {late}"] if late else []
    more += [f"idle: {', '.join(progress.idle_sources)}"] if progress.idle_sources else []
    waiting = [f"{n:,} of {source}" for source, n in progress.backlog.items() if n]
    more += [f"waiting: {', '.join(waiting)}"] if waiting else []
    lines = [Text(redacted(line)) for line in more]
    lines += [Text(f"! {redacted(doubt)}", style="yellow") for doubt in progress.doubts]
    lines += [Text(redacted(now.problem), style="red")] if now.problem else []
    return Group(head, table, *_times(now.times), *lines)


def _times(times: Times) -> list[Any]:
    """Return a bar of the parts of the last batch, and their numbers; pieces differ without colours too."""
    from rich.columns import Columns
    from rich.text import Text

    parts = parts_of(times)
    if not sum(part.last_s for part in parts):
        return []
    bar, names = Text(), list[Text]()
    for number, (part, n) in enumerate(cells(parts)):
        sign = "█▓▒░"[number % 4]
        bar.append(sign * n, style=part.colour)
        names.append(Text.assemble((sign, part.colour), f" {redacted(part.kind)} {milliseconds(part.last_s)}"))
    return [bar, Columns(names, padding=(0, 2))]
