"""A folder of JSON files: counts by minute, and every late row in a folder of its own."""

import json
import tempfile
from pathlib import Path

import pyarrow.parquet as pq

from krishiv_py import Batches, ParquetSink, Session, SideOutputLateEventHandler, count


def run(folder: Path) -> None:
    """Read the files that are new, write what is final, stop: a job for a scheduler."""
    with Session.in_process() as session:
        visits = session.read_json(folder / "in", "user string, at bigint", streaming=True)
        per_minute = (
            # The lag: a minute waits 10 seconds of event time for its last rows. A longer lag loses less and answers later.
            visits.watermark("at", "10 seconds")
            .key_by("user")
            .tumbling_window("1 minute")
            .agg(count())
            # Without a handler late rows are only counted. With it they are kept, with the reason and how late they were.
            .with_late_event_handler(SideOutputLateEventHandler(ParquetSink(folder / "late")))
        )
        # The checkpoint has what was read and the minutes that are open, so the next run goes on where this one ended.
        query = per_minute.start(ParquetSink(folder / "out"), checkpoint=folder / "checkpoint", batches=Batches.available_now())
        query.await_termination()


def put(file: Path, *rows: tuple[str, int]) -> None:
    """Write one JSON object a line. Other programs should write elsewhere and rename, so that no half file is read."""
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps({"user": user, "at": moment}) + "\n" for user, moment in rows))


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    put(folder / "in" / "1.json", ("ann", 1_000), ("ann", 59_000), ("bob", 75_000))
    run(folder)  # the watermark is 65 s: the first minute is final
    put(folder / "in" / "2.json", ("ann", 80_000), ("bob", 20_000), ("ann", 140_000))
    run(folder)  # the row of 20 s is late
    results = pq.read_table(folder / "out").sort_by([("window_start", "ascending"), ("user", "ascending")]).to_pylist()
    late = pq.read_table(folder / "late").to_pylist()

print(*results, "late:", *late, sep="\n")
assert [(row["user"], row["window_start"], row["count"]) for row in results] == [
    ("ann", 0, 2),
    ("ann", 60_000, 1),
    ("bob", 60_000, 1),
]
assert [(row["user"], row["at"], row["reason"]) for row in late] == [("bob", 20_000, "late")]
