"""Several pipelines run by the driver to the end of their input."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from krishiv_py.api.stages.running import RunMethods, named_plans
from krishiv_py.connectors.sinks.program import MemorySink
from krishiv_py.plan.checks import is_collection
from krishiv_py.testing.driver import Driver


def collect(streams: Iterable[RunMethods], *batches: Any) -> list[pa.Table]:
    """Return the results of several pipelines over the same rows, as :meth:`krishiv_py.Session.collect` gives them.

    Parameters
    ----------
    streams : iterable of Stream, TimedStream or ResultStream
        Pipelines that branch from one stream value.
    *batches : list of dict or RecordBatch or Table or mapping
        Micro-batches, as :meth:`Driver.send` takes them; the input ends after the last one.

    Returns
    -------
    list of pyarrow.Table
        One for each pipeline.

    Raises
    ------
    PlanError
        For no pipelines, and for those that cannot be one query.

    Examples
    --------
    >>> from krishiv_py import count
    >>> from krishiv_py.testing import collect, stream_of
    >>> rows = stream_of("at bigint, n bigint")
    >>> many = rows.watermark("at", 0).tumbling_window(10).agg(count())
    >>> counts, large = collect([many, rows.filter("n > 5")], [{"at": 1, "n": 9}, {"at": 2, "n": 1}])
    >>> counts["count"].to_pylist(), large["n"].to_pylist()
    ([2], [9])
    """
    listed = list(streams) if is_collection(streams) else streams
    named_plans(listed, "collect")  # says what is not a pipeline
    driver = Driver(stream.to(MemorySink()) for stream in listed)
    done = [*(driver.send(batch) for batch in batches), driver.close()]
    return [pa.concat_tables([d.by_output[name] for d in done]) for name in done[-1].by_output]
