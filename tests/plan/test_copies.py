"""A stream is a value: a copy is the stream itself, and why it cannot be pickled is said."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import pytest

from krishiv_py import count
from krishiv_py.errors import PlanError
from krishiv_py.testing import stream_of


def kinds() -> list[Any]:
    stream = stream_of("k string, at bigint")
    timed = stream.watermark("at", 0)
    keyed = timed.key_by("k")
    windowed = keyed.tumbling_window(10)
    return [stream, timed, keyed, windowed, windowed.agg(count())]


@pytest.mark.parametrize("stream", kinds(), ids=lambda s: type(s).__name__)
def test_a_stream_is_copied_and_not_pickled(stream: Any) -> None:
    assert copy.copy(stream) is stream and copy.deepcopy([stream])[0] is stream
    with pytest.raises(PlanError, match="cannot be pickled"):
        pickle.dumps(stream)
