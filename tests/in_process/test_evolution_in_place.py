"""A changed plan goes on from its own checkpoint where no state has to be written again; else the error says how to go on.

The reference is the same change over a savepoint, which has a reference of its own.
"""

from __future__ import annotations

import ast
import functools
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import krishiv_py as kv
from krishiv_py import CheckpointError, MemorySink, Session, StateTtlConfig, count
from krishiv_py.cli.main import main
from krishiv_py.planner.several import several
from krishiv_py.runtime.beginning import changes_against
from tests.in_process.test_evolution import LAG, OPERATORS, SCHEMA, batches

Make = Callable[[Any], Any]
"""Outputs over a stream."""


def kept(kind: str, *aggs: Any, late: int = 0, emit: Any = None, ttl: Any = None, named: str = "stage") -> Make:
    """Windows of a kind."""

    def made(stream: Any) -> Any:
        timed = stream.watermark("at", LAG).allowed_lateness(late)
        timed = timed if ttl is None else timed.with_state_ttl(ttl)
        keyed = (timed if emit is None else timed.emit(emit)).key_by("user")
        return OPERATORS[kind](keyed).agg(*(aggs or (count(), kv.sum("amount").alias("total")))).named(named)

    return made


def named(**outputs: Make) -> Make:
    """Several outputs over one stream."""
    return lambda stream: {name: make(stream) for name, make in outputs.items()}


def with_filter(stream: Any) -> Any:
    """One stage, and two outputs of it."""
    minutes = kept("tumbling")(stream)
    return {"all": minutes, "large": minutes.filter(kv.col("count") > 1)}


def with_hours(stream: Any) -> Any:
    """A stage of the same rows is added behind the other one."""
    return {"all": kept("tumbling")(stream), "hours": kept("hopping", named="hours")(stream)}


def with_chain(stream: Any) -> Any:
    """A stage of its results is added."""
    minutes = kept("tumbling")(stream)
    longer = minutes.key_by("user").tumbling_window(180_000).agg(kv.sum("total").alias("total")).named("longer")
    return {"all": minutes, "longer": longer}


def wider(stream: Any) -> Any:
    """The amounts as decimals."""
    return stream.with_column("amount", kv.col("amount").cast("decimal(20,2)"))


def joined(how: str, late: int = 0) -> Make:
    """The rows of a stream with other rows of the same stream."""

    def made(stream: Any) -> Any:
        other = stream.filter("amount > 64").select("user", kv.col("at").alias("seen"), kv.col("amount").alias("price"))
        left = stream.watermark("at", LAG).allowed_lateness(late).key_by("user")
        right = other.watermark("seen", LAG).allowed_lateness(late).key_by("user")
        if how == "as-of":
            return left.asof_join(right).named("stage")
        if how == "window":
            return left.window_join(right, window=kv.windows.tumbling("1 minute")).named("stage")
        kind: Any = how
        return left.interval_join(right, lower="-20 seconds", upper="20 seconds", how=kind).named("stage")

    return made


def first_rows(late: int = 0) -> Make:
    """The first row of each user within two minutes."""
    return lambda s: s.watermark("at", LAG).allowed_lateness(late).drop_duplicates("user", within="2 minutes").named("stage")


def new_rows(*every: int) -> Make:
    """What came to overlapping windows since they fired: at their end, or each so many rows."""

    def made(stream: Any) -> Any:
        timed = stream.watermark("at", LAG).emit("updates").accumulation("discarding")
        timed = timed.trigger(kv.Trigger.on_count(*every)) if every else timed
        return OPERATORS["hopping"](timed.key_by("user")).agg(*COUNTED).named("stage")

    return made


