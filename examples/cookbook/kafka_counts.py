"""Kafka to Kafka: counts of users by minute, each exactly once. Needs the extra ``kafka``.

``python -m examples.cookbook.kafka_counts`` starts a broker of its own (Java 17; fetched once, 44 MB) and fills a topic.
``python -m examples.cookbook.kafka_counts localhost:9092`` uses yours.
"""

import json
import sys
import tempfile
from contextlib import ExitStack

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]

from krishiv_py import Batches, KafkaSink, ParquetSink, Session, SideOutputLateEventHandler, count, sum
from krishiv_py.testing.broker import running


def fill(address: str) -> None:
    """Make both topics, and write 300 events and one record that cannot be read."""
    admin = AdminClient({"bootstrap.servers": address})
    for made in admin.create_topics([NewTopic("cookbook-events", 2), NewTopic("cookbook-minutes", 1)]).values():
        made.result()
    producer = Producer({"bootstrap.servers": address})
    for n in range(300):
        event = {"user": f"user-{n % 3}", "at": n * 1_000, "amount": n}
        producer.produce("cookbook-events", json.dumps(event), key=str(event["user"]))
    producer.produce("cookbook-events", "not JSON", key="user-0")
    producer.flush()


def run(address: str, folder: str) -> int:
    """Count what is there; returns how many records were refused. Leave ``batches`` out, and it runs until it is stopped."""
    with Session.in_process() as session:
        events = session.read_kafka(
            "cookbook-events",
            bootstrap_servers=address,
            schema="user string, at bigint, amount bigint",
            # One bad record must not stop the topic: it goes to the late output, with its bytes and where it was.
            on_malformed="side_output",
        )
        per_minute = (
            events.watermark("at", "5 seconds").key_by("user").tumbling_window("1 minute").agg(count(), sum("amount"))
        ).with_late_event_handler(SideOutputLateEventHandler(ParquetSink(f"{folder}/refused")))
        # Each batch is one transaction, and offsets are in the checkpoint: a crash loses nothing and repeats nothing.
        sink = KafkaSink("cookbook-minutes", bootstrap_servers=address, key="user")
        query = per_minute.start(sink, checkpoint=f"{folder}/checkpoint", batches=Batches.available_now())
        query.await_termination()
        return query.progress.late["malformed"]


def results(address: str, number: int) -> list[dict[str, object]]:
    """Read as a consumer must: committed records only."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "cookbook",
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["cookbook-minutes"])
    rows = [json.loads(message.value() or b"") for message in consumer.consume(number, timeout=30)]
    consumer.close()
    return rows


given = sys.argv[1] if len(sys.argv) > 1 else None
with ExitStack() as opened:
    folder = opened.enter_context(tempfile.TemporaryDirectory())
    address = given or opened.enter_context(running()).address
    fill(address)
    run(address, folder)
    refused = run(address, folder)  # finds nothing new and writes nothing; counters go on from the checkpoint
    rows = results(address, 12)

print(*rows, sep="\n")
assert refused == 1
assert sorted((row["user"], row["window_start"], row["count"]) for row in rows) == [
    (f"user-{user}", 60_000 * minute, 20) for user in range(3) for minute in range(4)
]
print("kafka counts: every result once")
