"""Define what a user has said of a query so far, from the watermark on: the one value that every stage of the builder holds."""

from __future__ import annotations

import attrs

from krishiv_py.plan.nodes import Stage, Watermark
from krishiv_py.plan.operation import Operation
from krishiv_py.plan.options.late import LateEventHandler
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions, preset_of
from krishiv_py.redaction import shown_text


@attrs.frozen(eq=False)
class Draft:
    """A query as it was given so far.

    Nothing is filled in before it is asked for, so the order of the steps makes no difference. Then the preset fills what is
    unset, the operation fills what is still unset or refuses what contradicts it, and defaults fill the rest.
    """

    input: Watermark = attrs.field(repr=shown_text)
    late_handler: LateEventHandler
    keys: tuple[str, ...] = ()
    explicit: ExplicitOptions = attrs.field(factory=ExplicitOptions)
    operation: Operation | None = None
    hides_time: bool = False
    """Whether rows are results of a stage whose event time nobody named."""

    def doing(self, operation: Operation) -> Draft:
        """Return the draft with its `operation`, which gets the keys."""
        return attrs.evolve(self, operation=attrs.evolve(operation, keys=self.keys))

    @property
    def options(self) -> QueryOptions:
        """The options in force.

        Raises
        ------
        PlanError
            For options that contradict the operation.
        """
        return self._filled.options()

    @property
    def _filled(self) -> ExplicitOptions:
        explicit = preset_of(self.explicit)
        return explicit if self.operation is None else self.operation.settled(explicit)

    def node(self) -> Stage:
        """Return the stage of a draft that has its operation."""
        assert self.operation is not None
        explicit, mark = self._filled, self.input
        if explicit.initial_us is not None:
            mark = attrs.evolve(mark, spec=mark.spec._starting(explicit.initial_us))
        options = explicit.options()
        options = attrs.evolve(options, emit=options.emit_mode)  # said or not, it is the same stage
        return Stage(mark, self.operation.following(explicit), options, self.late_handler)
