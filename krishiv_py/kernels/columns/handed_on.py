"""What results bring along for the next stage: their event time, and what their order goes by (SEMANTICS §7.1, §7.3)."""

from __future__ import annotations

from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.handed_on import order_name, time_name

_END, _START = "window_end", "window_start"
_ONE_TICK: Final = 1  # bounds count in units of the time column


def handed_fields(spec: OperatorSpec, results: pa.Schema) -> list[pa.Field]:
    """Return the fields of these columns, for `results` that no output was computed of."""
    order = [pa.field(order_name(i), type_) for i, type_ in enumerate(_order_types(spec, results))]
    own = spec.window.result_time == "row"  # whose column is there
    taken = [*results.names, *(name for name, _ in spec.output or ())]
    return order if own else [pa.field(time_name(taken), results.field(_END).type), *order]


def handed_columns(spec: OperatorSpec, results: pa.Table) -> list[pa.ChunkedArray]:
    """These columns of `results`."""
    time = results[_time(spec)]
    raw = time.cast(pa.int64())
    starts = [results[_START].cast(pa.int64())] if _START in results.schema.names else []
    order = [raw, *starts, *(results[k] for k in _keys(spec, results.schema))]
    if spec.window.result_time == "row":
        return order
    before = _ONE_TICK if spec.window.result_time == "before_end" else spec.window.after_us // spec.tick_us
    return [pc.subtract(raw, pa.scalar(before, pa.int64())).cast(time.type) if before else time, *order]


def _time(spec: OperatorSpec) -> str:
    return spec.window.row_time(spec.time_column) if spec.window.result_time == "row" else _END


def _keys(spec: OperatorSpec, results: pa.Schema) -> list[str]:
    return [k for k in spec.keys if k in results.names]


def _order_types(spec: OperatorSpec, results: pa.Schema) -> list[pa.DataType]:
    starts = [pa.int64()] if _START in results.names else []
    return [pa.int64(), *starts, *(results.field(k).type for k in _keys(spec, results))]
