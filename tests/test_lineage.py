"""OpenLineage: events as a client gets them, and as the client of OpenLineage writes them."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from openlineage.client import OpenLineageClient
from openlineage.client.serde import Serde
from openlineage.client.transport.noop import NoopConfig, NoopTransport

import krishiv_py as kv
from krishiv_py import MemorySink, ParquetSink, Session, count, lineage
from krishiv_py.connectors import Dataset, Planned, Source, TableSink
from krishiv_py.errors import MissingExtraError, PlanError
from krishiv_py.testing import Driver, stream_of

SCHEMA = "user string, at bigint, amount bigint"


class Kept:
    """A client that keeps what it gets, as JSON has it."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []

    def emit(self, event: Any) -> None:
        self.events.append(json.loads(Serde.to_json(event)))

    def kinds(self, name: str | None = None) -> list[str]:
        return [e["eventType"] for e in self.events if name in (None, e["job"]["name"])]


def wait_for(true: Callable[[], bool]) -> None:
    until = time.monotonic() + 10
    while not true():
        assert time.monotonic() < until
        time.sleep(0.01)


def totals(rows: Any, sink: Any = None, **more: Any) -> Any:
    by_user = rows.watermark("at", 0).key_by("user").tumbling_window(1_000).agg(kv.sum("amount").alias("total"))
    return by_user.start(MemorySink() if sink is None else sink, **more)


def test_a_run_from_files_to_files(tmp_path: Path) -> None:
    kept, folder, out, aside = Kept(), tmp_path / "in", tmp_path / "out", tmp_path / "late"
    folder.mkdir()
    (folder / "a.json").write_text('{"user": "a", "at": 5000, "amount": 3}\n{"user": "a", "at": 9000, "amount": 4}\n')
    with Session.in_process() as session, lineage.export(session, kept, namespace="shop") as exported:
        rows = session.read_json(folder, SCHEMA, streaming=True).watermark("at", 0).key_by("user").tumbling_window(1_000)
        results = rows.with_late_event_handler(kv.SideOutputLateEventHandler(kv.JsonSink(aside))).agg(
            kv.sum("amount").alias("total")
        )
        query = results.start(ParquetSink(out), checkpoint=str(tmp_path / "checkpoint"), name="totals")
        query.process_all_available()
        query.stop()
        exported.close()
        exported.close()
    assert kept.kinds() == ["START", "COMPLETE"] and (exported.sent, exported.dropped) == (2, 0)
    start, end = kept.events
    assert start["run"]["runId"] == end["run"]["runId"] and start["job"]["namespace"] == "shop"
    assert start["job"]["name"] == "totals" and start["job"]["facets"]["jobType"]["processingType"] == "STREAMING"
    assert start["eventTime"] <= end["eventTime"] and start["producer"].startswith("urn:krishiv_py:")
    (given,) = end["inputs"]
    assert (given["namespace"], given["name"]) == ("file", str(folder))
    assert [(f["name"], f["type"]) for f in given["facets"]["schema"]["fields"]] == [
        ("user", "string"),
        ("at", "bigint"),
        ("amount", "bigint"),
    ]
    assert given["inputFacets"]["inputStatistics"]["rowCount"] == 2 and start["inputs"][0]["inputFacets"] == {}
    results_out, late_out = end["outputs"]
    assert [(o["namespace"], o["name"]) for o in (results_out, late_out)] == [("file", str(out)), ("file", str(aside))]
    assert results_out["outputFacets"]["outputStatistics"]["rowCount"] == 1
    columns = results_out["facets"]["columnLineage"]
    assert columns["fields"]["total"]["inputFields"] == [
        {
            "namespace": "file",
            "name": str(folder),
            "field": "amount",
            "transformations": [{"type": "DIRECT", "subtype": "AGGREGATION"}],
        }
    ]
    assert [(d["field"], d["transformations"][0]) for d in columns["dataset"]] == [
        ("at", {"type": "INDIRECT", "subtype": "WINDOW"}),
        ("user", {"type": "INDIRECT", "subtype": "GROUP_BY"}),
    ]
    late = late_out["facets"]["columnLineage"]["fields"]
    assert [f["field"] for f in late["amount"]["inputFields"]] == ["amount"] and late["reason"]["inputFields"] == []


