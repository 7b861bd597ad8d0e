"""Change data capture from a real topic: Debezium's records as a table, whatever a connector does (SEMANTICS §16.2)."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from krishiv_py import MemorySink, ResultStream, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.testing.broker import Broker
from tests.changes.debezium import (
    ENVELOPE,
    HEARTBEAT,
    SCHEMA,
    TRANSACTION,
    TRUNCATION,
    VALUE,
    Database,
    envelope,
    in_avro,
    in_protobuf,
    with_schema,
    write,
)
from tests.changes.held import counted_rows
from tests.examples import scaled
from tests.kafka.messages import registry
from tests.kernels.changes.reference import Rows, grouped

Topic = Callable[..., str]


def customers(session: Session, broker: Broker, topics: str, schema: str = SCHEMA, at: str = "source.lsn") -> ResultStream:
    """The table of a topic."""
    rows = session.read_kafka(topics, bootstrap_servers=broker.address, schema=schema, tombstones="null")
    return rows.from_changelog("debezium", key="id", sequence=at)


def held(plan: ResultStream, sink: MemorySink, folder: Path) -> Rows:
    """Run a query over what is there, from its checkpoint; gives the content."""
    query = plan.start(sink, checkpoint=folder / "checkpoint")
    query.process_all_available()
    query.stop()
    content = sink.content()
    return [] if content is None else content.to_pylist()


def change(database: Database, draw: random.Random) -> None:
    """Do to a table what applications and connectors do."""
    keys = sorted(database.by_id)
    what = draw.choice(["put"] * 5 + ["delete", "key", "snapshot", "repeat", "message"])
    if what == "put" or not keys:
        database.put(draw.randrange(8), draw.choice(("Ulm", "Rom", None)), draw.randrange(9))
    elif what == "delete":
        database.delete(draw.choice(keys))
    elif what == "key":
        free = sorted(set(range(9)) - database.by_id.keys())
        database.change_key(draw.choice(keys), draw.choice(free))
    elif what == "snapshot":
        database.snapshot()
    elif what == "repeat":
        database.repeat(draw.randrange(1, 6))
    else:
        database.message("hello")


@pytest.mark.one_in(2)
@pytest.mark.parametrize("partitions", [1, 3])
def test_a_topic_is_the_table_of_the_database(partitions: int, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    for seed in range(scaled(2)):
        draw, database, name = random.Random(seed), Database(), topic(partitions)
        sinks, sent = (MemorySink(), MemorySink()), 0
        for _ in range(4):
            for _ in range(draw.randrange(1, 12)):
                change(database, draw)
            write(broker, name, database.records[sent:], partitions)
            sent = len(database.records)
            with Session.in_process() as session:
                table = customers(session, broker, name)
                per_city = table.key_by("city").agg(n=count(), credit=sum("credit"))
                assert counted_rows(held(table, sinks[0], tmp_path / f"{seed} rows")) == counted_rows(database.rows)
                wanted = grouped(database.rows, ("city",), {"n": len, "credit": lambda rows: _credit(rows)})
                assert counted_rows(held(per_city, sinks[1], tmp_path / f"{seed} cities")) == counted_rows(wanted)


def _credit(rows: Rows) -> int:
    total = 0
    for row in rows:
        total += row["credit"]
    return total


@pytest.mark.parametrize("batches", [1, 3])
def test_a_row_whose_key_changes_is_moved(batches: int, broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """Case C21: the deletion, its tombstone and the creation, in one batch and in three."""
    database, name, sink = Database(), topic(), MemorySink()
    database.put(1, "Ulm", 5)
    database.change_key(1, 2)
    size = 4 if batches == 1 else 1
    for begin in range(0, 4, size):
        write(broker, name, database.records[begin : begin + size])
        with Session.in_process() as session:
            rows = held(customers(session, broker, name), sink, tmp_path)
    assert rows == [{"id": 2, "city": "Ulm", "credit": 5}]
    log = sink.table()
    assert log is not None and log["op"].to_pylist() == (["+I"] if batches == 1 else ["+I", "-D", "+I"])


def test_records_of_the_avro_converter_are_the_same_table(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """The envelope has the row's type by name, unions with null, and a tombstone after each deletion."""
    draw, database, name, sink = random.Random(3), Database(), topic(), MemorySink()
    for _ in range(30):
        change(database, draw)
    records = [record for record in database.records if record[1] is None or b"audit" not in record[1]]
    subject = {"subject": f"{name}-value", "schema": json.dumps(ENVELOPE)}
    with registry({7: subject}) as (address, _), Session.in_process() as session:
        write(broker, name, [in_avro(record, 7) for record in records])
        rows = session.read_kafka(
            name,
            bootstrap_servers=broker.address,
            schema=SCHEMA,
            value_format="avro",
            schema_registry=address,
            tombstones="null",
        )
        table = rows.from_changelog("debezium", key="id", sequence="source.lsn")
        assert counted_rows(held(table, sink, tmp_path)) == counted_rows(database.rows)


