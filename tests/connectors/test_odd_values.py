"""The console and the SQLite example with values that are odd: nothing ends a query, and nothing is shown as another value."""

from __future__ import annotations

import datetime as dt
import io
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from krishiv_py import ConsoleSink, SideOutputLateEventHandler, count
from krishiv_py.connectors import OutputBatch
from krishiv_py.testing import Driver, stream_of
from tests.connectors.sinks import SqliteSink

FAR = pa.array([2**61, None], pa.timestamp("us", "UTC"))
BEHIND = pa.array([3_000_000, None], pa.int32()).cast(pa.date32())
ODD: dict[str, tuple[pa.Array, list[str], list[Any]]] = {
    "null": (pa.nulls(2), ["None", "None"], [None, None]),
    "float": (pa.array([float("nan"), -0.0]), ["nan", "-0.0"], [None, -0.0]),
    "struct": (
        pa.array([{"a": [1, None], "b": "ü"}, None]),
        ["{'a': [1, None], 'b': 'ü'}", "None"],
        ['{"a": [1, null], "b": "ü"}', None],
    ),
    "list": (pa.array([[1.5], []]), ["[1.5]", "[]"], ["[1.5]", "[]"]),
    "map": (pa.array([[("k", 1)], None], pa.map_(pa.string(), pa.int64())), ["[('k', 1)]", "None"], ['[["k", 1]]', None]),
    "bytes": (pa.array([b"\x00\xff", None]), ["b'\\x00\\xff'", "None"], [b"\x00\xff", None]),
    "decimal": (pa.array([Decimal("1.10"), None]), ["1.10", "None"], ["1.10", None]),
    "interval": (pa.array([dt.timedelta(days=1), None]), ["1 day, 0:00:00", "None"], ["1 day, 0:00:00", None]),
    "far": (FAR, [f"<value out of range: {2**61}>", "null"], [str(2**61), None]),
    "behind": (BEHIND, ["10183-09-21", "null"], ["3000000", None]),
    "long": (pa.array(["x" * 5_000, ""]), ["x" * 200 + "…", ""], ["x" * 5_000, ""]),
    "text": (
        pa.array(["ä🎉\x1b[31m\nb\x00\u202e", "a b"]),
        ["ä🎉\\x1b[31m\\nb\\x00\\u202e", "a b"],
        ["ä🎉\x1b[31m\nb\x00\u202e", "a b"],
    ),
    'na"me': (pa.array([1, 2]), ["1", "2"], [1, 2]),
}


def batch_of(table: pa.Table) -> OutputBatch:
    return OutputBatch("id", "q", "results", 0, is_replay=False, schema=table.schema)


@pytest.mark.parametrize("name", ODD)
def test_the_console_shows_a_row_a_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    values, shown, _ = ODD[name]
    table = pa.table({name: values})
    ConsoleSink().write_tables(batch_of(table), [table.slice(0, 0), table])
    assert capsys.readouterr().out == "".join(
        f"{line}\n" for line in ["-- q, batch 0", *(f"    {name}={text}" for text in shown)]
    )


def test_the_console_prints_nothing_of_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    table = pa.table({"n": pa.array([], pa.int64())})
    for tables in ([], [table], [table, table]):
        ConsoleSink().write_tables(batch_of(table), tables)
    assert capsys.readouterr().out == ""


def test_a_console_that_knows_ascii_only(monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(written, "ascii"))
    table = pa.table({"ü": ["🎉"]})
    ConsoleSink().write_tables(batch_of(table), [table])
    sys.stdout.flush()
    assert written.getvalue() == b"-- q, batch 0\n    \\xfc=\\U0001f389\n"


@pytest.mark.parametrize("name", ODD)
def test_the_database_has_what_was_given(name: str, tmp_path: Path) -> None:
    values, _, kept = ODD[name]
    table, sink = pa.table({name: values, "n": [0, 1]}), SqliteSink(tmp_path / "rows.db")
    batch = batch_of(table)
    sink.begin(batch)
    sink.write(batch, table)
    sink.write(batch, table.slice(0, 0))
    sink.commit(batch)
    with sink.opened() as database:
        assert database.execute("SELECT * FROM results ORDER BY n").fetchall() == list(zip(kept, (0, 1), strict=True))


def test_a_late_row_whose_time_is_out_of_range_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for sink in (ConsoleSink(), SqliteSink(tmp_path / "rows.db")):
        timed = stream_of("at timestamp").watermark("at", 0).tumbling_window("1 s").agg(count())
        driver = Driver(timed.with_late_event_handler(SideOutputLateEventHandler(sink)))
        driver.send(pa.table({"at": FAR}))
        driver.close()
    assert f"at=<value out of range: {2**61}>, reason=time_out_of_range" in capsys.readouterr().out
    with SqliteSink(tmp_path / "rows.db").opened() as database:
        actual = database.execute('SELECT "at", reason FROM late_rows ORDER BY 2').fetchall()
    assert actual == [(None, "null_time"), (str(2**61), "time_out_of_range")]