def test_a_query_that_fails_gives_its_error(tmp_path: Path) -> None:
    kept, folder = Kept(), tmp_path / "in"
    folder.mkdir()
    (folder / "a.json").write_text('{"user": "secret-row", "at": 7, "amount": 1}\n')
    with Session.in_process() as session:
        query = totals(session.read_json(folder, SCHEMA, streaming=True).filter("100 / (at - 7) > -1000"), name="fails")
        with lineage.export(query, kept):
            with pytest.raises(Exception, match="zero"):
                query.await_termination()
            wait_for(lambda: kept.kinds() == ["START", "FAIL"])
    message = kept.events[-1]["run"]["facets"]["errorMessage"]
    assert "zero" in message["message"] and "secret-row" not in json.dumps(kept.events)
    assert message["programmingLanguage"] == "PYTHON"


def test_queries_of_a_session_that_start_later_and_a_restart(tmp_path: Path) -> None:
    kept = Kept()
    with Session.in_process() as session:
        rows, send = session.memory_stream(SCHEMA, name="orders")
        first = totals(rows, name="first", checkpoint=str(tmp_path / "checkpoint"))
        with lineage.export(session, kept, every=1):
            send.send([{"user": "a", "at": 1, "amount": 2}])
            first.process_all_available()
            wait_for(lambda: "RUNNING" in kept.kinds("first"))
            first.stop()
            totals(rows, name="second").stop()
            again = totals(rows, name="first", checkpoint=str(tmp_path / "checkpoint"))
            again.process_all_available()
            again.stop()
        totals(rows, name="third").stop()
    assert [kind for kind in kept.kinds("second") if kind != "RUNNING"] == ["START", "COMPLETE"] and kept.kinds("third") == []
    of_first = [e for e in kept.events if e["job"]["name"] == "first"]
    assert len({e["run"]["runId"] for e in of_first}) == 2
    assert of_first[-1]["eventType"] == "COMPLETE"
    assert of_first[-1]["inputs"][0]["inputFacets"]["inputStatistics"]["rowCount"] == 0  # of this run, not of the checkpoint
    assert {(i["namespace"], i["name"]) for e in of_first for i in e["inputs"]} == {("krishiv_py", "first.orders")}
    assert {(o["namespace"], o["name"]) for e in of_first for o in e["outputs"]} == {("krishiv_py", "first.results")}


@pytest.mark.parametrize("broken", [RuntimeError("http://key:word@host is away"), None], ids=["fails", "hangs"])
def test_a_client_that_fails_or_hangs_stops_no_query(broken: RuntimeError | None, caplog: pytest.LogCaptureFixture) -> None:
    hold, calls = threading.Event(), list[int]()

    class Client:
        def emit(self, event: Any) -> None:
            calls.append(1)
            if broken is not None:
                raise broken
            hold.wait(30)

    with Session.in_process() as session:
        rows, send = session.memory_stream(SCHEMA)
        exported = lineage.export(session, Client())
        query = totals(rows, name="totals")
        wait_for(lambda: bool(calls))
        send.send([{"user": "a", "at": 1, "amount": 2}, {"user": "a", "at": 5_000, "amount": 2}])
        query.process_all_available()
        assert query.results()["total"].to_pylist() == [2]
        query.stop()
        if broken is not None:
            wait_for(lambda: len(calls) == 2)
        hold.set()
        exported.close()
    assert len(calls) == 2
    if broken is not None:
        assert (exported.sent, exported.dropped) == (0, 2) and "dropped" in repr(exported)
        (line,) = [r.getMessage() for r in caplog.records if r.name == "krishiv_py.lineage"]  # once, not for each event
        assert "is away" in line and "word" not in line


