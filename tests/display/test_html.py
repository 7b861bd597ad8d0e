"""HTML of plans and queries: complete, in order, escaped, without anything from elsewhere."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pyarrow as pa
import pytest

from krishiv_py import Progress, ResultStream, avg, count
from krishiv_py.display.html import query_html, rows_html, session_html
from krishiv_py.plan.durations import END_OF_TIME
from krishiv_py.testing import Driver, stream_of

EVIL = "<script>alert('&\"')</script>"


def sessions() -> ResultStream:
    readings = stream_of("sensor string, at bigint, celsius double").filter("celsius > -60")
    return readings.watermark("at", "10 s").key_by("sensor").session_window("5 min").agg(count(), avg("celsius").alias("mean"))


def shown(html: str) -> tuple[list[str], list[str]]:
    """Labels and values, once the HTML has been read as XML: it is well-formed, and only text is left."""
    tree = ElementTree.fromstring(html)
    return tuple(["".join(e.itertext()) for e in tree.iter(tag)] for tag in ("dt", "dd"))  # type: ignore[return-value]


def values(html: str) -> dict[str, str]:
    return dict(zip(*shown(html), strict=True))


def test_a_plan_reads_from_source_to_route() -> None:
    labels, actual = shown(sessions()._repr_html_())
    assert labels[:8] == ["source", "↓ filter", "↓ watermark", "↓ key", "↓ window", "↓ aggregates", "↓ options", "↓ route"]
    assert actual[1:6] == [
        "(celsius > -60)",
        "at: max(event time) - 10 s",
        "sensor",
        "session with gap 5 min",
        "count(*) AS count, avg(celsius) AS mean",
    ]
    assert actual[7].startswith("collect() and run(): one Spark job; start(): micro-batches, because ")
    assert labels[8:] == ["time", "reads", "depends on", "scan", "prepare", "window", "publish"]


def test_html_and_text_tell_the_same_route_reasons_and_warnings() -> None:
    plan = sessions()
    text, html = plan.explain(), plan._repr_html_()
    words = re.sub(r"\s+", " ", "".join(ElementTree.fromstring(html).itertext()))
    given = [line[2:] for line in text.splitlines() if line.startswith("! ")]
    given += [line.strip() for line in text.splitlines() if line.strip().startswith("because ")]
    assert len(given) == 6  # two warnings and a reason for each physical step
    assert [line for line in given if line not in words] == []
    assert html.count("⚠") == 2
    assert "⚠" not in stream_of("at bigint").watermark("at", 1).tumbling_window(5).agg(count())._repr_html_()


def test_names_are_escaped() -> None:
    plan = stream_of(f"at bigint, `{EVIL}` string").watermark("at", 1).key_by(EVIL).tumbling_window(5).agg(count())
    assert "<script" not in plan._repr_html_()
    assert values(plan._repr_html_())["↓ key"] == EVIL
    html = query_html(EVIL, EVIL, Progress(late={EVIL: 1}, source_watermarks_us={EVIL: 0}), EVIL)
    assert "<script" not in html
    assert values(html)[f"↳ {EVIL}"] == "1970-01-01T00:00:00Z"


def test_nothing_comes_from_elsewhere() -> None:
    pages = [sessions()._repr_html_(), query_html("q", "running", Progress())]
    for name in ("<script", "<style", "<link", "src=", "href=", "url(", "http"):
        assert [page for page in pages if name in page] == []


def test_a_query_shows_where_it_is() -> None:
    progress = Progress(
        batch_id=12,
        watermark_us=1_700_000_000_000_000,
        rows=1_234_567,
        late={"late": 3_120, "null_time": 4, "null_key": 0},
        open_windows=42,
        state_bytes=5 << 20,
        firings=817,
    )
    assert values(query_html("per minute", "running", progress)) == {
        "batch": "12",
        "watermark": "2023-11-14T22:13:20Z",
        "rows": "1\u202f234\u202f567",
        "late rows": "3\u202f120 late, 4 null_time",
        "open windows": "42",
        "state": "5.0 MiB",
        "firings": "817",
    }


def test_a_query_before_its_first_batch_and_after_its_end() -> None:
    before = values(query_html("q", "running", Progress()))
    assert (before["batch"], before["watermark"], before["late rows"], before["state"]) == ("none yet", "unset", "none", "0 B")
    after = values(query_html("q", "stopped", Progress(watermark_us=END_OF_TIME)))
    assert after["watermark"] == "end of input"


def test_a_failed_query_says_why() -> None:
    html = query_html("q", "failed", Progress(), "a sum left 64 bits")
    assert "a sum left 64 bits" in html
    assert [status for status in ("running", "stopped") if status in html] == []


@pytest.mark.parametrize(
    ("n", "text"), [(1, "1 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (3 << 29, "1.5 GiB"), (1 << 60, "1048576.0 TiB")]
)
def test_bytes_have_a_fitting_unit(n: int, text: str) -> None:
    assert values(query_html("q", "running", Progress(state_bytes=n)))["state"] == text


def cells(html: str) -> list[list[str]]:
    """The tables of a card, line by line, once it has been read as XML."""
    tree = ElementTree.fromstring(html)
    return [["".join(e.itertext()) for e in line] for line in tree.iter("tr")]


def test_a_session_lists_its_queries() -> None:
    assert "no query runs" in session_html("dev-local", [])
    html = session_html("dev-local", [(EVIL, "running", Progress(rows=1_200, firings=3))])
    assert cells(html)[0] == ["query", "status", "watermark", "rows", "firings"]
    assert cells(html)[1][0] == EVIL
    assert cells(html)[1][3] == "1\u202f200"


def test_a_progress_has_its_stages_and_doubts() -> None:
    html = Progress(rows=5, doubts=(EVIL,), stages={"first": Progress(rows=5), "last": Progress(rows=2)})._repr_html_()  # type: ignore[attr-defined]
    assert shown(html)[1].count("5") == 2
    assert EVIL in "".join(ElementTree.fromstring(html).itertext())


def test_output_of_a_step_is_shown_as_tables() -> None:
    driver = Driver(stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window(10).agg(count()))
    driver.send([{"user": EVIL, "at": 1}, {"user": "x" * 100, "at": 2}, {"user": None, "at": 3}])
    html = driver.close()._repr_html_()
    lines = cells(html)
    assert lines[0] == ["user", "window_start", "window_end", "count"]
    assert {line[0] for line in lines[1:]} == {EVIL, "x" * 59 + "…", "null"}
    assert "late rows" in html


def test_many_rows_are_cut() -> None:
    html = rows_html("t", "", {"results": pa.table({"n": list(range(1_000))})})
    assert len(cells(html)) == 21
    assert "980 more" in html
    assert cells(rows_html("t", "", {"results": pa.table({"n": []})})) == []
