"""A live page: orders come by POST, and each change of a running total goes to all who look. Needs fastapi, uvicorn, httpx."""

import asyncio
import json
import tempfile
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import httpx
import uvicorn
from fastapi import FastAPI
from fastapi.responses import HTMLResponse, StreamingResponse
from pydantic import BaseModel

from krishiv_py import MemorySink, Session, count, sum

PAGE = """<!doctype html><title>Totals</title><h1>Totals by customer</h1><table id="totals"></table>
<script>
const rows = new Map(), table = document.getElementById("totals");
new EventSource("/totals").onmessage = event => {
  const change = JSON.parse(event.data);
  if (change.op.startsWith("+")) rows.set(change.customer, change); else rows.delete(change.customer);
  table.replaceChildren(...[...rows.values()].map(row => {
    const line = document.createElement("tr");
    line.replaceChildren(...[row.customer, row.orders, row.total].map(value => {
      const cell = document.createElement("td");
      cell.textContent = value;
      return cell;
    }));
    return line;
  }));
};
</script>"""


class Order(BaseModel):
    """What a client sends."""

    customer: str
    amount: int


def service(folder: Path) -> FastAPI:
    """The service; what it was sent and its state are in `folder`, so it can be started again."""

    @asynccontextmanager
    async def running(app: FastAPI) -> AsyncIterator[None]:
        with Session.in_process() as session:
            orders, app.state.sender = session.memory_stream("customer string, amount bigint", spool=folder / "sent")
            totals = orders.key_by("customer").agg(count().alias("orders"), total=sum("amount"))
            app.state.query = totals.start(MemorySink(), checkpoint=folder / "checkpoint")
            yield
            app.state.query.stop()  # the next start goes on from the checkpoint

    app = FastAPI(lifespan=running)

    @app.get("/", response_class=HTMLResponse)
    async def page() -> str:
        """A page that shows the totals as they change."""
        return PAGE

    @app.post("/orders", status_code=202)
    async def take(orders: list[Order]) -> dict[str, int]:
        """Take orders."""
        return {"send": app.state.sender.send([order.model_dump() for order in orders])}

    @app.get("/totals/{customer}")
    def total(customer: str) -> dict[str, int]:
        """The total of a customer now, with all that was posted."""
        rows = app.state.query.lookup(customer, max_age=0).to_pylist()
        return {name: rows[0][name] if rows else 0 for name in ("orders", "total")}

    async def changes() -> AsyncIterator[str]:
        """First the totals that there are, then each change: who has both puts the same row twice."""
        with app.state.query.subscribe() as subscription:
            there = await asyncio.to_thread(app.state.query.state)
            for row in there.select(["customer", "orders", "total"]).to_pylist():
                yield f"data: {json.dumps({**row, 'op': '+I'})}\n\n"
            async for table in subscription:
                for row in table.to_pylist():
                    yield f"data: {json.dumps(row)}\n\n"

    @app.get("/totals")
    async def stream() -> StreamingResponse:
        """The changes as server-sent events; the body of a client that goes away is closed, and with it the subscription."""
        return StreamingResponse(changes(), media_type="text/event-stream")

    return app


async def reader(address: str, customers: int, orders: int) -> dict[str, int]:
    """Fold the stream until it has all orders, as the page does; gives the totals."""
    totals: dict[str, dict[str, int]] = {}
    async with httpx.AsyncClient(base_url=address, timeout=30) as client, client.stream("GET", "/totals") as response:
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            change = json.loads(line.removeprefix("data: "))
            if change["op"].startswith("+"):
                totals[change["customer"]] = change
            else:
                totals.pop(change["customer"], None)
            if len(totals) == customers and all(row["orders"] == orders for row in totals.values()):
                break
    return {customer: row["total"] for customer, row in totals.items()}


async def shop(address: str, readers: int, orders: int) -> list[dict[str, int]]:
    """Post orders while several look, half of them from the middle on; gives what each has seen."""
    looking: list[asyncio.Task[dict[str, int]]] = []
    async with httpx.AsyncClient(base_url=address, timeout=30) as client:
        assert "EventSource" in (await client.get("/")).text
        for number in range(orders):
            if number in (0, orders // 2):
                looking += [asyncio.create_task(reader(address, 3, orders)) for _ in range(readers // 2)]
            order = [{"customer": customer, "amount": number} for customer in ("ann", "bob", "cem")]
            (await client.post("/orders", json=order)).raise_for_status()
        seen = await asyncio.wait_for(asyncio.gather(*looking), 60)
        total = (await client.get("/totals/ann")).json()
    assert total == {"orders": orders, "total": orders * (orders - 1) // 2}, total
    return list(seen)


def main(readers: int = 4, orders: int = 40) -> None:
    """Start the service, let several watch it while orders come, and stop it."""
    with tempfile.TemporaryDirectory() as folder:
        config = uvicorn.Config(service(Path(folder)), port=0, log_level="warning", timeout_graceful_shutdown=2)
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run)
        thread.start()
        try:
            while not server.started and thread.is_alive():
                thread.join(0.05)
            port = server.servers[0].sockets[0].getsockname()[1]
            seen = asyncio.run(shop(f"http://127.0.0.1:{port}", readers, orders))
        finally:
            server.should_exit = True
            thread.join()
    wanted = dict.fromkeys(("ann", "bob", "cem"), orders * (orders - 1) // 2)
    assert seen == [wanted] * readers, seen
    print(f"{readers} readers, each with the same totals")


if __name__ == "__main__":
    main()
