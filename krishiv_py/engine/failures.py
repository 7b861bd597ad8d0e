"""How a failure is named: operator, step, micro-batch, then what was said."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from krishiv_py.errors import KrishivError, own_type, told

PREPARE: Final = "prepare"
STEP: Final = "window step"


def located(problem: BaseException, operator: str, step: str, batch: int | None = None) -> KrishivError:
    """An error of ours that says where `problem` was met."""
    where = f"operator {operator}, {step}" + ("" if batch is None else f", batch {batch}")
    said = str(problem) if isinstance(problem, KrishivError) else told(problem)
    return own_type(type(problem))(f"{where}: {said}")


@contextmanager
def at_step(operator: str, step: str, batch: int) -> Iterator[None]:
    """Let an error of ours from the body name where it was met; others pass as they are."""
    try:
        yield
    except KrishivError as problem:
        raise located(problem, operator, step, batch) from problem
