"""Session windows (SEMANTICS §3.3): rows of one key that follow each other closely::

gap 5      t=0   t=3          t=12
           |---------)
                 |---------)       [0, 8) is one session of two rows
                              |---------)   [12, 17) another
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal, TypeAlias

import attrs
import pyarrow as pa

from krishiv_py.errors import ColumnError, PlanError
from krishiv_py.plan.checks import known_column, one_of
from krishiv_py.plan.durations import Duration, show_us, to_us
from krishiv_py.plan.expressions.expr import Col, Expr, columns_of, python_text, unnamed
from krishiv_py.plan.operation import LateBy, WindowExtent
from krishiv_py.plan.options.query import ExplicitOptions, QueryOptions
from krishiv_py.plan.schema import RESERVED
from krishiv_py.plan.windows.window import WindowOperation
from krishiv_py.types import is_numeric, type_text

Touch: TypeAlias = Literal["separate", "merge"]
COMPUTED_GAP: Final = f"{RESERVED}session_gap"
"""The column of a gap that is an expression."""


@attrs.frozen
class SessionWindow(WindowOperation):
    """Each row opens ``[t, t + gap)``; spans of one key that overlap are one session.

    Attributes
    ----------
    gap_us : int or None
        The gap in microseconds; None when every row has its own.
    gap_column : str or None
        The column that holds the gap of each row: integer milliseconds or a duration.
    touch : {"separate", "merge"} or None
        Whether a row at distance exactly `gap` starts a new session or joins; None until the options are known.
    max_duration_us : int or None
        A row joins only while ``t - first < max_duration``, and the session ends at ``first + max_duration`` at the latest.
    gap : Expr or None
        What the gap column is computed by, where it is not a column of the rows.
    """

    kind: ClassVar[str] = "session"
    late_by: ClassVar[LateBy] = "state"
    moves: ClassVar[bool] = True
    gap_us: int | None
    gap_column: str | None = None
    touch: Touch | None = None
    max_duration_us: int | None = None
    gap: Expr | None = attrs.field(default=None, eq=repr, metadata={"later": True})

    def identity(self) -> dict[str, str]:
        return WindowOperation.identity(attrs.evolve(self, gap=None))  # how columns are computed is noted for all

    @property
    def takes_changes(self) -> bool:
        return True

    @property
    def route(self) -> str:
        return "session" if self.max_duration_us is None else "capped session"

    @property
    def remembers(self) -> bool:  # type: ignore[override]
        """Return whether rows ahead of the watermark wait, and join their session as it passes."""
        return self.max_duration_us is not None

    @property
    def extent(self) -> WindowExtent:
        return WindowExtent(self.gap_us or 0, gap_column=self.gap_column)

    @property
    def sums(self) -> bool:
        return self.max_duration_us is None

    def takes_turns(self, options: QueryOptions) -> bool:
        # a row at the end of a touching session joins it, unless it has left
        return options.late_rule == "window" or self.touch == "merge"

    def fires_plainly(self, options: QueryOptions) -> bool:
        return options.fires_by_default

    def following(self, explicit: ExplicitOptions) -> SessionWindow:
        """This window with the rule of what was given, ``"separate"`` at last, where it has none of its own."""
        return self if self.touch is not None else attrs.evolve(self, touch=explicit.touch or "separate")

    def check_columns(self, schema: pa.Schema) -> None:
        """Refuse a gap column that is not in `schema`, or holds no lengths of time."""
        name = self.gap_column
        if name is None:
            return
        what = f"column {name!r}" if self.gap is None else repr(self.gap)
        known_column(name, schema.names, "session_window")
        type_ = schema.field(name).type
        if not (pa.types.is_integer(type_) or pa.types.is_duration(type_)):
            text = f"col({name!r})" if self.gap is None else python_text(self.gap)
            hint = "use a column of whole milliseconds, or of lengths of time"
            if is_numeric(type_):
                millis, seconds = f'{text}.round().cast("bigint")', f'({text} * 1000).round().cast("bigint")'
                hint = f"write {millis} if it counts milliseconds, {seconds} if seconds"
            elif pa.types.is_string(type_):
                hint = f'write {text}.cast("bigint") for texts of whole milliseconds'
            got, then = type_text(type_), "a row's reach would be unknown"
            raise ColumnError(f"{what} cannot be a session gap", got=got, then=then, hint=hint)

    def describe(self) -> str:
        gap = show_us(self.gap_us or 0) if self.gap_column is None else f"column {self.gap_column}"
        gap = gap if self.gap is None else repr(self.gap)
        cap = "" if self.max_duration_us is None else f", at most {show_us(self.max_duration_us)}"
        return f"session with gap {gap}{cap}" + (", touching ones merge" if self.touch == "merge" else "")

    def warnings(self) -> tuple[str, ...]:
        if self.max_duration_us is None:
            return (
                "session without max_duration: a key that never pauses keeps its session open, so its state is "
                "unbounded; results of it come only at the end",
            )
        return ()


def session(gap: Duration | Expr, *, touch: Touch | None = None, max_duration: Duration | None = None) -> SessionWindow:
    """Return a checked :class:`SessionWindow`.

    Parameters
    ----------
    gap : int or timedelta or str or Expr
        A duration (``int`` is milliseconds), or a column or expression with the gap of each row: ``col("gap_ms") * 2``. A text
        that starts with a digit is a duration, any other text names a column.
    touch : {"separate", "merge"}, optional
        What a row at distance exactly `gap` does; unless given, what the preset says, or else ``"separate"``.
    max_duration : int or timedelta or str, optional
        The longest a session may last.

    Examples
    --------
    >>> from krishiv_py import windows
    >>> windows.session("30 s", max_duration="1 hour").describe()
    'session with gap 30 s, at most 1 h'
    """
    if touch is not None:
        one_of(touch, "touch", ("separate", "merge"))
    cap = None if max_duration is None else to_us(max_duration, "max_duration")
    if isinstance(gap, Expr):
        gap = unnamed(gap)
    if isinstance(gap, Expr) and not isinstance(gap, Col):
        if not columns_of(gap):
            raise PlanError("a session gap reads no column", got=repr(gap), hint='pass a duration: "5 s"')
        return SessionWindow(None, COMPUTED_GAP, touch, cap, gap)
    name = gap.name if isinstance(gap, Col) else gap
    if isinstance(gap, Col) or (isinstance(name, str) and name.strip() and not name.strip()[0].isdigit()):
        return SessionWindow(None, str(name), touch, cap)
    return SessionWindow(to_us(gap, "gap"), None, touch, cap)
