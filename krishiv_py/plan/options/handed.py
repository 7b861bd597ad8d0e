"""Determine how results are handed over to plain Spark: what ``to_dataframe(checkpoint=...)`` was given."""

from __future__ import annotations

import attrs

from krishiv_py.errors import PlanError, shown
from krishiv_py.plan.checks import a_switch, a_text
from krishiv_py.plan.durations import Duration, to_us
from krishiv_py.plan.options.query import Batches, given_batches


@attrs.frozen
class Handed:
    """Holds what the query that hands results over is to do.

    Attributes
    ----------
    checkpoint : str
        Its checkpoint, in which the files of the hand-over are.
    watermark_us : int or None
        How far the watermark of the frame is behind that of the results, µs; None for a frame without one.
    clean : bool
        Whether files are deleted once they were read.
    batches : Batches
        When its micro-batches are planned.
    name : str or None
        What it is called.
    """

    checkpoint: str
    watermark_us: int | None
    clean: bool
    batches: Batches
    name: str | None


def handed(
    checkpoint: str | None, watermark: Duration | None, clean: bool, batches: Batches | None, name: str | None
) -> Handed | None:
    """Return what was given; None where there is no checkpoint, and so nothing is handed over.

    Raises
    ------
    PlanError
        For options without a checkpoint, and for a snapshot.
    """
    a_switch(clean, "clean")
    if name is not None:
        a_text(name, "name", "pass a text, or None for a generated name")
    lag_us = None if watermark is None else to_us(watermark, "watermark", allow_zero=True)
    wanted = given_batches(batches, None)
    if checkpoint is None:
        options = {"watermark": watermark, "clean": clean or None, "batches": batches, "name": name}
        given_options = [key for key, value in options.items() if value is not None]
        if given_options:
            raise PlanError(
                f"to_dataframe({given_options[0]}=...) needs a checkpoint",
                got="none",
                then="results would be handed over again, and be doubled, after a restart",
                hint="pass checkpoint=..., a folder; session.temporary_folder() makes one for tests",
            )
        return None
    if wanted.snapshot:
        raise PlanError(
            "early results cannot be handed over",
            got=f"batches={shown(wanted)}",
            then="plain Spark would take them for final ones",
            hint="leave snapshot=True out, or use start(sink)",
        )
    return Handed(a_text(checkpoint, "checkpoint", "pass a folder as text"), lag_us, clean, wanted, name)
