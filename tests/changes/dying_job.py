"""A running total of changes into PostgreSQL, in a process that kills itself at a place of a batch that it is given."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Final

import pyarrow as pa

from krishiv_py import Batches, PostgresSink, Session, count, sum
from krishiv_py.connectors import OutputBatch

PLACES: Final = ("begin", "write", "commit", "committed")
"""Before the transaction, within it, before its commit, and after that, when the checkpoint does not know of it yet."""


class DyingSink(PostgresSink):
    """A table whose process dies at a place of a batch."""

    dies_at: tuple[int, str] = (-1, "")

    def _reached(self, batch: OutputBatch, place: str) -> None:
        if type(self).dies_at == (batch.batch_id, place):
            os.kill(os.getpid(), signal.SIGKILL)

    def begin(self, batch: OutputBatch) -> None:
        self._reached(batch, "begin")
        super().begin(batch)

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        super().write(batch, table)
        self._reached(batch, "write")

    def commit(self, batch: OutputBatch) -> None:
        self._reached(batch, "commit")
        super().commit(batch)
        self._reached(batch, "committed")


def main(address: str, table: str, work: Path, batch: int, place: str) -> None:
    """Take all files that are there, a batch each."""
    DyingSink.dies_at = (batch, place)
    with Session.in_process() as session:
        rows = session.read_json(
            str(work / "in"),
            "op string, id bigint, shop string, amount bigint, seq bigint",
            streaming=True,
            max_files_per_batch=1,
        )
        changes = rows.from_changelog("log", "id", sequence="seq")
        totals = changes.key_by("shop").agg(n=count(), total=sum("amount"))
        sink = DyingSink(address, table, key=["shop"])
        totals.start(sink, checkpoint=work / "checkpoint", batches=Batches.available_now()).await_termination()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
