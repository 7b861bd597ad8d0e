"""``why(key, time)``: what it says of each window is what then happens, in every engine; and wrong calls."""

from __future__ import annotations

import datetime as dt
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from krishiv_py import (
    MemorySink,
    MultiSourceWatermarkSpec,
    Session,
    SideOutputLateEventHandler,
    WatermarkSpec,
    calendar_window,
    count,
)
from krishiv_py import sum as total
from krishiv_py.cli.main import main
from krishiv_py.errors import DurationError, KrishivError, PlanError
from krishiv_py.testing import Driver, ManualClock, stream_of

WINDOWS: dict[str, Any] = {
    "tumbling": lambda s: s.tumbling_window(10),
    "hopping": lambda s: s.sliding_window(10, 4),
    "session": lambda s: s.session_window(5),
    "look-back": lambda s: s.lookback_window(6),
    "calendar": lambda s: s.window(calendar_window("day", "Europe/Berlin")),
}


def stream(lag: int, lateness: int, rule: Any) -> Any:
    rows = stream_of("user string, at bigint").watermark("at", lag).key_by("user").allowed_lateness(lateness).late_rule(rule)
    return rows.with_late_event_handler(SideOutputLateEventHandler(MemorySink()))


@pytest.mark.parametrize("rule", ["event", "window"])
@pytest.mark.parametrize("kind", list(WINDOWS))
@given(
    sent=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 80)), max_size=12),
    question=st.tuples(st.sampled_from("ab"), st.integers(0, 80)),
    lag=st.integers(0, 8),
    lateness=st.sampled_from([0, 6]),
)
def test_a_row_goes_where_it_says(
    kind: str, rule: str, sent: list[tuple[str, int]], question: tuple[str, int], lag: int, lateness: int
) -> None:
    driver = Driver(WINDOWS[kind](stream(lag, lateness, rule)).agg(count()))
    for user, moment in sent:
        driver.send([{"user": user, "at": moment}])
    key, moment = question
    text = driver.why(key, moment)
    fate, windows = text.splitlines()[1], text.splitlines()[2:]
    opened = {(w["window_start"], w["window_end"]) for w in driver.state().to_pylist() if w["user"] == key}
    for line in windows:
        actual = re.match(r"window (\S+) to (\S+): (\w+)", line)
        if actual is not None and kind != "look-back":
            bounds = tuple(
                int(dt.datetime.fromisoformat(t.replace("Z", "+00:00")).timestamp() * 1_000) for t in actual.groups()[:2]
            )
            assert (bounds in opened) == (actual.group(3) == "open")
    late = driver.send([{"user": key, "at": moment}]).late.num_rows
    if "unless an open window" not in fate:
        assert late == ("the late output" in fate), text


def test_windows_are_open_fired_closed_or_never_seen() -> None:
    with Session.in_process() as session:
        rows, sender = session.memory_stream("user string, at bigint")
        minutes = rows.watermark("at", 0).key_by("user").tumbling_window(10_000).agg(count())
        query = minutes.start(MemorySink())
        for moment in (1_000, 25_000):
            sender.send([{"user": "a", "at": moment}])
            query.process_all_available()
        for moment, said in (
            (5_000, "closed since the watermark reached 1970-01-01T00:00:10Z, and fired. It gave count=1."),
            (15_000, "closed since the watermark reached 1970-01-01T00:00:20Z, and never seen"),
            (25_000, "open"),
            (99_000, "never seen"),
        ):
            assert said in query.why("a", moment).splitlines()[2]
        assert ", and never seen" in query.why("b", 5_000)
        printed = re.findall(r"window (\S+) to", query.why("a", 25_000))[0]
        assert query.why("a", printed).splitlines()[2] == query.why("a", 25_000).splitlines()[2]
        assert query.why("a", dt.datetime(1970, 1, 1, 0, 0, 25)) == query.why("a", 25_000)
        assert query.why() == query.why_not_fired()
        assert "with 1 keys" not in query.why(time=25_000)
        assert re.search(r"the watermark of .* is 1970-01-01T00:00:25Z since 20\d\d-", query.why("a"))


def test_the_source_that_holds_the_watermark_is_named_with_its_time() -> None:
    spec = MultiSourceWatermarkSpec.new(idle_timeout="30 s").source("a", WatermarkSpec.fixed_lag(0))
    spec = spec.source("b", WatermarkSpec.fixed_lag(0))
    clock = ManualClock()
    clock.set(dt.datetime(2026, 1, 1))
    rows = stream_of("source string, at bigint").with_watermark(spec, column="at", source_column="source")
    driver = Driver(rows.tumbling_window(10).agg(count()), clock=clock)
    driver.send([{"source": "a", "at": 15}])
    assert "held by the source 'b', which has sent no row." in driver.why(time=15)
    driver.send([{"source": "b", "at": 12}])
    clock.advance("20 s")
    driver.send([{"source": "a", "at": 18}])
    held = "held by the source 'b', which is at 1970-01-01T00:00:00.012000Z since 2026-01-01T00:00:00Z (20 s ago)"
    assert held in driver.why(time=15)
    clock.advance("11 s")
    driver.tick()
    assert "held by" not in driver.why(time=15)


