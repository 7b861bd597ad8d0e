"""Batches into a topic, by a process that is killed: ``python -m tests.kafka.sink_job ADDRESS TOPIC CHECKPOINT POINT BATCH``.

The file CHECKPOINT stands for the one of a query: the last batch that was begun, and the last one that was finished.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pyarrow as pa

from krishiv_py import KafkaSink
from krishiv_py.connectors.publish import OutputOf, TablePublisher

BATCHES = [[[0, 1], [2]], [[3]], [], [[4, 5]], [[6]]]
SCHEMA = pa.schema([("n", pa.int64())])


def main(address: str, topic: str, checkpoint: str, point: str, at: str) -> None:
    """Publish what is left, and die on the way."""
    notes = Path(checkpoint)
    begun, finished = json.loads(notes.read_text()) if notes.exists() else (-1, -1)
    sink = KafkaSink(topic, bootstrap_servers=address)

    def die(now: str, batch_id: int) -> None:
        if (now, batch_id) == (point, int(at)):
            os.kill(os.getpid(), signal.SIGKILL)

    class Dying(KafkaSink):
        """Dies before or after it commits."""

        def commit(self, batch: object) -> None:
            """See KafkaSink."""
            self._output(batch).writer.flush()  # type: ignore[arg-type]
            die("written", batch.batch_id)  # type: ignore[attr-defined]
            super().commit(batch)  # type: ignore[arg-type]
            die("committed", batch.batch_id)  # type: ignore[attr-defined]

    sink = Dying(topic, bootstrap_servers=address)
    publisher = TablePublisher(sink, OutputOf("mark", "a query", "results", SCHEMA))
    for number in range(finished + 1, len(BATCHES)):
        replay = number <= begun
        notes.write_text(json.dumps([max(begun, number), finished]))
        publisher.publish(number, [pa.table({"n": part}, SCHEMA) for part in BATCHES[number]], is_replay=replay)
        die("noted", number)
        finished = number
        notes.write_text(json.dumps([max(begun, number), finished]))


if __name__ == "__main__":
    main(*sys.argv[1:])
