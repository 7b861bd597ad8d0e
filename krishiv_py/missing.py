"""The answer of an object to a name that it does not have: a hint to write, or the nearest name that there is.

Such names are not methods: an object has only what it can do, for type checkers, completion, ``dir()`` and ``hasattr``.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, ClassVar, Final, NoReturn, TypeVar

from typing_extensions import Self

from krishiv_py.errors import MethodError, OrderError, PlanError

C = TypeVar("C", bound=type)

_LIKE: Final = 0.7
"""The likeness of a name to another, between 0 and 1, from which it is taken for it."""
_SLIP: Final = 0.85
"""The likeness from which it is a slip of the pen."""

_ANSWERS: Final = "__krishiv_answers__"
"""The attribute of a class with what is wrong, and what to write, for each name that it does not have."""
_KIND: Final = "__krishiv_kind__"
"""The attribute with what an object is, in words; streams have none."""


class NoStepError(OrderError, AttributeError):
    """A step that a stage does not have. No other error is an AttributeError: Python would take a property for missing."""


def needs(first: str, *names: str) -> Callable[[C], C]:
    """Class decorator: for one of `names` this stage says that `first` must be called before."""

    def decorate(cls: C) -> C:
        setattr(cls, _ANSWERS, {n: (f".{n}() was called too early", f"call {first} first") for n in names})
        return cls

    return decorate


def instead(ways: Mapping[str, str]) -> Callable[[C], C]:
    """Class decorator: for a name of `ways` this stage says what to write; its methods and its own :func:`needs` come first."""

    def decorate(cls: C) -> C:
        ours = {n: (f".{n}() is not a step of this stage", way) for n, way in ways.items()}
        above: dict[str, tuple[str, str]] = next((vars(b)[_ANSWERS] for b in cls.__mro__[1:] if _ANSWERS in vars(b)), {})
        setattr(cls, _ANSWERS, {**above, **ours, **vars(cls).get(_ANSWERS, {})})
        return cls

    return decorate


def answering(kind: str, ways: Mapping[str, str]) -> Callable[[C], C]:
    """Class decorator: for each name before a way of `ways` an object, in words a `kind`, says what to write.

    ``{name}`` in a way is the name that was tried; in a name ``*`` is any text.
    """

    def decorate(cls: C) -> C:
        hints = {name: way.replace("{name}", name) for names, way in ways.items() for name in names.split()}
        setattr(cls, _ANSWERS, {name: (f"a {kind} has no attribute {name!r}", way) for name, way in hints.items()})
        setattr(cls, _KIND, f"a {kind}")
        return cls

    return decorate


def _answers(cls: type) -> dict[str, tuple[str, str]]:
    return getattr(cls, _ANSWERS, {})


def answers(cls: type) -> dict[str, str]:
    """Return what to write on an object instead of each name that it does not have, but others know."""
    return {name: hint for name, (_, hint) in _answers(cls).items() if "*" not in name and not hasattr(cls, name)}


def _answer(cls: type, name: str, own: Sequence[str]) -> tuple[str, str] | None:
    """Return what is wrong with a name and what to write; by a pattern unless it is a slip of a name of its `own`."""
    answers = _answers(cls)
    if name in answers or difflib.get_close_matches(name, own, cutoff=_SLIP):
        return answers.get(name)
    pattern = next((p for p in answers if "*" in p and fnmatchcase(name, p)), None)
    return None if pattern is None else (answers[pattern][0].replace(pattern, name), answers[pattern][1])


def no_such_name(cls: type, name: str) -> PlanError | AttributeError:
    """Return the error for a name that an object does not have."""
    if name.startswith("_"):  # copy, pickle and notebooks try these
        return AttributeError(name)
    got = f"{'an' if cls.__name__[0] in 'AEIOU' else 'a'} {cls.__name__}"
    kind: str | None = getattr(cls, _KIND, None)
    own = [n for n in dir(cls) if n[0] != "_"]
    answer = _answer(cls, name, own)
    if answer is not None:
        what, hint = answer
        return NoStepError(what, got=got, hint=hint) if kind is None else MethodError(what, got=f".{name}", hint=hint)
    near = difflib.get_close_matches(name, own, n=2, cutoff=_LIKE)
    hint = f"did you mean {' or '.join(f'.{n}' for n in near)}?" if near else "dir(...) of it has the names that there are"
    what = f"{kind or 'a stream at this stage'} has no attribute {name!r}"
    return MethodError(what, got=got if kind is None else f".{name}", hint=hint.rstrip("?"))


class Answering:
    """An object that answers names which it does not have."""

    __slots__ = ()

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
        kind = getattr(type(self), _KIND, type(self).__name__)
        raise PlanError(f"{kind} cannot be pickled", got=got, hint=hint)
