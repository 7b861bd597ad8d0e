"""Plots: what is drawn is counted in the figure itself."""

from __future__ import annotations

import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import krishiv_py
from krishiv_py import count
from krishiv_py.display import plots
from krishiv_py.errors import KrishivError, MissingExtraError, PlanError
from tests.display.pipelines import LAG_MS, Run, batch, run, users

UTC = pa.timestamp("us", "UTC")
BATCHES = [
    batch(("a", 1_000), ("b", 4_000), ("a", 12_000), ("a", None)),
    batch(("a", 2_000), ("b", 3_000), ("b", 3_500), ("a", 21_000)),
    batch(("b", 30_000)),
]


def tumbling() -> Run:
    return run(users().watermark("at", LAG_MS).key_by("user").tumbling_window(5_000).agg(count()), BATCHES)


def dots(axes: Axes) -> dict[str, int]:
    """Points by legend label."""
    return {
        str(c.get_label()): len(np.asarray(c.get_offsets())) for c in axes.collections if not str(c.get_label()).startswith("_")
    }


def drawn(figure: Figure) -> bytes:
    target = io.BytesIO()
    figure.savefig(target, format="png", dpi=50)
    return target.getvalue()


def test_every_row_with_a_time_is_one_dot_or_one_cross() -> None:
    actual = tumbling()
    figure = plots.timeline(BATCHES, time="at", lag=LAG_MS, late=actual.late)
    assert dots(figure.axes[0]) == {"row": 5, "refused: late": 3}
    assert drawn(figure).startswith(b"\x89PNG")


def test_each_key_has_a_panel_with_its_rows_and_windows() -> None:
    actual = tumbling()
    figure = plots.timeline(BATCHES, time="at", lag=LAG_MS, results=actual.results, late=actual.late, key="user", label="count")
    panels = {axes.get_title(loc="left"): axes for axes in figure.axes if axes.get_title(loc="left")}
    assert list(panels) == ["user = a", "user = b"]
    assert dots(panels["user = a"]) == {"row": 3, "refused: late": 1}
    assert dots(panels["user = b"]) == {"row": 2, "refused: late": 2}
    strips = [axes for axes in figure.axes if axes.get_ylabel() == "windows"]
    assert [len(axes.patches) for axes in strips] == [3, 2]
    assert [[t.get_text() for t in axes.texts] for axes in strips] == [["1", "1", "1"], ["1", "1"]]
    bounds = [(p.get_x(), p.get_x() + p.get_width()) for p in strips[0].patches]  # type: ignore[attr-defined]
    assert bounds == [(0, 5), (10, 15), (20, 25)]


def test_the_watermark_steps_between_batches() -> None:
    figure = plots.timeline(BATCHES, time="at", lag=LAG_MS)
    line = next(line for line in figure.axes[0].lines if line.get_label() == "watermark in force")
    # unset in batch 0 (rows 0 to 3), 10 s in batch 1 (rows 4 to 7), 19 s in batch 2 (row 8)
    assert np.asarray(line.get_xdata()).tolist() == [10, 10, 19, 19]
    assert np.asarray(line.get_ydata()).tolist() == [3.5, 7.5, 7.5, 8.5]


def test_refused_rows_lie_left_of_the_watermark() -> None:
    figure = plots.timeline(BATCHES, time="at", lag=LAG_MS, late=tumbling().late)
    crosses = next(c for c in figure.axes[0].collections if c.get_label() == "refused: late")
    assert np.asarray(crosses.get_offsets())[:, 0].max() < 10


def test_calendar_times_have_calendar_axes() -> None:
    moved = [
        b.set_column(1, "at", [[None if t is None else t + 1_700_000_000_000 for t in b["at"].to_pylist()]]) for b in BATCHES
    ]
    figure = plots.timeline([m.cast(BATCHES[0].schema) for m in moved], time="at", lag=LAG_MS)
    assert figure.axes[-1].get_xlabel() == "event time (UTC)"
    drawn(figure)
    assert figure.axes[-1].xaxis.get_major_formatter().get_offset().startswith("2023-Nov-14 22:13")


def test_four_panels_at_the_most() -> None:
    many = [batch(*((f"u{n}", n * 1_000) for n in range(9)))]
    titles = [
        a.get_title(loc="left") for a in plots.timeline(many, time="at", lag=1, key="user").axes if a.get_title(loc="left")
    ]
    assert titles == ["user = u0", "user = u1", "user = u2", "user = u3"]
    for wrong in ([], ["nobody"], [f"u{n}" for n in range(5)]):
        with pytest.raises(PlanError, match="`keys`"):
            plots.timeline(many, time="at", lag=1, key="user", keys=wrong)


def test_no_text_lies_over_another() -> None:
    actual = tumbling()
    figure = plots.timeline(BATCHES, time="at", lag=LAG_MS, results=actual.results, late=actual.late, key="user")
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    renderer = canvas.get_renderer()
    texts = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]  # type: ignore[attr-defined]
    texts += [axes.xaxis.label for axes in figure.axes] + [axes.yaxis.label for axes in figure.axes]
    boxes = [t.get_window_extent(renderer) for t in [*texts, *figure.legends[0].get_texts()] if t.get_text()]
    assert len(boxes) > 8
    assert [(i, j) for i, a in enumerate(boxes) for j, b in enumerate(boxes[:i]) if a.overlaps(b)] == []
    assert all(figure.bbox.x0 <= b.x0 and b.x1 <= figure.bbox.x1 and b.y1 <= figure.bbox.y1 for b in boxes)