def fired(kind: str, accumulation: Any = "accumulating", emit: Any = "updates") -> Make:
    """Windows of a kind that fire at every second row."""

    def made(stream: Any) -> Any:
        timed = stream.watermark("at", LAG).allowed_lateness(60_000).emit(emit)
        timed = timed.trigger(kv.Trigger.on_count(2)).accumulation(accumulation)
        return OPERATORS[kind](timed.key_by("user")).agg(*COUNTED).named("stage")

    return made


COUNTED = count(), kv.sum("amount").alias("total")
CHANGES: dict[str, tuple[Make, Make]] = {
    "an aggregate is renamed": (kept("tumbling"), kept("tumbling", count().alias("n"), COUNTED[1])),
    "an output is added": (kept("tumbling"), with_filter),
    "an output is removed": (with_filter, named(all=kept("tumbling"))),
    "an output with a stage is added": (kept("tumbling"), with_hours),
    "a stage of results is added": (named(all=kept("tumbling")), with_chain),
    "final results become updates": (kept("tumbling", emit="final"), kept("tumbling", emit="updates")),
}
for _kind in ("tumbling", "hopping", "lookback", "session"):
    _final = kept(_kind, late=10_000, emit="final"), kept(_kind, late=60_000, emit="final")
    CHANGES[f"{_kind}: lateness becomes larger"] = _final
    _smaller = kept(_kind, late=60_000, emit="updates"), kept(_kind, late=5_000, emit="updates")
    CHANGES[f"{_kind}: lateness becomes smaller"] = _smaller
    if _kind != "session":
        CHANGES[f"{_kind}: updates become retractions"] = _smaller[0], kept(_kind, late=60_000, emit="retractions")
for _kind in ("tumbling", "hopping", "count"):
    CHANGES[f"{_kind}: accumulating becomes discarding"] = fired(_kind), fired(_kind, "discarding")
CHANGES["count: discarding becomes accumulating"] = fired("count", "discarding"), fired("count")
CHANGES["count: updates with a trigger become retractions"] = fired("count"), fired("count", emit="retractions")
KEPT: dict[str, Callable[[int], Make]] = {
    "deduplication": first_rows,
    **{f"{how} join": functools.partial(joined, how) for how in ("inner", "full", "semi", "anti", "as-of", "window")},
}
for _kind, _of in KEPT.items():
    for _was, _now in ((0, 40_000), (10_000, 60_000)):
        CHANGES[f"{_kind}: lateness from {_was} to {_now}"] = _of(_was), _of(_now)
_FIRED = "which windows have fired"
_SIZED = ("tumbling", "hopping", "session")
REFUSED: dict[str, tuple[Make, Make, str]] = {
    "an aggregate is added": (kept("tumbling"), kept("tumbling", *COUNTED, kv.max("amount")), "aggregates"),
    "aggregates are moved": (kept("tumbling"), kept("tumbling", *COUNTED[::-1]), "aggregates"),
    "a type is widened": (kept("tumbling"), lambda s: kept("tumbling")(wider(s)), "aggregates"),
    "lateness of final results becomes smaller": (kept("tumbling", late=60_000, emit="final"), kept("tumbling"), _FIRED),
    "sessions with other emission": (kept("session", emit="final"), kept("session", emit="updates"), _FIRED),
    "a time to live is added": (kept("session"), kept("session", ttl=StateTtlConfig("1 day")), "last touched"),
    "a stage is removed": (with_hours, named(all=kept("tumbling")), "the plan has no stage of this name"),
    **{f"{kind} with smaller lateness": (of(60_000), of(5_000), _FIRED) for kind, of in KEPT.items()},
    "overlapping windows fire early": (new_rows(), new_rows(2), _FIRED),
    **{f"{kind}: discarding becomes accumulating": (fired(kind, "discarding"), fired(kind), _FIRED) for kind in _SIZED},
    "session: accumulating becomes discarding": (fired("session"), fired("session", "discarding"), _FIRED),
    "another window": (kept("tumbling"), kept("hopping"), "window kind was tumbling"),
}