def test_messages_of_protobuf_are_the_same_table(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """What is null is a field that is not set, and a tombstone follows each deletion."""
    draw, database, name, sink, made = random.Random(5), Database(), topic(), MemorySink(), envelope()
    for _ in range(40):
        change(database, draw)
    with Session.in_process() as session:
        write(broker, name, [in_protobuf(record, made) for record in database.records])
        rows = session.read_kafka(
            name,
            bootstrap_servers=broker.address,
            schema=SCHEMA,
            value_format="protobuf",
            protobuf_message=made,
            tombstones="null",
        )
        table = rows.from_changelog("debezium", key="id", sequence="source.lsn")
        assert counted_rows(held(table, sink, tmp_path)) == counted_rows(database.rows)


def test_a_snapshot_that_is_read_again_changes_nothing(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """Case C22."""
    database, name, sink = Database(), topic(), MemorySink()
    for key in range(5):
        database.put(key, "Ulm", key)
    for _ in range(2):
        write(broker, name, database.records)
        database.records.clear()
        database.snapshot()
        with Session.in_process() as session:
            assert len(held(customers(session, broker, name), sink, tmp_path)) == 5
    log = sink.table()
    assert log is not None and log.num_rows == 5


def test_heartbeats_transactions_and_messages_are_passed_over(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    """A pattern that takes all topics of a connector takes those of its own, too."""
    database, first = Database(), topic()
    others = [topic(), topic()]
    database.put(1, "Ulm", 5)
    database.message("hello")
    write(broker, first, database.records)
    write(broker, others[0], [HEARTBEAT])
    write(broker, others[1], [TRANSACTION])
    late = MemorySink()
    with Session.in_process() as session:
        read = session.read_kafka([first, *others], bootstrap_servers=broker.address, schema=SCHEMA, tombstones="null")
        timed = read.from_changelog("debezium", key="id", sequence="source.lsn")
        plan = timed.with_late_event_handler(SideOutputLateEventHandler(late))
        query = plan.start(MemorySink())
        query.process_all_available()
        assert query.results().num_rows == 1 and late.table() is None
        assert query.progress.counters["rows"] == 1


def test_a_truncation_goes_aside_and_is_counted(broker: Broker, topic: Topic) -> None:
    """It names no row, so the table cannot follow it; Debezium leaves it out by default."""
    database, name, late = Database(), topic(), MemorySink()
    database.put(1, "Ulm", 5)
    write(broker, name, [*database.records, TRUNCATION])
    with Session.in_process() as session:
        plan = customers(session, broker, name).with_late_event_handler(SideOutputLateEventHandler(late))
        query = plan.start(MemorySink())
        query.process_all_available()
        assert query.progress.counters["refused_changes"] == 1
        assert query.results().to_pylist() == [{"id": 1, "city": "Ulm", "credit": 5, "op": "+I"}]
        query.stop()
    rows = late.table()
    assert rows is not None and rows["reason"].to_pylist() == ["bad_op"]


def test_records_with_a_schema_have_them_in_a_payload(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    database, name = Database(), topic()
    database.put(1, "Ulm", 5)
    database.put(1, "Rom", 6)
    database.put(2, "Ulm", 7)
    database.delete(2)
    write(broker, name, [with_schema(record) for record in database.records])
    columns = VALUE.replace("struct<id: bigint, ", "struct<id: bigint, ")
    schema = f"payload struct<op: string, {columns.replace('before ', 'before: ').replace('after ', 'after: ')}, "
    schema += "source: struct<lsn: bigint>>"
    with Session.in_process() as session:
        rows = held(customers(session, broker, name, schema, "payload.source.lsn"), MemorySink(), tmp_path)
    assert rows == [{"id": 1, "city": "Rom", "credit": 6}]


def test_tombstones_of_upserts_delete(broker: Broker, topic: Topic, tmp_path: Path) -> None:
    name, sink = topic(), MemorySink()
    value = json.dumps({"city": "Ulm"}).encode()
    write(broker, name, [(b'{"id":1}', value), (b'{"id":2}', value), (b'{"id":1}', None), (b'{"id":3}', None)])
    with Session.in_process() as session:
        rows = session.read_kafka(
            name,
            bootstrap_servers=broker.address,
            schema="city string",
            key_format="json",
            key_schema="id bigint",
            tombstones="null",
        )
        assert held(rows.from_changelog("upsert", key="id"), sink, tmp_path) == [{"city": "Ulm", "id": 2}]


def test_tombstones_are_malformed_unless_they_are_asked_for(broker: Broker, topic: Topic) -> None:
    name, late = topic(), MemorySink()
    good, broken = b'{"city":"Ulm"}', b'{"city":'
    write(broker, name, [(b"a", good), (b"a", None), (b"a", broken), (b"a", None), (b"a", good)])

    def read(how: Any) -> tuple[list[Any], list[Any]]:
        late = MemorySink()
        with Session.in_process() as session:
            options: dict[str, Any] = {"on_malformed": "side_output", "key": "k"}
            rows = session.read_kafka(
                name, bootstrap_servers=broker.address, schema="city string", tombstones=how, ending="latest", **options
            )
            handled = rows.with_late_event_handler(SideOutputLateEventHandler(late))
            cities = handled.collect()["city"].to_pylist()
        table = late.table()
        return cities, [] if table is None else table["malformed_offset"].to_pylist()

    assert read("malformed") == (["Ulm", "Ulm"], [1, 2, 3])
    assert read("null") == (["Ulm", None, None, "Ulm"], [2])
    assert late.table() is None
