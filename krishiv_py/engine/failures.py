"""Failures by the place where they happened: operator, step, micro-batch, then the problem."""

from __future__ import annotations

from typing import Final

import attrs

from krishiv_py.errors import KrishivError, failure_text, own_type

PREPARE: Final = "prepare"


STEP: Final = "window step"


def located(problem: BaseException, operator: str, step: str, batch: int | None = None) -> KrishivError:
    """Return an error of ours that says where `problem` was met."""
    where = f"operator {operator}, {step}" + ("" if batch is None else f", batch {batch}")
    said = str(problem) if isinstance(problem, KrishivError) else failure_text(problem)
    return own_type(type(problem))(f"{where}: {said}")


@attrs.frozen
class AtStep:
    """Lets an error of ours from the body of a ``with`` name where it was met; others pass as they are."""

    operator: str
    step: str
    batch: int

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, problem: BaseException | None, trace: object) -> None:
        """Name the place."""
        if isinstance(problem, KrishivError):
            raise located(problem, self.operator, self.step, self.batch) from problem
