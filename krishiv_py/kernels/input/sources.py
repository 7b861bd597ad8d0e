"""Rows of sources nobody declared (SEMANTICS §2.4): which they are, and what becomes of them."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from krishiv_py.arrays.types import Mask
from krishiv_py.errors import OperatorError, shown
from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.plan.options.watermarks import MultiSourceWatermarkSpec


def unknown_sources(spec: OperatorSpec, rows: pa.RecordBatch) -> Mask | None:
    """Rows to refuse because the watermark knows nothing of their source; None where there are none.

    A null names no source, whatever is done with new names.

    Raises
    ------
    OperatorError
        For ``unknown("fail")``, naming the source.
    """
    mark = spec.watermark
    if not isinstance(mark, MultiSourceWatermarkSpec) or spec.source_column is None:
        return None
    names = rows.column(spec.source_column)
    if mark.unknown_action == "register":
        unknown = names.is_null()
    else:
        unknown = pc.invert(pc.is_in(names, value_set=pa.array([n for n, _ in mark.sources], pa.string())))
    mask: Mask = unknown.to_numpy(zero_copy_only=False)
    if not mask.any():
        return None
    if mark.unknown_action == "fail":
        got = names[int(np.argmax(mask))].as_py()
        declared = ", ".join(repr(n) for n, _ in mark.sources)
        raise OperatorError(
            f"a row has a source that was not declared in column {spec.source_column!r}",
            got=shown(got),
            hint=f'declare it with .source(...); declared are {declared}; or .unknown("side_output")',
        )
    return mask