def late_rows(lateness: list[int | None], reasons: list[str], time: pa.DataType = UTC) -> pa.Table:
    watermarks = pa.array([0] * len(reasons), time)
    return pa.table({"reason": reasons, "watermark": watermarks, "lateness": pa.array(lateness, pa.int64())})


@pytest.mark.parametrize(("time", "second"), [(UTC, 1_000_000), (pa.timestamp("us"), 1_000_000), (pa.int64(), 1_000)])
def test_a_histogram_counts_every_late_row_and_every_reason(time: pa.DataType, second: int) -> None:
    late_us = [None if s is None else int(s * second) for s in (1, 2, 2.5, 9, None, None)]
    late = late_rows(late_us, ["late"] * 4 + ["null_time"] * 2, time)
    figure = plots.lateness(late)
    histogram, reasons = figure.axes
    assert sum(p.get_height() for p in histogram.patches) == 4  # type: ignore[attr-defined]
    assert histogram.get_xlabel() == "behind the watermark (s)"
    assert [line.get_label() for line in histogram.lines] == ["50 % within 2 s", "95 % within 9 s"]
    assert {t.get_text(): p.get_width() for t, p in zip(reasons.get_yticklabels(), reasons.patches, strict=True)} == {  # type: ignore[attr-defined]
        "null_time": 2,
        "late": 4,
    }


def test_a_histogram_of_no_late_rows_and_of_a_run() -> None:
    assert plots.lateness(late_rows([], [])).axes[0].get_title(loc="left") == "0 late rows"
    assert plots.lateness(tumbling().late).axes[0].get_title(loc="left") == "3 late rows"
    with pytest.raises(PlanError, match="no table of late rows"):
        plots.lateness(tumbling().results)


def test_rows_may_be_lists_of_dicts() -> None:
    actual = tumbling()
    lists = [b.to_pylist() for b in BATCHES]
    tables = plots.timeline(BATCHES, time="at", lag=LAG_MS, results=actual.results, late=actual.late, key="user")
    dicts = plots.timeline(
        [*lists[:1], [], *lists[1:]],
        time="at",
        lag=LAG_MS,
        key="user",
        results=actual.results.to_pylist(),
        late=actual.late.to_pylist(),
    )
    drawn = [[(c.get_label(), len(a.patches)) for a in f.axes for c in a.collections] for f in (tables, dicts)]
    assert drawn[0] == drawn[1] and drawn[0]
    assert plots.timeline([BATCHES[0].to_batches()[0], BATCHES[1].to_pandas()], time="at", lag=LAG_MS).axes
    assert plots.lateness(actual.late.to_pylist()).axes[0].get_title(loc="left") == "3 late rows"


@pytest.mark.parametrize(
    "wrong",
    [
        {"batches": 5},
        {"batches": BATCHES[0]},
        {"batches": BATCHES[0].to_pylist()},
        {"batches": ["ab"]},
        {"batches": [[1, 2]]},
        {"batches": [[{"at": 1}, {"at": "x"}]]},
        {"batches": [[{"at": 1}], [{"when": 1}]]},
        {"batches": [[{"at": 1}], None]},
        {"batches": []},
        {"batches": [[]]},
        {"late": 5},
        {"late": [1]},
        {"results": "text"},
        {"results": [{"at": 1}]},
        {"late": [{"at": 1}]},
        {"time": 5},
        {"time": None},
        {"time": "nowhere"},
        {"key": 5},
        {"lag": object()},
        {"lag": None},
        {"lag": None, "watermarks_us": [None, None]},
        {"lag": None, "watermarks_us": 5},
        {"key": "user", "keys": 5},
        {"results": [{"window_start": 0, "window_end": 1}], "label": 5},
    ],
)
def test_wrong_arguments_are_reported_in_words_of_ours(wrong: dict[str, Any]) -> None:
    given: dict[str, Any] = {"batches": BATCHES[:2], "time": "at", "lag": LAG_MS, **wrong}
    with pytest.raises(KrishivError, match="Hint: "):
        plots.timeline(given.pop("batches"), **given)


@pytest.mark.parametrize(
    "wrong", [5, None, "text", [1], [{"lateness": 1}], {"reason": 1}, [{"reason": "late", "watermark": 0, "lateness": "x"}]]
)
def test_wrong_late_rows_are_reported_in_words_of_ours(wrong: Any) -> None:
    with pytest.raises(KrishivError, match="Hint: "):
        plots.lateness(wrong)


def test_without_matplotlib_the_extra_is_named() -> None:
    program = "import sys; sys.modules['matplotlib'] = None\nfrom krishiv_py.display import plots\nplots.lateness"
    folder = Path(krishiv_py.__file__).parents[1]
    done = subprocess.run([sys.executable, "-c", program], cwd=folder, capture_output=True, text=True, check=False)
    assert 'install the extra plot: pip install ".[plot]" in a clone' in done.stderr.splitlines()[-1]
    assert MissingExtraError.__name__ in done.stderr.splitlines()[-1]
