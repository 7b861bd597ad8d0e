"""Stages in settled order for the job that is killed: process functions by row and by round, absence, patterns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import attrs

from krishiv_py import Context, Events, RoundContext, Row, col, collect_list, last, prev, step
from krishiv_py.api.stages.keyed import KeyedStream
from krishiv_py.api.stages.results import ResultStream

KINDS: Final = ("process", "rounds", "absence", "pattern")


@attrs.define
class Seen:
    """The rows of a key since it was reported, and their amounts."""

    rows: int = 0
    amounts: list[int] = attrs.field(factory=list)


class Busy:
    """Reports a key after its third row, and when it was silent; refuses some rows, and forgets keys."""

    def on_row(self, row: Row, state: Seen, ctx: Context) -> Iterator[dict[str, Any]]:
        """Count a row."""
        state.rows += 1
        state.amounts.append(row.amount)
        if row.amount == 13:
            ctx.refuse(row, "unlucky")
        ctx.timer("silent", after=700)
        if state.rows % 3 == 0:
            yield {"rows": state.rows, "amounts": state.amounts}

    def on_timer(self, name: str, state: Seen, ctx: Context) -> Iterator[dict[str, Any]]:
        """Report the key, and begin with it again."""
        yield {"rows": -state.rows, "amounts": state.amounts}
        ctx.forget()


@attrs.define
class Counted:
    """The number of rows of a key."""

    rows: int = 0


class Silent:
    """The same by columns, without amounts."""

    def on_events(self, events: Events, state: Any, ctx: RoundContext) -> None:
        """Take a round."""
        state.rows = state.rows + events.is_row
        ctx.timer("silent", after=700, where=events.is_row)
        ctx.emit(where=~events.is_row, rows=state.rows)
        ctx.forget(where=~events.is_row)


def ordered(keyed: KeyedStream, kind: str) -> ResultStream:
    """A stage in settled order."""
    if kind == "process":
        return keyed.process(Busy(), returns="rows bigint, amounts array<bigint>", state=Seen)
    if kind == "rounds":
        return keyed.process(Silent(), returns="rows bigint", state=Counted)
    if kind == "absence":
        return keyed.absent(700, repeat=300, forget_after=2_000, expected=list(range(45)), start=0)
    rises = step("low", col("amount") < 30).then(step("up", col("amount") > prev("amount")).one_or_more())
    pattern = rises.without(col("amount") == 50).followed_by(step("top", col("amount") >= last("up.amount")))
    return keyed.match(pattern, within=2_000, measures=collect_list("amount").alias("amounts"), timeouts="side_output")