def run(session: Session, folder: Path, make: Make, checkpoint: str, sent: list[Any], **start: Any) -> dict[str, Any]:
    """What comes out of some batches, by output; the last run also ends the input."""
    end, path = start.pop("end", False), start.pop("save", None)
    stream, sender = session.memory_stream(SCHEMA, spool=str(folder / "spool" / checkpoint[-1:]))
    outputs = make(stream)
    if isinstance(outputs, dict):
        listed = [output.to(MemorySink(), name=name) for name, output in outputs.items()]
        query: Any = session.start(listed, checkpoint=str(folder / checkpoint), **start)
    else:
        query = outputs.start(MemorySink(), checkpoint=str(folder / checkpoint), **start)
    with query:
        for rows in sent:
            with query._engine.between_batches():  # both sides of a join have the rows in one batch
                sender.send(rows)
            query.process_all_available()
        if end:
            sender.close()
            query.process_all_available()
        if path is not None:
            query.savepoint(str(folder / path))
        if isinstance(outputs, dict):
            return {name: query.results(name).to_pylist() for name in outputs}
        return {"all": query.results().to_pylist()}


def listed(session: Session, make: Make, against: Path) -> str:
    """What becomes of each stage, as ``explain`` and ``krishiv diff`` say it."""
    outputs = make(session.memory_stream(SCHEMA)[0])
    every = outputs if isinstance(outputs, dict) else {"all": outputs}
    plan = several([(name, output._plan("streaming")) for name, output in every.items()])
    plan = plan if isinstance(outputs, dict) else outputs._plan("streaming")
    return "\n".join(map(str, changes_against(str(against), plan)))


@pytest.mark.one_in(11)
@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_place_is_the_same_change_over_a_savepoint(change: str, tmp_path: Path) -> None:
    """Twice in a row, as the note of the plan is written again each time."""
    (old, new), sent = CHANGES[change], batches(len(change), 8)
    results = []
    with Session.in_process() as session:
        for way in ("a", "b"):
            run(session, tmp_path, old, way, sent[:4], save=f"saved {way}")
            more: dict[str, Any] = {} if way == "a" else {"savepoint": str(tmp_path / "saved b")}
            checkpoint = "a" if way == "a" else "another b"
            assert "over a savepoint" not in listed(session, new, tmp_path / ("saved b" if more else "a"))
            middle = run(session, tmp_path, new, checkpoint, sent[4:6], **more)
            results.append((middle, run(session, tmp_path, new, checkpoint, sent[6:], end=True)))
    assert results[0] == results[1]
    assert any(part["all"] for part in results[0])


@pytest.mark.one_in(3)
@pytest.mark.parametrize("change", REFUSED)
def test_what_has_to_be_written_again_says_how(change: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The command and the call of the hint work as they are written."""
    old, new, why = REFUSED[change]
    sent = batches(3, 6)
    with Session.in_process() as session:
        run(session, tmp_path, old, "c", sent[:3])
        assert re.search("refused|over a savepoint", listed(session, new, tmp_path / "c"))
        note = (tmp_path / "c" / "krishiv" / "plan.json").read_bytes()
        with pytest.raises(CheckpointError, match="belongs to another plan") as error:
            run(session, tmp_path, new, "c", sent[3:])
        assert why in str(error.value)
        assert (tmp_path / "c" / "krishiv" / "plan.json").read_bytes() == note
        command = re.search(r"`krishiv (.*?)`", str(error.value))
        assert command is not None
        assert main([word.replace("SAVEPOINT", str(tmp_path / "s")) for word in shlex.split(command[1])]) == 0
        given = re.search(r"on_change=(\{.*?\})", str(error.value))
        more = {"on_change": ast.literal_eval(given[1])} if given is not None else {}
        run(session, tmp_path, new, "another c", sent[3:], savepoint=str(tmp_path / "s"), **more)
        run(session, tmp_path, old, "c", [])
    capsys.readouterr()
