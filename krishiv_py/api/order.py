"""Clear run-time errors for steps called too early; to a type checker those methods do not exist."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn, TypeVar

from krishiv_py.errors import OrderError, message

C = TypeVar("C", bound=type)


def needs(first: str, *names: str) -> Callable[[C], C]:
    """Class decorator: calling one of `names` on this stage says that `first` must be called before."""

    def decorate(cls: C) -> C:
        for name in names:
            setattr(cls, name, _guard(cls.__name__, name, first))
        return cls

    return decorate


def _guard(stage: str, name: str, first: str) -> Callable[..., NoReturn]:
    def guard(self: Any, *args: Any, **kwargs: Any) -> NoReturn:
        raise OrderError(message(f".{name}() was called too early", f"a {stage}", "the plan would have no meaning",
                                 f"call {first} first"))

    guard.__name__ = name
    guard.__doc__ = f"Not possible yet: call {first} first."
    return guard


WINDOWS = ("tumbling_window", "hopping_window", "sliding_window", "lookback_window", "session_window", "count_window",
           "windowed_by", "time_interval_window")
RESULTS = ("collect", "collect_with_aggs", "to_pandas", "to_dataframe", "start", "run")
