"""A feature log that tasks of Spark write: the clock on record of each batch, also of one that is repeated."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from krishiv_py import KrishivError, MemorySink, Session
from krishiv_py.features import training_set
from krishiv_py.spark.streaming import BatchSteps
from tests.features.logs import KINDS, row, write
from tests.features.test_feature_log import payment, spent_so_far


@pytest.mark.one_in(2)
@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_rows_have_the_time_at_which_their_batch_was_planned(
    session: Session, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    log, account, failed = KINDS[kind](tmp_path / "log"), BatchSteps._account, list[pa.Table]()

    def failing(steps: BatchSteps, batch_id: int, reports: object) -> None:
        if batch_id == 1 and not failed:
            failed.append(log.read())
            raise RuntimeError("the machine stops here")
        account(steps, batch_id, reports)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(BatchSteps, "_account", failing)
    payments, sender = session.memory_stream("card string, at bigint, amount bigint", spool=str(tmp_path / "spool"))
    checkpoint = tmp_path / "checkpoint"
    query = spent_so_far(payments).start(log, checkpoint=checkpoint)
    sender.send([payment(1_000, 5)])
    query.process_all_available()
    sender.send([payment(2_000, 7)])
    with pytest.raises(KrishivError, match="the machine stops here"):
        query.process_all_available()
    query = spent_so_far(payments).start(log, checkpoint=checkpoint)
    query.process_all_available()
    query.stop()
    read = log.read()
    assert read["spent"].to_pylist() == [5, 12] and read.equals(failed[0])
    for number, published in zip(read["batch"].to_pylist(), read["published_at"].cast(pa.int64()).to_pylist(), strict=True):
        planned = json.loads((checkpoint / "offsets" / str(number)).read_text().splitlines()[1])
        assert published == planned["batchTimestampMs"] * 1_000
    labels = pa.table({"card": ["a"], "decided": [3_000]})
    assert training_set(labels, {"card": log}, key="card", at="decided")["spent"].to_pylist() == [None]
    assert training_set(labels, {"card": log}, key="card", at="decided", as_of="event")["spent"].to_pylist() == [12]


@pytest.mark.one_in(2)
@pytest.mark.parametrize(("kind", "as_of"), [("parquet", "served"), ("delta", "event")])
def test_labels_that_are_a_stream_have_what_the_batch_gives(
    session: Session, tmp_path: Path, kind: str, as_of: Literal["served", "event"]
) -> None:
    log, sink, sent = KINDS[kind](tmp_path / "log"), MemorySink(), list[dict[str, Any]]()
    labels, sender = session.memory_stream("id bigint, card string, decided bigint", spool=str(tmp_path / "spool"))
    for begin in (0, 100):
        write(log, [(begin + now, [row(begin + now - 7, now), row(begin + now - 30, -now, "b")]) for now in (40, 60, 90)])
        plan = training_set(
            labels.watermark("decided", 50), {"card": log}, key="card", at="decided", as_of=as_of, lag=40, max_age=70
        )
        query = plan.start(sink, checkpoint=tmp_path / "checkpoint")
        some = [{"id": begin + at, "card": card, "decided": begin + at} for at in (45, 61, 89) for card in ("a", "b")]
        sender.send(some)
        sent += some
        query.process_all_available()
        query.stop()
    read, wanted = sink.table(), pa.Table.from_pylist(sent)
    assert read is not None
    order = [("id", "ascending"), ("card", "ascending")]
    whole = training_set(wanted, {"card": log}, key="card", at="decided", as_of=as_of, max_age=70).sort_by(order).to_pylist()
    given = read.sort_by(order).to_pylist()
    assert given == [r for r in whole if r["id"] <= given[-1]["id"]] and len(given) >= 6
    (tmp_path / "labels").mkdir()
    pq.write_table(wanted, tmp_path / "labels" / "a.parquet")
    timed = session.read_parquet(tmp_path / "labels").watermark("decided", 0)
    bounded = training_set(timed, {"card": log}, key="card", at="decided", as_of=as_of, lag=40, max_age=70).collect()
    assert bounded.sort_by(order).to_pylist() == whole
