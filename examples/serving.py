"""A web service: events come by POST, counts of minutes go out by GET. Without Java; needs fastapi, uvicorn and httpx."""

import asyncio
import datetime as dt
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from pydantic import AwareDatetime, BaseModel

from krishiv_py import ParquetSink, Session, count


class Event(BaseModel):
    """What a client sends."""

    user: str
    at: AwareDatetime


def service(folder: Path) -> FastAPI:
    """The service; what it was sent, its state and its results are in `folder`, so it can be started again."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        with Session.in_process() as session:
            stream, app.state.sender = session.memory_stream("user string, at timestamp", spool=folder / "sent")
            per_minute = stream.watermark("at", "2 minutes").key_by("user").tumbling_window("1 minute").agg(count())
            sink = ParquetSink(str(folder / "counts"))
            app.state.query = per_minute.start(sink, checkpoint=folder / "checkpoint")
            yield
            app.state.query.stop()  # the next start goes on from the checkpoint

    app = FastAPI(lifespan=running)

    @app.post("/events", status_code=202)
    async def take(events: list[Event]) -> dict[str, int]:
        """Take events: one write, after which they are in a file. The query takes what has come as one micro-batch."""
        return {"send": app.state.sender.send([event.model_dump() for event in events])}

    def read_counts(user: str) -> dict[str, int]:
        query = app.state.query
        tables = [query.lookup(user, max_age=0), query.lookup(user, last=60)]
        rows = [row for table in tables for row in table.select(["window_start", "count"]).to_pylist()]
        return {row["window_start"].isoformat(): row["count"] for row in rows}

    @app.get("/counts/{user}")
    async def counts(user: str) -> dict[str, int]:
        """The counts of a user by minute, with all that was posted: those still open, and those of the last hour that left."""
        return await asyncio.to_thread(read_counts, user)  # it waits for a micro-batch

    return app


async def clients(address: str, requests: int) -> dict[str, int]:
    """Many clients at once; gives the counts of one user in the end."""
    minute = dt.datetime(2026, 1, 1, 12, tzinfo=dt.timezone.utc)
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:

        async def send(number: int) -> None:
            event = {"user": f"user {number % 4}", "at": (minute + dt.timedelta(seconds=number % 60)).isoformat()}
            answer = await client.post("/events", json=[event])
            answer.raise_for_status()

        await asyncio.gather(*(send(number) for number in range(requests)))
        result: dict[str, int] = {}
        for _ in range(600):
            result = (await client.get("/counts/user 1")).json()
            if sum(result.values()) == requests // 4:
                break
            await asyncio.sleep(0.1)
    return result


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
            result = asyncio.run(clients(f"http://127.0.0.1:{port}", requests))
        finally:
            server.should_exit = True
            thread.join()
    assert sum(result.values()) == requests // 4, result
    print(f"{requests} requests, every event counted once")


if __name__ == "__main__":
    main()
