"""What results bring along for the next stage: their event time, and what their order goes by (SEMANTICS §7.1, §7.3)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.handed_on import order_name, time_name
from krishiv_py.plan.operation import ResultTime

_START = "window_start"


def handed_fields(spec: OperatorSpec, results: pa.Schema) -> list[pa.Field]:
    """Return the fields of these columns, for `results` that no output was computed of."""
    order = [pa.field(order_name(i), type_) for i, type_ in enumerate(_order_types(spec, results))]
    time = _time(spec)
    taken = [*results.names, *(name for name, _ in spec.output or ())]
    return order if time.of_row else [pa.field(time_name(taken), results.field(time.column).type), *order]


def handed_columns(spec: OperatorSpec, results: pa.Table) -> list[pa.ChunkedArray]:
    """Return these columns of `results`."""
    time = _time(spec)
    column = results[time.column]
    raw = column.cast(pa.int64())
    starts = [results[_START].cast(pa.int64())] if _START in results.schema.names else []
    order = [raw, *starts, *(results[k] for k in _keys(spec, results.schema))]
    if time.of_row:
        return order
    before = time.before_us(spec.tick_us) // spec.tick_us  # bounds count in units of the time column
    return [pc.subtract(raw, pa.scalar(before, pa.int64())).cast(column.type) if before else column, *order]


def _time(spec: OperatorSpec) -> ResultTime:
    return spec.operation.result_time(spec.time_column) or ResultTime("end")  # numbers of rows, which nothing can follow


def _keys(spec: OperatorSpec, results: pa.Schema) -> list[str]:
    return [k for k in spec.keys if k in results.names]


def _order_types(spec: OperatorSpec, results: pa.Schema) -> list[pa.DataType]:
    starts = [pa.int64()] if _START in results.names else []
    return [pa.int64(), *starts, *(results.field(k).type for k in _keys(spec, results))]