class Numbers(Source):
    schema = pa.schema([("user", pa.string()), ("at", pa.int64()), ("amount", pa.int64())])
    finite = True

    def plan(self, last: Any) -> Planned | None:
        return Planned(1, [1]) if last is None else None

    def read(self, planned: Any, columns: Any) -> Any:
        yield pa.table({"user": ["a"], "at": [1], "amount": [2]}, schema=self.schema)

    def datasets(self) -> tuple[Dataset, ...]:
        return Dataset("crm://host", "one"), Dataset("crm://user:word@host", "two")


class Place(TableSink):
    def write_tables(self, batch: Any, tables: Any) -> None:
        """Take them."""

    def dataset(self) -> Dataset:
        return Dataset("crm://host", "totals")


def test_own_sources_and_sinks_say_what_they_are_called() -> None:
    kept = Kept()
    with Session.in_process() as session, lineage.export(session, kept):
        query = totals(session.read_source(Numbers()), Place(), name="totals", batches=kv.Batches.available_now())
        assert query.await_termination("20 s")
    assert [(i["namespace"], i["name"]) for i in kept.events[0]["inputs"]] == [
        ("crm://host", "one"),
        ("crm://[redacted]@host", "two"),
    ]
    (out,) = kept.events[0]["outputs"]
    assert (out["namespace"], out["name"]) == ("crm://host", "totals")
    fields = out["facets"]["columnLineage"]["fields"]["total"]["inputFields"]
    assert [(f["namespace"], f["name"], f["field"]) for f in fields] == [
        ("crm://[redacted]@host", "two", "amount"),
        ("crm://host", "one", "amount"),
    ]


def test_a_source_whose_names_cannot_be_had_loses_events_and_no_rows(caplog: pytest.LogCaptureFixture) -> None:
    class Odd(Numbers):
        def datasets(self) -> tuple[Dataset, ...]:
            raise RuntimeError("the catalog is away")

    kept = Kept()
    with Session.in_process() as session, lineage.export(session, kept) as exported:
        query = totals(session.read_source(Odd()), name="totals", batches=kv.Batches.available_now())
        assert query.await_termination("20 s")
        wait_for(lambda: exported.dropped > 0)
        assert query.results().num_rows == 1
    assert "the catalog is away" in caplog.text


def test_systems_are_named_as_openlineage_names_them() -> None:
    kafka = kv.KafkaSink("orders", bootstrap_servers="one:9092,two:9092", options={"sasl.password": "word"})
    assert kafka.dataset() == Dataset("kafka://one:9092", "orders")
    assert ParquetSink("s3a://bucket/out/").dataset() == Dataset("s3://bucket", "out")
    postgres = kv.PostgresSink("postgresql://me:word@db.host/shop", "totals")
    assert postgres.dataset() == Dataset("postgres://db.host:5432", "shop.public.totals")
    assert kv.SqliteSink("/data/shop.db", "totals").dataset() == Dataset("sqlite", "/data/shop.db.totals")
    assert kv.DeltaSink("/data/totals").dataset() == Dataset("file", "/data/totals")
    catalog = {"type": "sql", "uri": "postgresql+psycopg2://me:word@db/cat", "warehouse": "s3://lake/wh"}
    assert kv.IcebergSink("shop.totals", catalog=catalog).dataset() == Dataset("s3://lake/wh", "shop.totals")
    rest = {"type": "rest", "uri": "https://me:word@catalog.host/v1"}
    assert kv.IcebergSink("shop.totals", catalog=rest).dataset() == Dataset("iceberg://catalog.host", "shop.totals")
    assert MemorySink().dataset() is None and kv.ConsoleSink().dataset() is None


def test_events_go_to_a_file_and_to_clients_of_openlineage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "events.jsonl"
    config = json.dumps({"type": "file", "log_file_path": str(tmp_path / "own.jsonl"), "append": True})
    monkeypatch.setenv("OPENLINEAGE__TRANSPORT", config)
    with Session.in_process() as session:
        rows, _ = session.memory_stream(SCHEMA)
        for to in (path, str(path), OpenLineageClient(transport=NoopTransport(NoopConfig())), None):
            query = totals(rows, name="totals")
            with lineage.export([query], to) as exported:
                query.stop()
            assert (exported.sent, exported.dropped) == (2, 0)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["eventType"] for line in lines] == ["START", "COMPLETE"] * 2
    assert len((tmp_path / "own.jsonl").read_text().splitlines()) == 2