def test_the_way_out_fits_whose_clock_waits() -> None:
    left = stream_of("user string, at bigint").watermark("at", 0)
    right = stream_of("user string, seen bigint").watermark("seen", 0)
    joined = left.interval_join(right, on="user", lower=0, upper="1 s", how="left")
    counted = joined.key_by("user").tumbling_window("1 minute").agg(count())
    driver = Driver(counted)
    driver.send({"left": [{"user": "a", "at": 1_000}], "right": [{"user": "a", "seen": 1_500}]})
    driver.send({"left": [{"user": "a", "at": 200_000}]})
    said = driver.why_not_fired()
    assert 'idle_timeout="30 s" of the join' in said and "MultiSourceWatermarkSpec" in said


JOB = """
import krishiv_py as kv

def orders(session):
    rows = session.read_json({folder!r}, "user string, at bigint", streaming=True)
    return rows.watermark("at", 0).key_by("user").tumbling_window(10_000).agg(kv.count()).to(kv.MemorySink())
"""


def test_the_command_checks_a_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, checkpoint, job = tmp_path / "in", str(tmp_path / "checkpoint"), tmp_path / "why_job.py"
    folder.mkdir()
    (folder / "a.json").write_text('{"user": "a", "at": 1000}\n{"user": "b", "at": 25000}\n')
    job.write_text(JOB.format(folder=str(folder)))
    assert main(["why", checkpoint, "--job", f"{job}:orders"]) == 1
    assert "no query has begun" in capsys.readouterr().err
    assert main(["run", f"{job}:orders", "--checkpoint", checkpoint, "--until-idle"]) == 0
    capsys.readouterr()
    requested = ["why", checkpoint, "--job", f"{job}:orders"]
    assert main([*requested, "--key", "b", "--time", "1970-01-01T00:00:25Z"]) == 0
    out = capsys.readouterr().out
    assert "window 1970-01-01T00:00:20Z to 1970-01-01T00:00:30Z: open" in out and " since 20" in out
    assert main([*requested, "--time", "5000"]) == 0
    assert "Z; if a row was accepted in time it has fired" in capsys.readouterr().out
    for wrong, said in (
        (["--key", "a", "--key", "b"], "2 values"),
        (["--time", "soon"], "`time`"),
        (["--stage", "x"], "stage"),
    ):
        assert main([*requested, *wrong]) == 1
        assert said in capsys.readouterr().err


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        ({"key": 5}, PlanError),
        ({"key": ("a", "b")}, PlanError),
        ({"key": ["a", "b"]}, PlanError),
        ({"key": "a", "time": "soon"}, DurationError),
        ({"key": "a", "time": True}, DurationError),
        ({"key": "a", "stage": "nowhere"}, PlanError),
    ],
    ids=lambda value: "-".join(map(str, value)) if isinstance(value, dict) else None,
)
def test_wrong_calls(call: dict[str, Any], kind: type[KrishivError]) -> None:
    driver = Driver(stream(0, 0, "event").tumbling_window(10).agg(count()))
    with pytest.raises(kind):
        driver.why(**call)


@pytest.mark.parametrize("windows", [lambda s: s.count_window(2), lambda s: s.tumbling_window(10).emit("retractions")])
def test_windows_of_every_kind_are_answered(windows: Any) -> None:
    driver = Driver(windows(stream(0, 5, "event")).agg(count()))
    assert "no row has come that sets the watermark" in driver.why("a", 5)
    driver.send([{"user": "a", "at": 1}, {"user": "a", "at": 12}])
    assert driver.why("a", 1).count("\n") == 2
    driver.close()
    assert "the input has ended" in driver.why("a", 1)


def test_without_a_name_the_oldest_window_of_any_stage_is_named() -> None:
    # The second stage has no row yet: what holds up the query is a window of the first.
    per_second = stream_of("user string, at bigint").watermark("at", 0).key_by("user").tumbling_window(1_000).agg(count())
    driver = Driver(per_second.named("per_second").key_by("user").tumbling_window(5_000).agg(total("count")).named("per_five"))
    driver.send([{"user": "a", "at": 100}])
    assert driver.why_not_fired().startswith("stage 'per_second': the window that ends at 1970-01-01T00:00:01Z fires when")
    driver.send([{"user": "b", "at": 1_000}])
    assert driver.why_not_fired().startswith("stage 'per_second': the window that ends at 1970-01-01T00:00:02Z fires when")
    waiting = driver.why_not_fired(stage="per_five")
    assert waiting.startswith("stage 'per_five': the window that ends at 1970-01-01T00:00:05Z")
    assert driver.why_not_fired(10_000).startswith("stage 'per_five': the window that ends at 1970-01-01T00:00:10Z")


def test_what_moves_the_watermark_is_said_once() -> None:
    """Windows that wait for the same clock need not repeat it."""
    counts = (
        stream_of("user string, at bigint").watermark("at", "5 s").key_by("user").hopping_window("10 s", "2 s").agg(count())
    )
    driver = Driver(counts)
    driver.send([{"user": "a", "at": 4_000}, {"user": "a", "at": 9_000}])
    lines = driver.why("a", 4_000).splitlines()[2:]
    assert len(lines) == 5 and sum("fires when the watermark reaches" in line for line in lines) == 5
    assert [line.count("or the end of input moves it there") for line in lines] == [1, 0, 0, 0, 0]
    assert lines[1].endswith(": open; it fires when the watermark reaches 1970-01-01T00:00:08Z.")
