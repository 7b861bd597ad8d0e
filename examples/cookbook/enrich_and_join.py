"""Orders that may come twice, with the names of their shops, joined to their payments; all in one query."""

import pyarrow as pa

from krishiv_py import MemorySink, Session, SideOutputLateEventHandler

SHOPS = pa.table({"shop": [1, 2], "town": ["Ulm", "Rom"]})

with Session.in_process() as session:
    orders, order_sender = session.memory_stream("order string, shop bigint, at bigint", name="orders")
    payments, payment_sender = session.memory_stream("order string, amount bigint, paid bigint", name="payments")
    once = (
        # A lookup keeps no state. A function instead of a table, with reload="10 minutes", sees a table that changes.
        orders.lookup_join(SHOPS, on="shop")
        .watermark("at", "10 seconds")
        # The first order of an id passes at once. State holds an id for ten minutes of event time, not for ever.
        .key_by("order")
        .drop_duplicates(within="10 minutes")
    )
    paid = (
        # Each side has the lag of its own source. A payment comes up to an hour after its order, so that is what is kept.
        once.interval_join(payments.watermark("paid", "1 minute"), on="order", lower=0, upper="1 hour", how="left")
        # how="left": an order that nobody paid comes with nulls, once no payment can come any more.
        .with_late_event_handler(SideOutputLateEventHandler(MemorySink()))
    )
    query = paid.select("order", "town", "amount").start(MemorySink())
    order_sender.send([{"order": "a", "shop": 1, "at": 1_000}, {"order": "a", "shop": 1, "at": 1_000}])
    order_sender.send([{"order": "b", "shop": 2, "at": 5_000}])
    payment_sender.send([{"order": "a", "amount": 7, "paid": 60_000}])
    order_sender.close()
    payment_sender.close()
    query.process_all_available()
    rows = query.results().to_pylist()

print(*rows, sep="\n")
assert sorted(tuple(row.values()) for row in rows if row["amount"]) == [("a", "Ulm", 7)]
assert [tuple(row.values()) for row in rows if row["amount"] is None] == [("b", "Rom", None)]
