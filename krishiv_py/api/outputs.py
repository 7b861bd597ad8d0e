"""Several outputs of one query: streams with the sinks that their results go to."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import attrs

from krishiv_py.connectors.sink import Sink
from krishiv_py.connectors.sinks.known import as_sink
from krishiv_py.connectors.sinks.program import BatchConsumer
from krishiv_py.errors import PlanError, shown
from krishiv_py.lazy import lazy
from krishiv_py.plan.checks import a_text, is_collection

if TYPE_CHECKING:
    from krishiv_py.api.stages import running
    from krishiv_py.planner.physical import Engine, PhysicalPlan
else:  # which has .to(), and so needs this module
    running = lazy("krishiv_py.api.stages.running")


def _a_sink(given: Sink | BatchConsumer) -> Sink:
    return as_sink(given, "results")


@attrs.frozen(eq=False)
class Output:
    """Results and where they go: what :meth:`Session.start` takes, made by ``.to(sink)``.

    Attributes
    ----------
    stream : Stream, TimedStream or ResultStream
        The pipeline.
    sink : Sink
        Where its results go.
    name : str or None
        What the output is called; None for its place, ``output 1``.

    Raises
    ------
    PlanError
        For a value that is not a pipeline or not a sink, and for a name that is not a text.

    Examples
    --------
    >>> from krishiv_py import MemorySink, count
    >>> from krishiv_py.testing import stream_of
    >>> per_minute = stream_of("at bigint").watermark("at", 0).tumbling_window("1 min").agg(count())
    >>> output = per_minute.to(MemorySink(), name="per minute")
    >>> output.name, output.sink
    ('per minute', MemorySink())
    """

    stream: running.RunMethods
    sink: Sink = attrs.field(converter=_a_sink)
    name: str | None = None

    def __attrs_post_init__(self) -> None:
        if not isinstance(self.stream, running.RunMethods):
            raise PlanError("not a pipeline", got=shown(self.stream), hint="write stream.to(sink, name=...)")
        if self.name is not None:
            a_text(self.name, "name", "pass what the output is called, or None for its place")


def named_outputs(outputs: Iterable[Output], what: str) -> dict[str, Output]:
    """Outputs by their names.

    Raises
    ------
    PlanError
        For something else, for no output, and for two of one name.
    """
    if not is_collection(outputs):
        raise _no_outputs(what, outputs)
    named: dict[str, Output] = {}
    for number, output in enumerate(outputs, 1):
        if not isinstance(output, Output):
            raise _no_outputs(what, output)
        name = output.name or f"output {number}"
        if name in named:
            raise PlanError("two outputs have one name", got=name, hint="name them: .to(sink, name=...)")
        named[name] = output
    if not named:
        raise PlanError(f"{what} got no output", got="0 outputs", hint=f"write {what}([stream.to(sink)])")
    return named


def _no_pipeline(given: object, what: str) -> PlanError:
    """Return the error for `given` instead of a list of pipelines; a stream is called by its stage."""
    stage = type(given).__name__
    whole = isinstance(given, running.RunMethods)
    unfinished = not whole and stage.endswith("Stream")
    hint = f"write {what}([per_minute, rest])"
    hint += "; after keys come a window and .agg(...), after a window .agg(...)" if unfinished else ""
    return PlanError(
        f"{what} takes a list of pipelines", got=f"one {stage}" if whole or unfinished else shown(given), hint=hint
    )


def named_plans(streams: object, what: str, engine: Engine | None = None) -> list[tuple[str, PhysicalPlan]]:
    """Return the plans of pipelines, each called by its place.

    Raises
    ------
    PlanError
        For something else, and for no pipeline.
    """
    listed = list(streams) if is_collection(streams) else [streams]
    plans: list[tuple[str, PhysicalPlan]] = []
    for number, given in enumerate(listed, 1):
        if listed == [streams] or not isinstance(given, running.RunMethods):
            raise _no_pipeline(given, what)
        plans.append((f"output {number}", given._plan(engine)))
    if not plans:
        raise PlanError(f"{what} got no pipeline", got="0 pipelines", hint=f"write {what}([stream])")
    return plans


def _no_outputs(what: str, got: object) -> PlanError:
    return PlanError(
        f"{what} takes a list of outputs",
        got=shown(got),
        hint="end each stream with .to(sink): [per_minute.to(sink), rest.to(other)]",
    )
