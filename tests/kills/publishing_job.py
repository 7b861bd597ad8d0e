"""Batches of a file into Delta and PostgreSQL: ``python -m tests.kills.publishing_job BATCHES WORK CONNINFO PREFIX``.

It does what a query does at the end of its batches, without Spark: the file ``notes`` stands for the checkpoint, with the last
batch that was begun and the last one that was finished.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pyarrow as pa

from krishiv_py.connectors.publish import OutputOf, TablePublisher
from krishiv_py.connectors.sink import TableSink
from tests.kills.job import Places

TARGETS = ("delta", "postgres")


def main(batches: str, work: str, database: str, prefix: str) -> None:
    """Publish what is left."""
    notes, places = Path(work, "notes"), Places("all", "", database, "", prefix, work)
    begun, finished = json.loads(notes.read_text()) if notes.exists() else (-1, -1)

    def note(*given: int) -> None:
        notes.with_suffix(".next").write_text(json.dumps(given))
        os.replace(notes.with_suffix(".next"), notes)

    with pa.ipc.open_file(batches) as file:
        logs = [pa.Table.from_batches([file.get_batch(number)]) for number in range(file.num_record_batches)]
    publishers = []
    for target in TARGETS:
        for name in ("log", "table"):
            sink = places.sink(target, name)
            assert isinstance(sink, TableSink)
            sink.check("results", logs[0].schema)
            publishers.append(TablePublisher(sink, OutputOf(f"{target}_{name}", "a query", "results", logs[0].schema)))
    for number in range(finished + 1, len(logs)):
        replay = number <= begun
        note(max(begun, number), finished)
        for publisher in publishers:
            publisher.publish(number, [logs[number]] if logs[number].num_rows else [], is_replay=replay)
        note(max(begun, number), number)
        finished = number


if __name__ == "__main__":
    main(*sys.argv[1:])
