"""Sessions of users into a Delta table: one row for each session, also after a restart. Needs the extra ``delta``."""

import tempfile
from pathlib import Path

from deltalake import DeltaTable

from krishiv_py import DeltaSink, Session, count, max, min


def run(folder: Path, *sends: list[dict[str, object]]) -> None:
    """Start the query from its checkpoint, send, and stop it; open sessions stay in the checkpoint."""
    with Session.in_process() as session:
        clicks, sender = session.memory_stream("user string, page string, at bigint", spool=folder / "sent")
        sessions = (
            clicks.watermark("at", "5 seconds")
            .key_by("user")
            # A session ends after 30 seconds of silence. The limit is for robots, which are never silent.
            .session_window("30 seconds", max_duration="1 hour")
            .agg(count().alias("clicks"), min("page").alias("least_page"), max("page").alias("greatest_page"))
        )
        # The key makes the table one row for each session. A batch that is run again after a crash is found to be there.
        sink = DeltaSink(folder / "sessions", key=["user", "window_start"])
        query = sessions.start(sink, checkpoint=folder / "checkpoint")
        for rows in sends:
            sender.send(rows)
        query.process_all_available()
        query.stop()


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    run(folder, [{"user": "ann", "page": "/", "at": 0}, {"user": "ann", "page": "/tea", "at": 20_000}])
    # The session of ann was open in between. The click of 45 s joins it; that of 200 s begins another one.
    run(folder, [{"user": "ann", "page": "/ink", "at": 45_000}], [{"user": "ann", "page": "/", "at": 200_000}])
    rows = DeltaTable(folder / "sessions").to_pyarrow_table().to_pylist()

print(*rows, sep="\n")
assert [(row["user"], row["window_start"], row["window_end"], row["clicks"]) for row in rows] == [("ann", 0, 75_000, 3)]
