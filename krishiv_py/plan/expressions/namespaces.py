"""Methods of columns by what they are for: ``col("name").str.upper()``, ``col("at").dt.hour()``."""

from __future__ import annotations

import builtins
from typing import TYPE_CHECKING, Any, Final

from krishiv_py.lazy import lazy
from krishiv_py.plan.expressions.called import Calls
from krishiv_py.plan.expressions.methods import ListMethods, MapMethods, TextMethods, TimeMethods

if TYPE_CHECKING:
    from krishiv_py.plan.expressions import elsewhere
    from krishiv_py.plan.expressions.expr import Expr, Field, Func
else:
    elsewhere = lazy("krishiv_py.plan.expressions.elsewhere")


class Namespace(Calls):
    """Some of the methods of a column."""

    __slots__ = ("_name", "_of")

    def __init__(self, of: Expr, name: builtins.str) -> None:
        self._of, self._name = of, name

    def _call(self, name: builtins.str, *more: object, subject: int = 0) -> Func:
        return self._of._call(name, *more, subject=subject)

    def __repr__(self) -> builtins.str:
        return f"{self._of!r}.{self._name}"

    if not TYPE_CHECKING:  # for a type checker there are no other names

        def __getattr__(self, name: builtins.str) -> Any:
            if name.startswith("_"):
                raise AttributeError(name)
            raise elsewhere.namespace_error(self._of, self._name, name, (n for n in dir(self) if n[0] != "_"))


class TextNamespace(Namespace, TextMethods):
    """Functions of text."""

    __slots__ = ()


class TimeNamespace(Namespace, TimeMethods):
    """Functions of dates and times."""

    __slots__ = ()


class ListNamespace(Namespace, ListMethods):
    """Functions of lists."""

    __slots__ = ()


class MapNamespace(Namespace, MapMethods):
    """Functions of maps."""

    __slots__ = ()


class StructNamespace(Namespace):
    """Holds what is in a struct."""

    __slots__ = ()

    def field(self, name: builtins.str) -> Field:
        """Return the field called `name`; null where the struct is null."""
        return self._of.field(name)


class Namespaces(Calls):
    """The groups of methods that a column has; each method is also one of the column itself."""

    __slots__ = ()

    @property
    def str(self) -> TextNamespace:
        """Functions of text: ``col("name").str.upper()``."""
        return TextNamespace(self, "str")  # type: ignore[arg-type]  # an Expr is what has these

    @property
    def dt(self) -> TimeNamespace:
        """Functions of dates and times: ``col("at").dt.hour("Europe/Berlin")``."""
        return TimeNamespace(self, "dt")  # type: ignore[arg-type]  # see above

    @property
    def list(self) -> ListNamespace:
        """Functions of lists: ``col("tags").list.array_contains("a")``."""
        return ListNamespace(self, "list")  # type: ignore[arg-type]  # see above

    @property
    def map(self) -> MapNamespace:
        """Functions of maps: ``col("labels").map.map_keys()``."""
        return MapNamespace(self, "map")  # type: ignore[arg-type]  # see above

    @property
    def struct(self) -> StructNamespace:
        """Return what is in a struct: ``col("place").struct.field("city")``."""
        return StructNamespace(self, "struct")  # type: ignore[arg-type]  # see above


GROUPS: Final = (ListNamespace, MapNamespace, StructNamespace, TextNamespace, TimeNamespace)
