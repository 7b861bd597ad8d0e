"""What an engine is. Each module here gives a ``make() -> Engine``; it is imported only when asked for by name."""

from __future__ import annotations

import importlib
from dataclasses import dataclass, field
from typing import Protocol

from tests.goldens.cases import Case, LateRow, Written

NAMES = (
    "reference",
    "driver",
    "in_process",
    "in_process_bounded",
    "in_process_workers",
    "bounded",
    "streaming",
    "connect",
    "cluster",
    "cluster_bounded",
)


@dataclass
class Observed:
    """What an engine saw. None means it cannot tell, and then that part is not compared.

    ``written`` is in the order written. ``late`` may be just the number of late rows (without null times).
    ``may_lag``: the engine has no batch without rows, so an emission may be seen one step later.
    """

    written: list[Written] = field(default_factory=list)
    late: list[LateRow] | int = field(default_factory=list)
    watermark_after_ms: list[int | None] | None = None
    null_ts_dropped: int | None = None
    unassigned: int | None = None
    may_lag: bool = False


class Engine(Protocol):
    """Runs a case from beginning to end."""

    def run(self, case: Case) -> Observed:
        """Everything the case may be compared by."""


class EngineMissingError(LookupError):
    """There is no such engine, or it is not written yet."""


def unsupported_by(engine: Engine) -> frozenset[str]:
    """Tags the engine lacks, from its optional attribute ``unsupported``."""
    return frozenset(getattr(engine, "unsupported", ()))


def engine_named(name: str) -> Engine:
    """The engine of that name."""
    if name not in NAMES:
        raise EngineMissingError(f"no engine is called {name!r}; there are {', '.join(NAMES)}")
    module_name = f"{__name__}.{name}"
    try:
        module = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        if error.name != module_name:
            raise  # the engine is there, but something it needs is not
        raise EngineMissingError(f"the engine {name!r} is not written yet: there is no module {module_name}") from None
    engine: Engine = module.make()
    return engine
