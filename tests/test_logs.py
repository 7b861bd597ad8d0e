"""A log line a micro-batch, and records as JSON."""

from __future__ import annotations

import json
import logging
import sys
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, Session, count
from krishiv_py.logs import BatchCounts, BatchLines, JsonFormatter
from krishiv_py.plan.running import Progress
from krishiv_py.testing import Driver, stream_of

LOGGER = "krishiv_py.query"


def driver(name: str = "revenue") -> Driver:
    """Windows of 10 ms."""
    return Driver(stream_of("at bigint").watermark("at", 0).tumbling_window(10).agg(count()), name=name)


def test_a_batch_gives_a_line_with_what_it_did(caplog: pytest.LogCaptureFixture) -> None:
    runs = driver()
    runs.send([{"at": 1}])
    with caplog.at_level(logging.INFO, LOGGER):
        runs.send([{"at": 2}, {"at": 25}])
        runs.send([{"at": 3}])
    first, second = caplog.records
    assert first.getMessage().startswith(
        "query revenue: batch 1, 2 rows, 0 late, 1 results, watermark 1970-01-01T00:00:00.025000Z, "
    )
    actual = {n: v for n, v in vars(second).items() if n in ("query", "batch", "rows", "late", "results", "watermark")}
    moment = "1970-01-01T00:00:00.025000Z"
    assert actual == {"query": "revenue", "batch": 2, "rows": 1, "late": 1, "results": 0, "watermark": moment}
    assert 0 <= vars(second)["seconds"] < 60


def test_lines_that_are_left_out_or_fail_do_not_shift_the_numbers_of_others(caplog: pytest.LogCaptureFixture) -> None:
    runs = driver()
    with caplog.at_level(logging.INFO, LOGGER):
        runs.send([{"at": 1}, {"at": 2}])
    runs.send([{"at": 3}])  # no line is wanted
    with caplog.at_level(logging.INFO, LOGGER):
        runs.send([{"at": 25}])
        with pytest.raises(Exception, match="nothing"):
            runs.send([{"nothing": 1}])
        runs.send([{"at": 4}, {"at": 5}, {"at": 26}])
    actual = [(f["batch"], f["rows"], f["late"], f["results"]) for f in map(vars, caplog.records)]
    assert actual == [(0, 2, 0, 0), (2, 1, 0, 1), (3, 3, 2, 0)]


def test_the_progress_is_taken_once_a_batch(caplog: pytest.LogCaptureFixture) -> None:
    taken = list[int]()

    def look() -> BatchCounts:
        taken.append(1)
        return BatchCounts.of(Progress(batch_id=len(taken)))

    lines = BatchLines("one", look)
    with caplog.at_level(logging.INFO, LOGGER):
        for _ in range(5):
            with lines.batch():
                pass
    assert (len(taken), len(caplog.records)) == (6, 5)


def test_a_batch_that_fails_gives_no_line_and_names_hide_secrets(caplog: pytest.LogCaptureFixture) -> None:
    runs = driver("password=hunter2")
    with caplog.at_level(logging.INFO, LOGGER):
        with pytest.raises(Exception, match="nothing"):
            runs.send([{"nothing": 1}])
        assert caplog.records == []
        runs.send([{"at": 1}])
    assert "hunter2" not in caplog.text + JsonFormatter().format(caplog.records[0])


def test_a_query_on_spark_gives_lines_and_keeps_the_time_of_its_last_batch(
    session: Session, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stream, sender = session.memory_stream("at bigint")
    plan, checkpoint = stream.watermark("at", 0).tumbling_window(10).agg(count()), str(tmp_path / "checkpoint")
    sender.send([{"at": 2}, {"at": 25}])
    with caplog.at_level(logging.INFO, LOGGER), plan.start(MemorySink(), checkpoint=checkpoint, name="logged") as query:
        query.process_all_available()
        reached = query.progress
    actual = [vars(record) for record in caplog.records if record.name == LOGGER]
    assert [(f["query"], f["batch"]) for f in actual] == [("logged", n) for n in range(len(actual))]
    assert [sum(f[name] for f in actual) for name in ("rows", "late", "results")] == [2, 0, 1]
    assert all(0 < f["seconds"] < 300 for f in actual)
    assert reached.batch_seconds > 0 and reached.batch_ended_us is not None
    with plan.start(MemorySink(), checkpoint=checkpoint) as query:
        assert query.progress.batch_ended_us is not None, "before its first batch, too"


def as_json(**values: Any) -> dict[str, Any]:
    """A record with these attributes, formatted and read again."""
    text = JsonFormatter().format(logging.makeLogRecord({"msg": "m", "levelname": "INFO", "name": "n", **values}))
    assert "\n" not in text

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is not JSON")

    actual: dict[str, Any] = json.loads(text, parse_constant=refuse)
    return actual


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (float("nan"), "nan"),
        (float("-inf"), "-inf"),
        (b"x", "b'x'"),
        ({1: {2.5}}, {"1": "{2.5}"}),
        ((1, None, True, 1.5), [1, None, True, 1.5]),
        ("two\nlines \ud800", "two\nlines \ud800"),
        ({"url": "s3://me:hunter2@bucket"}, {"url": "s3://[redacted]@bucket"}),
    ],
)
def test_any_value_is_json(value: object, shown: object) -> None:
    assert as_json(further=value)["further"] == shown


def test_a_record_keeps_its_own_members_and_its_exception() -> None:
    try:
        raise ValueError("password=hunter2\nsecond line")
    except ValueError:
        actual = as_json(msg="%s of %s", args=(1, 2), time="never", exc_info=sys.exc_info(), created=0.0)
    assert (actual["message"], actual["time"]) == ("1 of 2", "1970-01-01T00:00:00.000Z")
    assert "second line" in actual["exception"] and "hunter2" not in actual["exception"]
