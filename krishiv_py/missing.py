"""The answer of an object to a name that it does not have: a hint to write, or the nearest name that there is.

Such names are not methods: an object has only what it can do, for type checkers, completion, ``dir()`` and ``hasattr``.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn

from typing_extensions import Self

from krishiv_py.errors import MethodError, OrderError, PlanError
from krishiv_py.lazy import lazy

if TYPE_CHECKING:
    from krishiv_py import foreign
else:
    foreign = lazy("krishiv_py.foreign")

_LIKE: Final = 0.7
"""The likeness of a name to another, between 0 and 1, from which it is taken for it."""
_SLIP: Final = 0.85
"""The likeness from which it is a slip of the pen."""
_NOTHING: Final = "dir(...) of it has the names that there are"
_STAGES: Final = frozenset({"rows", "keyed rows", "timed", "windowed", "panes", "results"})


class NoStepError(OrderError, AttributeError):
    """A step that a stage does not have. No other error is an AttributeError: Python would take a property for missing."""


def answers(cls: type[Answering]) -> dict[str, str]:
    """Return what to write on an object instead of each name that it does not have, but others know."""
    return {name: way for name, way in foreign.ways(cls._kind).items() if "*" not in name and not hasattr(cls, name)}


def way_of(kind: str, name: str, own: Sequence[str]) -> str | None:
    """Return what a `kind` of object writes for a name; by a pattern unless it is a slip of a name of its `own`."""
    ways = foreign.ways(kind)
    if name in ways or difflib.get_close_matches(name, own, cutoff=_SLIP):
        return ways.get(name)
    return next((way for pattern, way in ways.items() if "*" in pattern and fnmatchcase(name, pattern)), None)


def nearest(name: str, own: Sequence[str], otherwise: str, most: int = 2, like: float = _LIKE) -> str:
    """Return the hint of a name that nobody knows: names of its `own` that are like it, or `otherwise`."""
    near = difflib.get_close_matches(name, own, n=most, cutoff=like)
    return f"did you mean {' or '.join(f'.{n}' for n in near)}" if near else otherwise


def no_such_name(cls: type[Answering], name: str) -> PlanError | AttributeError:
    """Return the error for a name that an object does not have."""
    if name.startswith("_"):  # copy, pickle and notebooks try these
        return AttributeError(name)
    kind, own = cls._kind, [n for n in dir(cls) if n[0] != "_"]
    way = way_of(kind, name, own)
    if kind not in _STAGES:
        hint = way or nearest(name, own, _NOTHING)
        return MethodError(f"a {kind} has no attribute {name!r}", got=f".{name}", hint=hint)
    got = f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
    if way is None:
        what = f"a stream at this stage has no attribute {name!r}"
        return MethodError(what, got=got, hint=nearest(name, own, _NOTHING))
    early = way.startswith("call ") and way.endswith(" first")
    what = f".{name}() was called too early" if early else f".{name}() is not a step of this stage"
    return NoStepError(what, got=got, hint=way)


class Answering:
    """An object that answers names which it does not have."""

    __slots__ = ()
    _kind: ClassVar[str]
    """The lines of :mod:`krishiv_py.foreign` that are for it."""

    if not TYPE_CHECKING:  # for a type checker there are no other names

        def __getattr__(self, name: str) -> Any:
            held = getattr(type(self), name, None)
            if isinstance(held, property):
                return held.__get__(self)  # it raised an AttributeError of its own, which Python has dropped
            raise no_such_name(type(self), name)


class OfOneProcess(Answering):
    """An object that stays where it was made: to pickle it is an error that says what to send instead. A copy is the same."""

    __slots__ = ()
    _instead: ClassVar[tuple[str, str]]
    """The reason in a few words, and what to write."""

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce__(self) -> NoReturn:
        got, hint = self._instead
        kind = type(self).__name__ if self._kind in _STAGES else f"a {self._kind}"
        raise PlanError(f"{kind} cannot be pickled", got=got, hint=hint)
