"""Define what a user's class says of itself, for errors, ``explain()`` and checkpoints."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from krishiv_py.errors import RAISED, PlanError, failure_text
from krishiv_py.plan.checks import a_text


class Described:
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


def description_of(brought: Described, what: str) -> Description:
    """Return the checked description of what a user `brought`; errors call it a `what`.

    Raises
    ------
    PlanError
        If it fails, or if a checkpoint could not note a parameter.
    """
    try:
        name, parameters = brought.name, dict(brought.parameters())
        a_text(brought.describe(), "describe", "return a text")
        noted = tuple(sorted((str(key), repr(value)) for key, value in parameters.items()))
    except RAISED as problem:  # user code: whatever it raises is reported with its class
        failed = f"{what} {type(brought).__name__} cannot be described"
        raise PlanError(
            failed, got=failure_text(problem), then="a checkpoint could not note it", hint="fix the class"
        ) from problem
    for key, text in noted:
        if " at 0x" in text:
            raise PlanError(
                f"parameter {key!r} of {what} {type(brought).__name__} has no text of its own",
                got=text,
                then="a checkpoint could not tell whether it changed",
                hint="give its class a __repr__, or override parameters()",
            )
    return Description(a_text(name, "name", "return a text"), noted)


def attribute_of(brought: Described, attribute: str, what: str, consequence: str) -> Any:
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