@pytest.mark.parametrize("wrong", [5, "q", [5], None, "driver", "stream"])
def test_what_is_no_query_is_refused(wrong: Any) -> None:
    stream = stream_of("at bigint").watermark("at", 0).tumbling_window(5).agg(count())
    wrong = {"driver": Driver(stream), "stream": stream}.get(wrong, wrong) if isinstance(wrong, str) else wrong
    with pytest.raises(PlanError, match="export takes a session or queries"):
        lineage.export(wrong, Kept())


@pytest.mark.parametrize("wrong", [5, "", "ftp://host/x", "/no/such/folder/events.jsonl", "/", object()])
def test_what_takes_no_events_is_refused(wrong: Any) -> None:
    with pytest.raises(PlanError):
        lineage.export([], wrong)


def test_other_wrong_arguments() -> None:
    with pytest.raises(PlanError, match="namespace"):
        lineage.export([], Kept(), namespace=5)  # type: ignore[arg-type]
    with pytest.raises(PlanError, match="every"):
        lineage.export([], Kept(), every="soon")
    with pytest.raises(TypeError):
        lineage.export([], Kept(), often=1)  # type: ignore[call-arg]


def test_without_openlineage_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openlineage.client.event_v2", None)
    with pytest.raises(MissingExtraError, match=r"\[openlineage\]"):
        lineage.export([], Kept())


def test_the_end_of_the_process_gives_the_last_events(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    code = f"""
from krishiv_py import MemorySink, Session, count, lineage
session = Session.in_process()
lineage.export(session, {str(path)!r})
rows, send = session.memory_stream("at bigint")
rows.watermark("at", 0).tumbling_window(5).agg(count()).start(MemorySink(), name="job")
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
    assert [json.loads(line)["eventType"] for line in path.read_text().splitlines()] == ["START", "COMPLETE"]


def test_tables_of_lookup_joins_are_inputs() -> None:
    kept, shops = Kept(), pa.table({"user": ["a"], "city": ["Ulm"]})

    def limits() -> pa.Table:
        return pa.table({"town": ["Ulm"], "most": [7]})

    with Session.in_process() as session, lineage.export(session, kept) as exported:
        rows, send = session.memory_stream(SCHEMA, name="orders")
        looked = rows.lookup_join(shops, on="user").lookup_join(limits, on={"city": "town"}, how="inner")
        by_city = looked.watermark("at", 0).key_by("city").tumbling_window(1_000).agg(kv.max("most").alias("most"))
        query = by_city.start(MemorySink(), name="by_city")
        send.send([{"user": "a", "at": 1, "amount": 2}])
        query.process_all_available()
        query.stop()
        exported.close()
    end = kept.events[-1]
    given = {one["name"]: [field["name"] for field in one["facets"]["schema"]["fields"]] for one in end["inputs"]}
    assert given == {
        "by_city.orders": ["user", "at", "amount"],
        "by_city.table": ["user", "city"],
        "by_city.limits": ["town", "most"],
    }
    counted = {one["name"]: one["inputFacets"] for one in end["inputs"] if one["inputFacets"]}
    assert {name: facets["inputStatistics"]["rowCount"] for name, facets in counted.items()} == {"by_city.orders": 1}
    columns = end["outputs"][0]["facets"]["columnLineage"]
    assert [(f["name"], f["field"]) for f in columns["fields"]["most"]["inputFields"]] == [("by_city.limits", "most")]
    assert [(f["name"], f["field"]) for f in columns["fields"]["city"]["inputFields"]] == [("by_city.table", "city")]
    joined = {(one["name"], one["field"]) for one in columns["dataset"] if one["transformations"][0]["subtype"] == "JOIN"}
    assert {("by_city.table", "user"), ("by_city.orders", "user"), ("by_city.limits", "town")} <= joined
