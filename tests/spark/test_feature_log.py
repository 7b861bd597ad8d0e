"""A feature log that tasks of Spark write: the clock on record of each batch, also of one that is repeated."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from krishiv_py import KrishivError, Session
from krishiv_py.features import training_set
from krishiv_py.spark.streaming import BatchSteps
from tests.features.logs import KINDS
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
