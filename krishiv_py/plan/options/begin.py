"""The savepoint that a query begins from, and what is lost on request (SEMANTICS §12)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, Literal, TypeAlias

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_text, one_of

OnChange: TypeAlias = Literal["reset", "drop"]
ON_CHANGE: Final = ("reset", "drop")


@attrs.frozen
class Begin:
    """Says where a query begins.

    Attributes
    ----------
    savepoint : str
        The folder of the savepoint.
    on_change : dict
        By the name of a stage: ``"reset"`` lets it begin without its state, ``"drop"`` leaves the state of one aside that the
        plan has no more.
    seam : dict or None
        Of a savepoint of a history: from which event time on rows are those of the live source, µs, by the name of the source.
    """

    savepoint: str
    on_change: dict[str, str]
    seam: dict[str, int] | None = None


def given_begin(savepoint: str | None, on_change: Mapping[str, Any] | None) -> Begin | None:
    """Return where a query begins; None for an empty state or its checkpoint.

    Raises
    ------
    PlanError
        For a value that is not a folder, and not a word for a stage.
    """
    if savepoint is None:
        if on_change is not None:
            raise PlanError(
                "on_change says what is lost of a savepoint",
                got="on_change without savepoint",
                hint="pass savepoint=..., the folder of one, too",
            )
        return None
    a_text(savepoint, "savepoint", "pass the folder of a savepoint, or None")
    words = {} if on_change is None else on_change
    if not isinstance(words, Mapping):
        raise PlanError("on_change is a dictionary", got=shown(on_change), hint='write on_change={"per_hour": "reset"}')
    for stage, word in words.items():
        a_text(stage, "on_change", 'write the name of a stage: on_change={"per_hour": "reset"}')
        one_of(word, "on_change", ON_CHANGE)
    return Begin(savepoint, dict(words))
