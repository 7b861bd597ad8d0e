"""What leaves of a query on Spark to those who watch it: spans of OpenTelemetry, and events of OpenLineage."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from krishiv_py import ParquetSink, Sender, Session, Stream, lineage
from krishiv_py.otel import export
from tests.spark.conftest import per_second, row
from tests.test_lineage import Kept as KeptEvents
from tests.test_otel import Kept as KeptSpans


def test_spans_and_events_of_a_query(memory: Callable[[], tuple[Stream, Sender]], session: Session, tmp_path: Path) -> None:
    spans, events = KeptSpans(), KeptEvents()
    stream, sender = memory()
    with lineage.export(session, events) as exported:
        query = per_second(stream).start(ParquetSink(tmp_path / "out"), name="observed")
        with export(query, meter_provider=spans.meter, tracer_provider=spans.tracer):
            sender.send([row("a", 10), row("a", 5_000)])
            query.process_all_available()
        query.stop()
    for trace in spans.traces():
        (root,) = [span for span in trace if span.parent is None]
        assert root.name == "batch" and trace == [root]  # one job of Spark runs all stages
        assert {f"krishiv.{part}_seconds" for part in ("compute", "publish", "commit", "rest")} <= set(root.attributes or {})
    roots = [dict(span.attributes or {}) for trace in spans.traces() for span in trace if span.parent is None]
    assert roots and {one["krishiv.query"] for one in roots} == {"observed"}
    assert sum(int(str(one["krishiv.rows"])) for one in roots) == 2
    kinds = events.kinds("observed")
    assert (kinds[0], kinds[-1]) == ("START", "COMPLETE") and exported.dropped == 0
    last = [one for one in events.events if one["job"]["name"] == "observed"][-1]
    (out,) = last["outputs"]
    assert (out["namespace"], out["name"]) == ("file", str(tmp_path / "out"))
    assert out["outputFacets"]["outputStatistics"]["rowCount"] == 1
    total = out["facets"]["columnLineage"]["fields"]["sum_amount"]["inputFields"]
    assert [(one["name"].partition(".")[0], one["field"]) for one in total] == [("observed", "amount")]
