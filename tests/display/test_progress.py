"""The progress line: shown when asked for, never in the way."""

from __future__ import annotations

import io
import sys
import threading
import time

import nbformat
import pytest
from nbclient import NotebookClient

from krishiv_py import Progress
from krishiv_py.display.progress import WorkState, of_query, shown
from krishiv_py.errors import MissingExtraError


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


class Work:
    """Counts how often it was looked at."""

    reads = 0

    def look(self) -> WorkState:
        self.reads += 1
        return of_query("per minute", Progress(batch_id=self.reads, rows=100 * self.reads, late={"late": 3}))


def last_line(stream: io.StringIO) -> str:
    return stream.getvalue().rstrip("\n").split("\r")[-1]


def test_the_line_follows_the_work_and_ends_with_its_end() -> None:
    work, to = Work(), io.StringIO()
    with shown(work.look, True, to=to, every_s=0.01):
        while work.reads < 4:
            time.sleep(0.01)
    line = last_line(to)
    assert f"per minute, batch {work.reads}: {100 * work.reads} rows" in line
    assert "watermark unset, late 3" in line
    assert to.getvalue().endswith("\n")


def test_nobody_reads_unless_wanted() -> None:
    work, to = Work(), io.StringIO()
    for show in (False, None):
        with shown(work.look, show, to=to, every_s=0.001):
            time.sleep(0.01)
    assert (work.reads, to.getvalue()) == (0, "")


def test_a_terminal_shows_by_itself_where_it_is_left_open() -> None:
    work, to = Work(), Terminal()
    with shown(work.look, None, to=to):
        pass
    assert "batch" in last_line(to)
    quiet = Terminal()
    with shown(work.look, False, to=quiet):
        pass
    assert quiet.getvalue() == ""


def test_a_failure_of_the_work_passes_through_and_ends_the_line() -> None:
    to = io.StringIO()
    with pytest.raises(ZeroDivisionError), shown(Work().look, True, to=to):
        _ = 1 // 0
    assert to.getvalue().endswith("\n")
    assert "krishiv-progress" not in [thread.name for thread in threading.enumerate()]


def test_a_share_is_shown_where_the_total_is_known() -> None:
    to = io.StringIO()
    with shown(lambda: WorkState(3, 4, "tasks", "bounded run"), True, to=to):
        pass
    assert "75%" in last_line(to)
    assert "3/4" in last_line(to)


def test_a_notebook_shows_one_bar() -> None:
    code = """
import time
from krishiv_py.display.progress import WorkState, shown
looks = iter(range(1_000))
with shown(lambda: WorkState(next(looks), None, "rows", "per minute", "no late rows"), True, every_s=0.01):
    time.sleep(1)
"""
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code)])
    NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (output,) = notebook.cells[0].outputs
    assert output.output_type == "display_data"
    assert output.data["text/plain"].startswith("per minute: ") and "no late rows" in output.data["text/plain"]
    assert int(output.data["text/plain"].split()[2].removesuffix("rows")) > 5  # the last of many looks


def test_without_tqdm_the_extra_is_named_or_nothing_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tqdm", None)
    with pytest.raises(MissingExtraError, match=r'pip install "\.\[progress\]"'), shown(Work().look, True):
        pytest.fail("the work must not begin")
    to = Terminal()
    with shown(Work().look, None, to=to):
        pass
    assert to.getvalue() == ""
