"""A running query shown where one looks: in a terminal with rich, in a notebook, or as lines; drawn again in place."""

from __future__ import annotations

import importlib.util
import sys
import time
from collections.abc import Callable
from textwrap import fill
from typing import TYPE_CHECKING, Any, Final, TextIO

import attrs

from krishiv_py.display.html import query_html
from krishiv_py.display.progress import in_notebook, of_query
from krishiv_py.display.times import Times, cells, milliseconds, parts_of, times_html, times_text
from krishiv_py.errors import missing_extra
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.running import Progress

if TYPE_CHECKING:
    from rich.console import Console, Group, RenderableType

_NUMBERS: Final = ("rows", "late", "open windows", "state bytes", "results")
_TOGETHER: Final = "\N{NO-BREAK SPACE}"
_ENDLESS: Final = 10_000
"""A width in which every table fits."""
_SIGNS: Final = {"running": ("●", "green"), "stopped": ("■", "dim"), "failed": ("✖", "red")}


@attrs.frozen
class QuerySample:
    """A query at one moment: its name, status, progress, what made it fail, and the times of its last batches."""

    name: str
    status: str
    progress: Progress
    problem: str | None = None
    times: Times = ()


def watch(look: Callable[[], QuerySample], *, every_s: float, until: float | None = None, to: TextIO | None = None) -> None:
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


def _page(notebook: Any) -> tuple[Callable[[QuerySample], None], Callable[[], None]]:
    """Return how to draw into one output of a notebook."""
    output = notebook.display({"text/html": "", "text/plain": ""}, raw=True, display_id=True)

    def draw(now: QuerySample) -> None:
        text = redacted(f"{now.name}: {now.status}, {now.progress}")
        html = query_html(now.name, now.status, now.progress, now.problem, times_html(now.times))
        output.update({"text/html": html, "text/plain": text}, raw=True)

    return draw, lambda: None


def _lines(stream: TextIO) -> Callable[[QuerySample], None]:
    """Return how to write a line for each batch that was finished, as into a file."""
    last: list[object] = []

    def draw(now: QuerySample) -> None:
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


def _screen(stream: TextIO) -> tuple[Callable[[QuerySample], None], Callable[[], None]]:
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

    console = Console(file=stream)
    live = Live(console=console, auto_refresh=False, transient=False)
    live.start()
    return lambda now: live.update(_drawn(now, console), refresh=True), live.stop


def _drawn(now: QuerySample, console: Console) -> Group:
    """Return the numbers of a query, of each stage, its sources and its warnings, as wide as the console is."""
    from rich.console import Group
    from rich.text import Text

    sign, style = _SIGNS.get(now.status, ("?", ""))
    progress = now.progress
    batch = "no batch yet" if progress.batch_id < 0 else f"batch {progress.batch_id}, {1_000 * progress.batch_seconds:,.0f} ms"
    head = Text.assemble((f"{sign} {redacted(now.name)}", style), f"  {now.status}, {batch}")
    late = ", ".join(f"{n:,} {reason}" for reason, n in progress.late.items() if n)
    more = [f"late: {late}"] if late else []
    more += [f"idle: {', '.join(progress.idle_sources)}"] if progress.idle_sources else []
    waiting = [f"{n:,} of {source}" for source, n in progress.backlog.items() if n]
    more += [f"waiting: {', '.join(waiting)}"] if waiting else []
    lines = [Text(redacted(line)) for line in more]
    lines += [Text(f"! {redacted(doubt)}", style="yellow") for doubt in progress.doubts]
    lines += [Text(redacted(now.problem), style="red")] if now.problem else []
    return Group(head, *_stages(progress, console), *_times(now.times, console.width), *lines)


def _stages(progress: Progress, console: Console) -> list[RenderableType]:
    """Return a table with a row for each stage; where it does not fit, a few short lines for each."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE, pad_edge=False)
    lines: list[RenderableType] = []
    stages = progress.stages or {"": progress}
    table.add_column("stage", no_wrap=True)
    table.add_column("watermark", no_wrap=True)
    texts_by_stage = {
        name: [f"{n:,}" for n in (one.rows, sum(one.late.values()), one.open_windows, one.state_bytes, one.firings)]
        for name, one in stages.items()
    }
    for name in _NUMBERS:
        table.add_column(name.replace(" ", "\n"), justify="right", no_wrap=True)
    for name, one in stages.items():
        texts = texts_by_stage[name]
        table.add_row(Text(redacted(name)), one.watermark, *texts)
        pairs = zip(("watermark", *_NUMBERS), (one.watermark, *texts), strict=True)
        apart = "  ".join(f"{what}: {text}".replace(" ", _TOGETHER) for what, text in pairs)
        wrapped = fill(apart, console.width, initial_indent="  ", subsequent_indent="  ", break_long_words=False)
        lines += [Text(redacted(name), style="bold"), Text(wrapped.replace(_TOGETHER, " "))]
    least = console.measure(table, options=console.options.update_width(_ENDLESS)).maximum
    return [table] if least <= console.width else lines


def _times(times: Times, width: int) -> list[RenderableType]:
    """Return a bar of the parts of the last batch, and their numbers; pieces differ without colours too."""
    from rich.columns import Columns
    from rich.text import Text

    parts = parts_of(times)
    if not sum(part.last_s for part in parts):
        return []
    bar, names = Text(), list[Text]()
    for number, (part, n) in enumerate(cells(parts, width)):
        sign = "█▓▒░"[number % 4]
        bar.append(sign * n, style=part.colour)
        names.append(Text.assemble((sign, part.colour), f" {redacted(part.kind)} {milliseconds(part.last_s)}"))
    return [bar, Columns(names, padding=(0, 2))]
