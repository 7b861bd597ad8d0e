"""A progress line for work that takes long, on standard error; needs tqdm, which the extra ``progress`` installs.

Whoever waits gives a function that says how far the work is, and a thread of this room asks it a few times a second. So
nothing here knows what the work is, and waiting itself is as it was.
"""

from __future__ import annotations

import importlib.util
import io
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final, TextIO, TypeAlias

import attrs

from krishiv_py.errors import missing_extra
from krishiv_py.failures.redaction import redacted
from krishiv_py.plan.running import Progress, dropped, dropped_by

Show: TypeAlias = "bool | None"
"""A switch for the display of progress: on, off, or (None) on where standard error is a terminal and tqdm is installed."""
_EVERY_S: Final = 0.25


@attrs.frozen
class WorkState:
    """Says how far the work is.

    Attributes
    ----------
    done : int
        How much is done, in `unit`.
    total : int or None
        Of how much; None when nobody knows.
    unit : str
        What is counted.
    label : str
        In front of the counts.
    note : str
        After them.
    """

    done: int
    total: int | None
    unit: str
    label: str
    note: str = ""


def of_query(name: str, progress: Progress) -> WorkState:
    """Return how far a query is: batch, rows, watermark, refused rows by reason.

    Examples
    --------
    >>> print(of_query("per minute", Progress(batch_id=3, rows=1_200, late={"late": 7, "null_key": 0})))
    WorkState(done=1200, total=None, unit='rows', label='per minute, batch 3', note='watermark unset, late 7')
    """
    late = [f"{reason} {n}" for reason, n in progress.late.items() if n]
    batch = "no batch yet" if progress.batch_id < 0 else f"batch {progress.batch_id}"
    note = ", ".join(
        [
            f"watermark {progress.watermark}",
            *(late or ["no late rows"]),
            *dropped_by(progress),
            *(["a warning in progress.doubts"] if progress.doubts else []),
        ]
    )
    return WorkState(progress.rows, None, "rows", redacted(f"{name}, {batch}"), redacted(note))


def of_job(done: int, total: int | None, counters: Mapping[str, int]) -> WorkState:
    """Return how far a bounded run is: tasks, and once its `counters` are known rows and late rows.

    Examples
    --------
    >>> of_job(2, 4, {}).note, of_job(4, 4, {"rows": 90, "late": 2}).note
    ('', '90 rows, late 2')
    """
    late = [f"late {counters['late']}"] if counters.get("late") else ["no late rows"]
    note = ", ".join([f"{counters['rows']} rows", *late, *dropped(counters)]) if "rows" in counters else ""
    return WorkState(done, total, "tasks", "bounded run", note)


@contextmanager
def shown(look: Callable[[], WorkState], show: Show, *, to: TextIO | None = None, every_s: float = _EVERY_S) -> Iterator[None]:
    """Show what `look` returns while the body runs, and once more at its end.

    Parameters
    ----------
    look : callable
        Says how far the work is; called from another thread, so it must be safe to call there.
    show : bool or None
        Whether to show anything; None where `to` is a terminal and tqdm is installed.
    to : text stream, optional
        Where to; standard error by default.
    every_s : float
        Seconds between two looks, positive.

    Raises
    ------
    MissingExtraError
        For ``show=True`` without tqdm.
    """
    stream = to or sys.stderr
    notebook = in_notebook() if to is None else None
    line = _line(look(), show, stream, notebook) if show or (show is None and stream.isatty()) else None
    if line is None:
        yield
        return
    ended = threading.Event()
    watcher = threading.Thread(target=_watch, args=(line, look, ended, every_s), name="krishiv-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()
        line.bar.close()


def drawn(to: TextIO) -> bool:
    """Return whether a progress line is drawn where nobody says so: `to` is a terminal, and tqdm is installed."""
    return to.isatty() and importlib.util.find_spec("tqdm") is not None


@attrs.frozen(eq=False)
class Line:
    """A bar of tqdm's: where it writes to, or, in a notebook, the one output that is replaced whenever it has moved."""

    bar: Any
    output: Any = None

    def draw(self, standing: WorkState) -> None:
        """Show how far the work is."""
        self.bar.total = standing.total
        self.bar.n = standing.done
        self.bar.set_description_str(standing.label, refresh=False)
        self.bar.set_postfix_str(standing.note, refresh=True)
        if self.output is not None:
            self.output.update({"text/plain": str(self.bar)}, raw=True)


def in_notebook() -> Any:
    """IPython's displays, in a notebook; None elsewhere, also in a terminal's IPython, which draws lines well."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return None if ipython is None or getattr(shell, "kernel", None) is None else ipython.display


def _line(first: WorkState, show: Show, stream: TextIO, notebook: Any) -> Line | None:
    try:
        from tqdm import tqdm  # here, for the room is loaded with every query and tqdm is optional
    except ImportError as problem:
        if show is None:
            return None
        raise missing_extra("tqdm", "progress", "no progress can be shown") from problem
    file = stream if notebook is None else io.StringIO()
    # counts of a restarted query go on from where they were, the rate is that of this run
    bar = tqdm(desc=first.label, total=first.total, initial=first.done, unit=f" {first.unit}", file=file, dynamic_ncols=True)
    line = Line(bar, None if notebook is None else notebook.display({"text/plain": ""}, raw=True, display_id=True))
    line.draw(first)
    return line


def _watch(line: Line, look: Callable[[], WorkState], ended: threading.Event, every_s: float) -> None:
    while not ended.wait(every_s):
        line.draw(look())
    line.draw(look())
