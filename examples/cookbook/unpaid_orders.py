"""Orders that were placed and not paid within 15 minutes: a state machine of one's own for each order."""

from collections.abc import Iterator

import attrs

from krishiv_py import Context, MemorySink, Session


@attrs.frozen
class Event:
    """What came of an order."""

    order: str
    at: int
    what: str


@attrs.define
class Placed:
    """The state of an order."""

    at: int | None = None


class Unpaid:
    """Reports an order that was placed and not paid in time, once."""

    def on_row(self, event: Event, state: Placed, ctx: Context) -> None:
        if event.what == "placed":
            state.at = ctx.time
            ctx.timer("due", after="15 minutes")
        elif event.what == "paid":
            ctx.forget()  # with its timer

    def on_timer(self, name: str, state: Placed, ctx: Context) -> Iterator[dict[str, int | None]]:
        yield {"placed_at": state.at}
        ctx.forget()


MINUTE = 60_000
EVENTS = [
    ("a", 0, "placed"),
    ("b", 1, "placed"),
    ("b", 16, "paid"),  # just too late: the timer of a time comes before its rows
    ("c", 10, "paid"),  # out of order: its order comes next
    ("c", 9, "placed"),
    ("a", 30, "shipped"),
]

with Session.in_process() as session:
    events, sender = session.memory_stream(Event)
    unpaid = events.watermark("at", "10 minutes").key_by("order").process(Unpaid(), returns="placed_at bigint", state=Placed)
    query = unpaid.start(MemorySink())
    sender.send([Event(order, minute * MINUTE, what) for order, minute, what in EVENTS])
    sender.close()
    query.process_all_available()
    rows = query.results().to_pylist()

print(*rows, sep="\n")
assert [(row["order"], row["at"] // MINUTE) for row in rows] == [("a", 15), ("b", 16)]
