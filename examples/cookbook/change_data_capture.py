"""Change data capture: a topic of Debezium as a table of PostgreSQL, and a total of it in Delta, kept as the database is.

``python -m examples.cookbook.change_data_capture`` starts a broker of its own and writes Delta alone. With the address of a
broker and of a database, ``... localhost:9092 postgresql://user@localhost/copy``, it uses these. Needs the extras ``kafka`` and
``delta``, and ``postgres`` for a database.
"""

import json
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]
from deltalake import DeltaTable

from krishiv_py import DeltaSink, ParquetSink, PostgresSink, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.testing.broker import running

TOPIC = "shop.public.customers"
ROW = "struct<id: bigint, city: string, credit: bigint>"
SCHEMA = f"op string, before {ROW}, after {ROW}, source struct<lsn: bigint>"


def row(key: int, city: str, credit: int) -> dict[str, Any]:
    """A customer."""
    return {"id": key, "city": city, "credit": credit}


ANN, BOB, CEM = row(1, "Ulm", 5), row(2, "Ulm", 7), row(3, "Rom", 2)
FIRST = [("r", None, ANN, 10), ("r", None, BOB, 10), ("c", None, CEM, 11), ("u", ANN, row(1, "Rom", 5), 12)]
SECOND = [
    ("d", BOB, None, 13),  # bob's key changes from 2 to 4: a deletion, a tombstone, a creation
    None,
    ("c", None, row(4, "Ulm", 7), 14),
    ("u", ANN, row(1, "Rom", 5), 12),  # the connector has crashed, and sends this once more
    ("r", None, CEM, 15),  # ... and reads a snapshot again
    ("u", CEM, row(3, "Rom", 9), 16),
]


def write(address: str, changes: list[Any]) -> None:
    """Write changes to the topic, as Debezium does."""
    producer, key = Producer({"bootstrap.servers": address}), 0
    for change in changes:
        value = None
        if change is not None:
            op, before, after, lsn = change
            key = (after or before)["id"]
            value = json.dumps({"op": op, "before": before, "after": after, "source": {"lsn": lsn}, "ts_ms": 1})
        producer.produce(TOPIC, value, key=json.dumps({"id": key}))
    producer.flush()


def run(address: str, database: str | None, folder: Path) -> None:
    """Take what is there, and stop. Leave the last two lines out, and it runs until it is stopped."""
    with Session.in_process() as session:
        customers = (
            session.read_kafka(TOPIC, bootstrap_servers=address, schema=SCHEMA, tombstones="null", on_malformed="side_output")
            # The log position makes the table independent of repeated and late records.
            .from_changelog("debezium", key="id", sequence="source.lsn")
            # Operations that are not known, and records that cannot be read, are kept.
            .with_late_event_handler(SideOutputLateEventHandler(ParquetSink(str(folder / "refused"))))
        )
        cities = customers.key_by("city").agg(count().alias("customers"), credit=sum("credit"))
        outputs = [cities.to(DeltaSink(folder / "cities", key=["city"]), name="cities")]
        if database is not None:
            outputs.append(customers.to(PostgresSink(database, "customers", key=["id"]), name="customers"))
        query = session.start(outputs, checkpoint=folder / "checkpoint")
        query.process_all_available()
        query.stop()


def main(address: str | None = None, database: str | None = None) -> list[dict[str, Any]]:
    """Run twice from one checkpoint, with changes in between; gives the totals."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        broker = address or opened.enter_context(running()).address
        admin = AdminClient({"bootstrap.servers": broker})
        for made in admin.create_topics([NewTopic(TOPIC, 1)]).values():
            made.result()
        for changes in (FIRST, SECOND):
            write(broker, changes)
            run(broker, database, folder)
        rows: list[dict[str, Any]] = DeltaTable(folder / "cities").to_pyarrow_table().to_pylist()
    return sorted(rows, key=lambda each: str(each["city"]))


if __name__ == "__main__":
    rows = main(*sys.argv[1:3])
    print(*rows, sep="\n")
    assert rows == [{"city": "Rom", "customers": 2, "credit": 14}, {"city": "Ulm", "customers": 1, "credit": 7}]
    print("change data capture: the tables are as the database is")
