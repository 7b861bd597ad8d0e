"""A stream shows itself in one short line; explain() and notebooks show the plan."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import col
from krishiv_py.testing import Driver, stream_of

S = stream_of("id string, at bigint, x double")
T = S.watermark("at", "5 s")
K = T.key_by("id")
W = K.tumbling_window("1 min")
A = W.agg(kv.count(), kv.sum("x").alias("total"))
JOINED = T.interval_join(T, on="id", lower=0, upper=5, suffixes=("", "_r"))
LINES: list[tuple[Any, str]] = [
    (S, "<Stream id, at, x; from MemoryStream>"),
    (S.filter("x > 1").with_column("y", col("x") + 1), "<Stream id, at, x, y; from MemoryStream>"),
    (S.key_by("id"), "<KeyedUntimedStream id, at, x; from MemoryStream; by id>"),
    (T, "<TimedStream id, at, x; event time at, watermark max(event time) - 5 s>"),
    (K, "<KeyedStream id, at, x; event time at, watermark max(event time) - 5 s; by id>"),
    (W, "<WindowedStream event time at, watermark max(event time) - 5 s; by id; tumbling 1 min>"),
    (A, "<ResultStream event time at, watermark max(event time) - 5 s; by id; tumbling 1 min; gives count, total>"),
    (
        A.filter("count > 1"),
        "<ResultStream id, window_start, window_end, count, total; event time window_time, watermark max(event time) - 5 s>",
    ),
    (K.lookback_window(5), "<LookBackStream event time at, watermark max(event time) - 5 s; by id; look-back 5 ms>"),
]


@pytest.mark.parametrize(("stream", "line"), LINES, ids=[type(s).__name__ for s, _ in LINES])
def test_a_stream_is_one_line(stream: Any, line: str) -> None:
    assert repr(stream) == str(stream) == line


@pytest.mark.parametrize(
    "stream",
    [
        stream_of(", ".join(f"column_{n} bigint" for n in range(2_000))),
        stream_of("`a\nb` string, at bigint"),
        stream_of("`a\nb` string, at bigint").watermark("at", 0).key_by("a\nb").tumbling_window(5).agg(kv.count("a\nb")),
        JOINED,
        JOINED.key_by("id").tumbling_window("1 h").agg(*[kv.count().alias(f"n{n}") for n in range(50)]),
        T.drop_duplicates("id", within="1 s"),
        A.to(kv.MemorySink()),
    ],
    ids=lambda s: type(s).__name__,
)
def test_it_stays_short_whatever_the_plan(stream: Any) -> None:
    text = repr(stream)
    assert "\n" not in text
    assert len(text) <= 260
    assert "__krishiv" not in text
    assert " object at 0x" not in text


def test_what_is_left_out_is_counted() -> None:
    wide = stream_of(", ".join(f"c{n} bigint" for n in range(10)))
    assert repr(wide) == "<Stream c0, c1, c2, c3, c4, c5, … 4 more; from MemoryStream>"


def test_a_line_has_no_secret() -> None:
    stream = stream_of("id string, at bigint").with_column("link", kv.lit("https://u:hunter2@host/x"))
    named = stream.watermark("at", 0).key_by(kv.func("concat", col("id"), "https://u:hunter2@host/")).tumbling_window(5)
    for one in (stream, named, named.agg(kv.count())):
        assert "hunter2" not in repr(one)


def test_notebooks_show_the_plan_where_there_is_one() -> None:
    for stream in (A, JOINED, S):
        assert stream._repr_html_().startswith("<div")
        assert "\n" not in repr(stream)


@pytest.mark.parametrize("text", ["plan", "why_not_fired", "why"])
def test_a_notebook_shows_a_text_line_by_line(text: str) -> None:
    """IPython shows the ``repr`` of a text, with line ends as backslashes, unless the text says how it is shown."""
    driver = Driver(A)
    driver.send([{"id": "a", "at": 1, "x": 1.0}])
    texts: dict[str, Any] = {"plan": A.explain, "why_not_fired": driver.why_not_fired, "why": driver.why}
    shown = texts[text]()
    printed: list[str] = []
    shown._repr_pretty_(SimpleNamespace(text=printed.append), False)
    assert printed == [str(shown)]
    assert isinstance(shown, str)
