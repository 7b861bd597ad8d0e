"""Trees of frozen attrs values without recursion: a chain of thousands of conditions is as good as one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Protocol, TypeAlias, TypeVar

import attrs
import pyarrow as pa

Own: TypeAlias = "tuple[Any, ...]"
Flat: TypeAlias = "tuple[tuple[type, Own], ...]"
"""A tree, children before parents: the class and the fields of every node, with a hole where a child is."""


class Tree(Protocol):
    """A node that knows the nodes below it, and how it is written."""

    def _children(self) -> tuple[Any, ...]:
        """Return the nodes directly below."""

    def _parts(self) -> tuple[Any, ...]:
        """Return its text, with nodes where theirs belongs."""


T = TypeVar("T", bound=Tree)


@attrs.frozen
class _Holes:
    """So many children; `single` where the field is one child and no tuple."""

    count: int
    single: bool = False


_HOLE: Final = _Holes(1, single=True)


def walk(tree: T) -> Iterator[T]:
    """Every node of the tree, parents first."""
    pending = [tree]
    while pending:
        node = pending.pop()
        yield node
        pending += reversed(node._children())


def render(tree: Tree) -> str:
    """Return the text of a tree."""
    out: list[str] = []
    pending: list[Any] = [tree]
    while pending:
        part = pending.pop()
        if isinstance(part, str):
            out.append(part)
        else:
            pending += reversed(part._parts())
    return "".join(out)


def flat(tree: Tree, base: type, swap: Callable[[Any], Any] | None = None) -> Flat:
    """Return the tree as a tuple, from which :func:`rebuilt` makes it again.

    Parameters
    ----------
    tree : Tree
        The tree.
    base : type
        The class of all its nodes.
    swap : callable, optional
        Gives the node that takes the place of a node, or the same one.
    """
    out: list[tuple[type, Own]] = []
    pending: list[Any] = [tree]
    while pending:
        node = pending.pop() if swap is None else swap(pending.pop())
        own: list[Any] = []
        for field in attrs.fields(type(node)):
            value = getattr(node, field.name)
            if isinstance(value, base):
                own.append(_HOLE)
                pending.append(value)
            elif isinstance(value, tuple) and value and all(isinstance(v, base) for v in value):
                own.append(_Holes(len(value)))
                pending += value
            else:
                own.append(value)
        out.append((type(node), tuple(own)))
    return tuple(reversed(out))


def rebuilt(nodes: Flat) -> Any:
    """Return the tree of a :func:`flat` tuple."""
    done: list[Any] = []
    for class_, own in nodes:
        values: list[Any] = []
        for value in reversed(own):
            if isinstance(value, _Holes):
                children = tuple(done[len(done) - value.count :])
                del done[len(done) - value.count :]
                values.append(children[0] if value.single else children)
            else:
                values.append(value)
        done.append(class_(*reversed(values)))
    return done[0]


def identity(tree: Tree, base: type) -> tuple[object, ...]:
    """Return a hashable value that two trees share only if they are built alike, constants of the same type included."""
    return tuple((class_.__name__, tuple(map(_token, own))) for class_, own in flat(tree, base))


def _token(value: object) -> object:
    if isinstance(value, (pa.DataType, _Holes)):
        return value
    if isinstance(value, tuple):
        return tuple(map(_token, value))
    if callable(value):  # two functions of users can look the same, as lambdas do
        return type(value).__name__, repr(value), id(getattr(value, "function", value))
    kind = "str" if isinstance(value, str) else type(value).__name__  # in whichever quotes
    return kind, repr(value)  # 1, 1.0 and True are equal in Python, but not the same constant


def listed(parts: Sequence[object], separator: str = ", ") -> tuple[object, ...]:
    """Parts with a separator between them."""
    return tuple(p for i, part in enumerate(parts) for p in ((separator, part) if i else (part,)))
