"""What a call leaves and no column holds is an error of that call: it names the key and the time, or its row goes aside."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import pytest

from krishiv_py import Context, Events, OperatorError, PlanError, RoundContext, Row, SchemaError
from krishiv_py.kernels.process import rounds
from krishiv_py.testing import Driver, stream_of

DDL = "k string, at bigint, v bigint"
RETURNS = "n bigint, due bigint"
ROWS = [{"k": "ab"[n % 2], "at": n, "v": n % 5} for n in range(12)]
BAD = 3
"""Rows with this value leave what does not fit."""


@attrs.define
class Seen:
    """The state of a key."""

    rows: int = 0
    tags: list[int] = attrs.field(factory=list)


def _raises(row: Any, state: Seen) -> Any:
    raise ValueError


def _after(row: Any, done: None) -> Any:
    return {"n": 1, "due": row.at}


WRONG: dict[str, Callable[[Any, Seen], Any]] = {
    "raises": _raises,
    "text": lambda row, state: {"n": "x", "due": row.at},
    "fraction": lambda row, state: {"n": 1.5, "due": row.at},
    "large": lambda row, state: {"n": 2**70, "due": row.at},
    "other columns": lambda row, state: {"n": 1},
    "no event time": lambda row, state: {"n": 1, "due": None},
    "past": lambda row, state: {"n": 1, "due": row.at - 1},
    "state": lambda row, state: _after(row, setattr(state, "rows", "many")),  # type: ignore[func-returns-value]
    "state in a list": lambda row, state: _after(row, state.tags.append("x")),  # type: ignore[func-returns-value, arg-type]
}


class ByRow:
    """Counts rows; some are wrong."""

    def __init__(self, wrong: Callable[[Any, Seen], Any]) -> None:
        self.wrong = wrong

    def on_row(self, row: Row, state: Seen, ctx: Context) -> Any:
        """Count a row."""
        state.rows += 1
        state.tags.append(row.v)
        yield {"n": state.rows, "due": row.at}
        if row.v == BAD:
            yield self.wrong(row, state)

    def on_timer(self, name: str, state: Seen, ctx: Context) -> None:
        """Nothing."""


class ByRound(ByRow):
    """The same by rounds."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        """Take a round."""
        state.rows = state.rows + 1
        for tags, v in zip(state.tags, events.v, strict=True):
            tags.append(int(v))
        ctx.emit(n=state.rows, due=events.time)
        for place in np.flatnonzero(events.v == BAD).tolist():
            one = Seen(int(state.rows[place]), state.tags[place])
            row = {"n": 0} | self.wrong(attrs.make_class("At", ["at"])(int(events.time[place])), one)
            mask = np.arange(len(events)) == place
            ctx.emit({name: np.full(len(events), value, object) for name, value in row.items()}, where=mask)
            if not isinstance(one.rows, int):
                state.rows = np.full(len(events), one.rows, object)


def _given(function: Any, cut: int, **options: Any) -> tuple[list[Any], list[Any], int]:
    stream = stream_of(DDL).watermark("at", 2).key_by("k")
    driver = Driver(stream.process(function, returns=RETURNS, state=Seen, event_time="due", **options))
    outs = [driver.send(ROWS[n : n + cut]) for n in range(0, len(ROWS), cut)] + [driver.close()]
    results = [(row["k"], row["due"], row["n"]) for out in outs for row in out.results.to_pylist()]
    late = [(row["k"], row["at"], row["v"]) for out in outs for row in out.late.to_pylist()]
    return sorted(results), sorted(late), driver.counters.get("failed_calls", 0)


@pytest.mark.one_in(5)
@pytest.mark.parametrize("cut", [2, 99])
@pytest.mark.parametrize("made", [ByRow, ByRound, "hot"])
@pytest.mark.parametrize("wrong", list(WRONG))
def test_a_row_whose_call_leaves_what_does_not_fit_goes_aside(
    wrong: str, made: Any, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if made == "hot":
        monkeypatch.setattr(rounds, "LONG", 1)
        made = ByRound
    wanted = _given(ByRow(_raises), cut, on_error="side_output")
    assert [v for _, _, v in wanted[1]] == [BAD] * 2
    assert _given(made(WRONG[wrong]), cut, on_error="side_output") == wanted


@pytest.mark.parametrize("made", [ByRow, ByRound])
@pytest.mark.parametrize("wrong", [name for name in WRONG if name not in ("raises", "other columns")])
def test_without_that_the_query_stops_and_the_key_is_named(wrong: str, made: Any) -> None:
    with pytest.raises(
        (OperatorError, SchemaError), match="for key k='[ab]'" if "state" in wrong else "for key k='(b' at 3|a' at 8)"
    ):
        _given(made(WRONG[wrong]), 99)


@pytest.mark.parametrize("half", ["\ud800", "x\udfff"])
def test_names_and_reasons_are_texts_that_a_column_holds(half: str) -> None:
    class Rounds:
        def __init__(self, call: Any) -> None:
            self.call = call

        def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
            self.call(events, ctx)

    for call, text in [
        (lambda events, ctx: ctx.timer(half, after=5), "a timer has a name"),
        (lambda events, ctx: ctx.timer(np.full(len(events), half, object), after=5), "a timer has a name"),
        (lambda events, ctx: ctx.refuse(half), "a row is refused with a reason"),
    ]:
        with pytest.raises(PlanError, match=text):
            _given(Rounds(call), 99)
    with pytest.raises(PlanError, match="a timer has a name"):
        Context("a", 0).timer(half, after=5)
    with pytest.raises(PlanError, match="a row is refused with a reason"):
        Context("a", 0).refuse(None, half)
