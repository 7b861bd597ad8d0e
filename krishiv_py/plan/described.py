"""Define what a user's class says of itself, for errors, ``explain()`` and checkpoints, and the one that brings windows.

A window assigner (SEMANTICS §3.9) says which windows rows belong to, whole columns at a time.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt

from krishiv_py.errors import RAISED, PlanError, failure_text
from krishiv_py.plan.checks import a_text, plain_methods
from krishiv_py.plan.durations import Duration


class UserObject:
    """Base of what a user brings: its name and what it depends on."""

    @property
    def name(self) -> str:
        """Return what errors and ``explain()`` call it; the name of the class unless overridden.

        Examples
        --------
        >>> from krishiv_py import WindowAssigner
        >>> class Shifts(WindowAssigner):
        ...     longest = "16 hours"
        ...     name = "day and night shifts"
        ...
        ...     def assign(self, times):
        ...         ...
        >>> Shifts().name
        'day and night shifts'
        """
        return type(self).__name__

    def describe(self) -> str:
        """Return what ``explain()`` says of it; name and parameters unless overridden.

        Examples
        --------
        >>> import attrs
        >>> from krishiv_py import WindowAssigner
        >>> @attrs.frozen
        ... class Shifts(WindowAssigner):
        ...     hours: int
        ...     longest = "16 hours"
        ...
        ...     def assign(self, times):
        ...         ...
        >>> Shifts(8).describe()
        'Shifts(hours=8)'
        """
        return f"{self.name}({', '.join(f'{name}={value!r}' for name, value in self.parameters().items())})"

    def parameters(self) -> Mapping[str, object]:
        """Return what its answers depend on, by name; the attributes of the instance unless overridden.

        Checkpoints note their ``repr``, which must be the same after a restart.

        Examples
        --------
        >>> import attrs
        >>> from krishiv_py import WindowAssigner
        >>> @attrs.frozen
        ... class Shifts(WindowAssigner):
        ...     hours: int
        ...     longest = "16 hours"
        ...
        ...     def assign(self, times):
        ...         ...
        >>> Shifts(8).parameters()
        {'hours': 8}
        """
        of_class: Any = type(self)
        if attrs.has(of_class):
            return {f.name: getattr(self, f.name) for f in attrs.fields(of_class)}
        fields: Mapping[str, object] = getattr(self, "__dataclass_fields__", {})
        return {name: getattr(self, name) for name in fields} or dict(vars(self) if hasattr(self, "__dict__") else {})


@attrs.frozen
class Description:
    """The checked name and parameters of what a user brings."""

    name: str
    parameters: tuple[tuple[str, str], ...]


def description_of(brought: UserObject, what: str) -> Description:
    """Return the checked description of what a user `brought`; errors call it a `what`.

    Raises
    ------
    PlanError
        If it fails, or if a checkpoint could not note a parameter.
    """
    plain_methods(brought, type(brought))
    try:
        name, parameters = brought.name, dict(brought.parameters())
        a_text(brought.describe(), "describe", "return a text")
        noted = tuple(sorted((str(key), repr(value)) for key, value in parameters.items()))
    except RAISED as problem:  # user code: whatever it raises is reported with its class
        failed = f"{what} {type(brought).__name__} cannot be described"
        hint = "fix the class"
        raise PlanError(failed, got=failure_text(problem), then="a checkpoint could not note it", hint=hint) from problem
    for key, text in noted:
        if " at 0x" in text:
            raise PlanError(
                f"parameter {key!r} of {what} {type(brought).__name__} has no text of its own",
                got=text,
                then="a checkpoint could not tell whether it changed",
                hint="give its class a __repr__, or override parameters()",
            )
    return Description(a_text(name, "name", "return a text"), noted)


def attribute_of(brought: UserObject, attribute: str, what: str, consequence: str) -> Any:
    """Return what a user `brought` says under an `attribute`; errors call it a `what`.

    Raises
    ------
    PlanError
        If it fails, with the `consequence`.
    """
    try:
        return getattr(brought, attribute)
    except RAISED as problem:  # user code: whatever it raises is reported with its class
        failed = f"{what} {type(brought).__name__} cannot be described"
        raise PlanError(failed, got=failure_text(problem), then=consequence, hint="fix the class") from problem


Times: TypeAlias = npt.NDArray[np.int64]
"""Instants in microseconds since the epoch (UTC)."""
Assigned: TypeAlias = tuple[Times, Times] | tuple[Times, Times, Times]
"""Starts and ends, one window a row; or row numbers, starts and ends, for rows in none or in several."""


class WindowAssigner(UserObject, ABC):
    """Says which windows rows belong to. Make a subclass and pass an instance to ``stream.window(...)``.

    An assigner is pickled to the workers. The same times must always get the same windows, on every machine and after every
    restart. Windows follow from event time alone; they may overlap, leave gaps, and be of different lengths.

    A checkpoint notes the name of the class and :meth:`parameters`. A query with others does not go on from it. A change of
    the code of :meth:`assign` cannot be seen: change a parameter with it, for instance a version.

    Examples
    --------
    >>> import numpy as np
    >>> from krishiv_py import WindowAssigner, count
    >>> from krishiv_py.testing import Driver, stream_of
    >>> class Shifts(WindowAssigner):
    ...     '''Day shifts of 16 hours and night shifts of 8 hours, UTC.'''
    ...     longest = "16 hours"
    ...
    ...     def assign(self, times):
    ...         hour = 3_600_000_000
    ...         midnight = times - times % (24 * hour)
    ...         is_day = times % (24 * hour) < 16 * hour
    ...         starts = np.where(is_day, midnight, midnight + 16 * hour)
    ...         return starts, np.where(is_day, midnight + 16 * hour, midnight + 24 * hour)
    >>> shifts = stream_of("at bigint").watermark("at", 0).window(Shifts()).agg(count())
    >>> driver = Driver(shifts)
    >>> _ = driver.send([{"at": 0}, {"at": 60_000_000}])
    >>> driver.close().results.to_pylist()
    [{'window_start': 57600000, 'window_end': 86400000, 'count': 1}]
    """

    _apart_by: ClassVar[tuple[tuple[str, ...], ...]] = (("window_start", "window_end"),)

    if TYPE_CHECKING:
        longest: Any  # a Duration, as an attribute or a property: pyright lets nobody write an attribute over a property
    else:

        @property
        @abstractmethod
        def longest(self) -> Duration:
            """The longest a window can be. A window that is longer stops the query."""

    @abstractmethod
    def assign(self, times: Times) -> Assigned:
        """Return the windows of rows with these event times.

        Parameters
        ----------
        times : ndarray of int64
            Microseconds since the epoch, in order of arrival; never empty.

        Returns
        -------
        tuple of ndarray of int64
            ``(starts, ends)`` if every row is in exactly one window, in the order of `times`. Otherwise ``(rows, starts,
            ends)``, one entry for every row and window: the row's number in `times`, and the bounds. A row that is not named
            is in no window and is counted as ``unassigned``. A window is ``[start, end)`` and contains the row's event time.
        """
