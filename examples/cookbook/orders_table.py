"""Changes of orders, as a database sends them, into a table that has each order once, as it is now. Needs the extra ``delta``.

``python -m examples.cookbook.orders_table``: a change is ``c`` (created), ``u`` (updated) or ``d`` (deleted).
"""

import tempfile
from pathlib import Path

from deltalake import DeltaTable

from krishiv_py import DeltaSink, Session

SCHEMA = "op string, order bigint, state string, at bigint"


def run(folder: Path, *sends: list[tuple[str, int, str, int]]) -> None:
    """Start the query from its checkpoint, send changes, and stop it."""
    with Session.in_process() as session:
        changes, sender = session.memory_stream(SCHEMA, spool=folder / "sent")
        once = (
            changes.watermark("at", "1 minute")
            # A connector repeats changes after a restart of its own. The same change of an order passes once.
            .key_by("order")
            .drop_duplicates("op", "at", within="1 hour")
        )
        # A change log for the sink: +I and +U put a row in place of the one that is there, -D takes it out.
        log = once.with_column("op", "CASE op WHEN 'c' THEN '+I' WHEN 'u' THEN '+U' ELSE '-D' END")
        query = log.start(DeltaSink(folder / "orders", key=["order"]), checkpoint=folder / "checkpoint")
        for rows in sends:
            sender.send([dict(zip(("op", "order", "state", "at"), row, strict=True)) for row in rows])
        query.process_all_available()
        query.stop()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    run(folder, [("c", 1, "new", 1_000), ("c", 2, "new", 2_000), ("c", 3, "new", 3_000)])
    run(folder, [("u", 1, "paid", 4_000), ("c", 2, "new", 2_000)], [("d", 3, "new", 5_000), ("u", 2, "sent", 6_000)])
    rows = sorted(DeltaTable(folder / "orders").to_pyarrow_table().to_pylist(), key=lambda row: row["order"])

print(*rows, sep="\n")
assert [(row["order"], row["state"]) for row in rows] == [(1, "paid"), (2, "sent")]
print("orders table: each order once, as it is now")
