"""Results and late rows into a SQLite database, exactly once over a restart, and a table that changes."""

import sqlite3
import tempfile
from contextlib import closing
from pathlib import Path

from krishiv_py import Batches, Session, SideOutputLateEventHandler, SqliteSink, count


def main() -> None:
    """Run a query twice from one checkpoint, and look into the database."""
    with tempfile.TemporaryDirectory() as name, Session.embedded() as session:
        folder = Path(name)
        database = folder / "out.db"
        stream, sender = session.memory_stream("user string, at bigint")
        clicks = stream.watermark("at", "10 seconds").key_by("user")
        late_rows = SideOutputLateEventHandler(SqliteSink(database, "late_rows"))
        per_minute = clicks.tumbling_window("1 minute").agg(count()).with_late_event_handler(late_rows)
        totals = clicks.agg(count().alias("clicks"))
        outputs = [
            per_minute.to(SqliteSink(database, "results"), name="results"),
            totals.to(SqliteSink(database, "totals", key="user"), name="totals"),
        ]
        for batch in ([("a", 5_000), ("a", 80_000)], [("b", 6_000), ("a", 200_000)]):  # ("b", 6_000) is late
            sender.send([{"user": user, "at": moment} for user, moment in batch])
            session.start(outputs, checkpoint=folder / "checkpoint", batches=Batches.available_now()).await_termination()
        with closing(sqlite3.connect(database)) as opened:
            results = opened.execute('SELECT "user", window_start, "count" FROM results ORDER BY 2').fetchall()
            late = opened.execute('SELECT "user", "at", reason FROM late_rows').fetchall()
            now = opened.execute('SELECT "user", clicks FROM totals ORDER BY 1').fetchall()
    print(results, late, now)
    assert results == [("a", 0, 1), ("a", 60_000, 1)], results
    assert late == [("b", 6_000, "late")], late
    assert now == [("a", 3), ("b", 1)], now
    print("sqlite: every row once, over a restart")


if __name__ == "__main__":
    main()
