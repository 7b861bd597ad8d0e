"""A web service: events come by POST, the counts of the running minute go out by GET. Needs fastapi, uvicorn and httpx."""

import asyncio
import datetime as dt
import sqlite3
import tempfile
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path

import httpx
import pyarrow as pa
import uvicorn
from fastapi import FastAPI
from pydantic import AwareDatetime, BaseModel

from krishiv_py import Session, Trigger, count
from krishiv_py.connectors import OutputBatch, TransactionalSink


class Event(BaseModel):
    """What a client sends."""

    user: str
    at: AwareDatetime


class CountsTable(TransactionalSink):
    """The newest count of every user and minute in SQLite, and which batch was written last."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with self.opened() as database:
            database.execute("PRAGMA journal_mode = WAL")  # readers do not wait for the writer
            database.execute("CREATE TABLE IF NOT EXISTS counts (user, minute, n, PRIMARY KEY (user, minute))")
            database.execute("CREATE TABLE IF NOT EXISTS committed (query_id PRIMARY KEY, batch_id)")

    @contextmanager
    def opened(self) -> Iterator[sqlite3.Connection]:
        """The database."""
        with closing(sqlite3.connect(self.path, isolation_level=None)) as database:
            yield database

    def of(self, user: str) -> dict[str, int]:
        """The counts of a user by minute."""
        with self.opened() as database:
            return dict(database.execute("SELECT minute, n FROM counts WHERE user = ?", (user,)))

    def last_committed(self, batch: OutputBatch) -> int | None:
        """The last batch in the database."""
        with self.opened() as database:
            found = database.execute("SELECT batch_id FROM committed WHERE query_id = ?", (batch.query_id,)).fetchone()
        return None if found is None else int(found[0])

    def begin(self, batch: OutputBatch) -> None:
        """Begin a transaction."""
        self.held = self.opened()
        self.database = self.held.__enter__()
        self.database.execute("BEGIN IMMEDIATE")

    def write(self, batch: OutputBatch, table: pa.Table) -> None:
        """A later count of a minute replaces the one before."""
        rows = zip(table["user"].to_pylist(), table["window_start"].to_pylist(), table["count"].to_pylist(), strict=True)
        told = [(user, minute.isoformat(), n) for user, minute, n in rows]
        self.database.executemany("INSERT OR REPLACE INTO counts VALUES (?, ?, ?)", told)

    def commit(self, batch: OutputBatch) -> None:
        """Make the counts visible, together with the note that they are there."""
        self.database.execute("INSERT OR REPLACE INTO committed VALUES (?, ?)", (batch.query_id, batch.batch_id))
        self.database.execute("COMMIT")
        self.held.__exit__(None, None, None)

    def abort(self, batch: OutputBatch) -> None:
        """Close the database, which rolls the transaction back."""
        self.held.__exit__(None, None, None)


def service(folder: Path) -> FastAPI:
    """The service; what it was sent, its state and its counts are in `folder`, so it can be started again."""
    table = CountsTable(folder / "counts.db")

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        with Session.embedded() as session:
            # requests that come within 50 ms are one micro-batch
            stream, app.state.sender = session.memory_stream(
                "user string, at timestamp", spool=str(folder / "sent"), linger="50 ms", max_batch_rows=10_000
            )
            per_minute = stream.watermark("at", "2 minutes").key_by("user").tumbling_window("1 minute").agg(count())
            # counts that have changed go out about five times a second, not only when their minute is over
            per_minute = per_minute.emit("updates").trigger(Trigger.on_interval("200 ms"))
            query = per_minute.start(table, checkpoint=str(folder / "checkpoint"))
            yield
            app.state.sender.flush()
            query.stop()  # the next start goes on from the checkpoint

    app = FastAPI(lifespan=running)

    @app.post("/events", status_code=202)
    async def take(events: list[Event]) -> dict[str, int]:
        """Take events; they are on disk when the answer is given."""
        return {"batch": await app.state.sender.send_async([event.model_dump() for event in events])}

    @app.get("/counts/{user}")
    def counts(user: str) -> dict[str, int]:
        """The counts of a user by minute."""
        return table.of(user)

    return app


async def clients(address: str, requests: int) -> tuple[set[int], dict[str, int]]:
    """Many clients at once; gives the micro-batches that took their events, and the counts of one user in the end."""
    minute = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def send(number: int) -> int:
            event = {"user": f"user {number % 4}", "at": (minute + dt.timedelta(seconds=number % 60)).isoformat()}
            answer = await client.post("/events", json=[event])
            answer.raise_for_status()
            return int(answer.json()["batch"])

        batches = set(await asyncio.gather(*(send(number) for number in range(requests))))
        found: dict[str, int] = {}
        for _ in range(600):
            found = (await client.get("/counts/user 1")).json()
            if sum(found.values()) == requests // 4:
                break
            await asyncio.sleep(0.1)
    return batches, found


def main(requests: int = 400) -> None:
    """Start the service, let many clients call it, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        server = uvicorn.Server(uvicorn.Config(service(Path(folder)), port=0, log_level="warning"))
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                thread.join(0.05)
            port = server.servers[0].sockets[0].getsockname()[1]
            batches, found = asyncio.run(clients(f"http://127.0.0.1:{port}", requests))
        finally:
            server.should_exit = True
            thread.join()
    assert sum(found.values()) == requests // 4, found
    print(f"{requests} requests in {len(batches)} micro-batches, every event counted once")


if __name__ == "__main__":
    main()
