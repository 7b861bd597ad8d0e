"""The job that is killed: ``python -m tests.kills.job PLACES``. Runs to the end of its topic, from wherever it was."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Final

import attrs

from krishiv_py import (
    Batches,
    DeltaSink,
    KafkaSink,
    LateEventHandler,
    PostgresSink,
    Session,
    SideOutputLateEventHandler,
    count,
    max,
    sum,
)
from krishiv_py.api.stages.results import ResultStream
from krishiv_py.api.stages.stream import Stream
from krishiv_py.connectors import Sink

SCHEMA: Final = "user bigint, at bigint, amount bigint"
KEY: Final = ["user", "window_start", "window_end"]
LAG_MS, LATENESS_MS, GAP_MS = 1_000, 5_000, 400
BATCH: Final = 120
"""Offsets of a micro-batch."""
TARGETS: Final = ("kafka", "delta", "postgres")
KINDS: Final = ("all", *TARGETS)


@attrs.frozen
class Places:
    """Where a job reads and writes.

    Attributes
    ----------
    kind : str
        One of `TARGETS`, or ``"all"`` of them.
    topic : str
        What it reads; topics and tables it writes begin with `prefix`.
    work : str
        Folder of checkpoint, Delta tables and notes.
    """

    kind: str
    broker: str
    database: str
    topic: str
    prefix: str
    work: str

    @property
    def targets(self) -> tuple[str, ...]:
        """Where results go: each has the whole change log, and the table that it tells."""
        return TARGETS if self.kind == "all" else (self.kind,)

    @property
    def late(self) -> str:
        """Where late rows go."""
        return self.targets[-1]

    def sink(self, target: str, name: str) -> Sink:
        """The sink of a target: ``log`` and ``late`` only add rows, ``table`` has one for each key."""
        key, called = KEY if name == "table" else (), f"{self.prefix}_{name}"
        if target == "kafka":
            return KafkaSink(called, bootstrap_servers=self.broker, key=KEY if key else None, upsert=bool(key))
        return (
            DeltaSink(f"{self.work}/{called}", key=key) if target == "delta" else PostgresSink(self.database, called, key=key)
        )


def plan(rows: Stream, late: LateEventHandler) -> ResultStream:
    """Sessions that rows may still change, and merge: results are withdrawn."""
    keyed = rows.watermark("at", LAG_MS).key_by("user").allowed_lateness(LATENESS_MS).emit("retractions")
    return keyed.session_window(GAP_MS).agg(count(), sum("amount"), max("at")).with_late_event_handler(late)


def main(given: str) -> None:
    """Run, or go on."""
    places = Places(**json.loads(Path(given).read_text()))
    settings = Session.builder().master("local[2,4]").profile("single-node-durable").config("spark.log.level", "ERROR")
    with settings.get_or_create() as session:
        rows = session.read_kafka(
            places.topic,
            bootstrap_servers=places.broker,
            schema=SCHEMA,
            max_offsets_per_batch=BATCH,
            on_malformed="side_output",
        )
        results = plan(rows, SideOutputLateEventHandler(places.sink(places.late, "late")))
        outputs = [
            results.to(places.sink(target, name), name=f"{target}_{name}")
            for target in places.targets
            for name in ("log", "table")
        ]
        batches = Batches.available_now(flush=True)
        query = session.start(outputs, checkpoint=f"{places.work}/checkpoint", batches=batches)
        query.await_termination()
        late = query.progress.late
        Path(places.work, "rows").write_text(f"{query.progress.rows} {late['late']} {late['malformed']}")


if __name__ == "__main__":
    main(*sys.argv[1:])
