"""A map in ascending order of its keys, in pages: a step reads and writes the pages of the keys it touches, and no other.

It is a B+ tree. What an operator knows of its chunks grows with what is open, so it must not travel as a whole in each
micro-batch. A page is a note of the adapter (:class:`Pages`). The root lies in the dictionary of the bucket; while all keys
fit into it, it is stored as a plain dictionary, as it always was::

    bucket.meta["runs:s"]   root    0 ....... 5000 ....... 9000
                                    |         |            |
                            pages   0 1 2 ... 5000 5001 .. 9000 9001 ..
"""

from __future__ import annotations

import copy
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, Generic, Protocol, TypeVar

import attrs

K = TypeVar("K", int, str)

MOST: Final = 256
"""So many entries has a page at the most."""
_FULL: Final = 224
_PAGED: Final = ""
"""The one name in what is stored of a map whose root has pages below it; no key is empty."""


class Pages(Protocol):
    """Notes by name, which are lists of what JSON can say."""

    def read(self, name: str) -> Any:
        """Return the note of that name; it must exist."""
        ...

    def write(self, name: str, note: Any) -> None:
        """Write, or replace, a note."""
        ...

    def remove(self, name: str) -> None:
        """Remove a note."""
        ...


@attrs.define(eq=False)
class _Node:
    """A page: keys with values, or the first keys of the pages below it with these, or their numbers while they are unread."""

    keys: list[Any]
    items: list[Any]
    leaf: bool
    page: int | None = None
    changed: bool = True


class SortedMap(Generic[K]):
    """See the module's docstring. A value that was changed in place must be set again.

    Parameters
    ----------
    name : str
        What its pages are called.
    key : type
        ``int`` or ``str``.
    pages : Pages, optional
        Where its pages are; without it all of them are in memory.
    stored : dict or list
        What :meth:`stored` gave; or keys alone, which have the value 1.
    """

    def __init__(self, name: str, key: Callable[[Any], K], pages: Pages | None = None, stored: Any = ()) -> None:
        self._name = name
        self._pages = pages
        self._gone: list[int] = []
        self._next: int = 0
        self._len: int = 0
        if isinstance(stored, dict) and _PAGED in stored:
            keys: list[Any]
            numbers: list[Any]
            self._len, self._next, keys, numbers = stored[_PAGED]
            self._root = _Node(keys, numbers, leaf=False)
        else:
            entries = {key(k): v for k, v in (stored.items() if isinstance(stored, dict) else ((k, 1) for k in stored))}
            self._len = len(entries)
            order = sorted(entries)
            self._root = _built(order, [entries[k] for k in order])

    def __len__(self) -> int:
        return self._len

    def __contains__(self, key: K) -> bool:
        return self.get(key, self) is not self

    def __iter__(self) -> Iterator[K]:
        for node, start, stop in self._leaves(None, None):
            yield from node.keys[start:stop]

    def __getitem__(self, key: K) -> Any:
        value = self.get(key, self)
        if value is self:
            raise KeyError(key)
        return value

    def get(self, key: K, default: Any = None) -> Any:
        """Return the value of a key, or what is given for one that is not there."""
        node = self._root
        while not node.leaf:
            i = bisect_right(node.keys, key) - 1
            if i < 0:
                return default
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        return node.items[i] if i < len(node.keys) and node.keys[i] == key else default

    def __setitem__(self, key: K, value: Any) -> None:
        node, path = self._root, []
        while not node.leaf:
            i = max(bisect_right(node.keys, key) - 1, 0)
            if key < node.keys[i]:
                node.keys[i], node.changed = key, True
            path.append((node, i))
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        node.changed = True
        if i < len(node.keys) and node.keys[i] == key:
            node.items[i] = value
            return
        last = i == len(node.keys)
        node.keys.insert(i, key)
        node.items.insert(i, value)
        self._len += 1
        while len(node.keys) > MOST:
            cut = _FULL if last else len(node.keys) // 2
            right = _Node(node.keys[cut:], node.items[cut:], node.leaf)
            del node.keys[cut:], node.items[cut:]
            node.changed = True
            if not path:
                self._root = _Node([node.keys[0], right.keys[0]], [node, right], leaf=False)
                break
            node, i = path.pop()
            last = i == len(node.keys) - 1
            node.keys.insert(i + 1, right.keys[0])
            node.items.insert(i + 1, right)
            node.changed = True

    def __delitem__(self, key: K) -> None:
        node, path = self._root, []
        while not node.leaf:
            i = bisect_right(node.keys, key) - 1
            if i < 0:
                raise KeyError(key)
            path.append((node, i))
            node = self._below(node, i)
        i = bisect_left(node.keys, key)
        if i == len(node.keys) or node.keys[i] != key:
            raise KeyError(key)
        del node.keys[i], node.items[i]
        node.changed = True
        self._len -= 1
        while not node.keys and path:
            self._let_go(node)
            node, i = path.pop()
            del node.keys[i], node.items[i]
            node.changed = True
        while not self._root.leaf and len(self._root.keys) < 2:
            self._root = self._below(self._root, 0) if self._root.keys else _Node([], [], leaf=True)
            self._let_go(self._root)
            self._root.page = None

    def pop(self, key: K, default: Any = None) -> Any:
        """Take a key out; gives its value, or what is given for one that is not there."""
        value = self.get(key, self)
        if value is self:
            return default
        del self[key]
        return value

    def remove(self, keys: Iterable[K]) -> None:
        """Take some keys out, which must be there."""
        for key in keys:
            del self[key]

    def values(self) -> Iterator[Any]:
        """Yield all values, in order of their keys."""
        for node, start, stop in self._leaves(None, None):
            yield from node.items[start:stop]

    def between(self, low: K | None, high: K | None, most: int | None = None) -> list[K]:
        """Return the keys from `low` to before `high`, ascending, or the first `most` of them; None is without a bound."""
        keys: list[K] = []
        for node, start, stop in self._leaves(low, high):
            keys += node.keys[start:stop]
            if most is not None and len(keys) >= most:
                return keys[:most]
        return keys

    def before(self, key: K) -> K | None:
        """Return the largest key below another one."""
        return self._before(self._root, key)

    def after(self, key: K) -> K | None:
        """Return the smallest key above another one."""
        return next((k for node, start, stop in self._leaves(key, None) for k in node.keys[start:stop] if k > key), None)

    def stored(self) -> dict[str, Any]:
        """Write the pages that have changed; gives what is to be kept of the map itself."""
        if self._pages is None or self._root.leaf:
            kept = {str(k): v for k, v in zip(self, self.values(), strict=True)}
        else:
            self._write(self._root, self._pages)
            kept = {_PAGED: [self._len, self._next, self._root.keys, [_number(child) for child in self._root.items]]}
        if self._pages is not None:
            for number in self._gone:
                self._pages.remove(self._page(number))
        self._gone.clear()
        return kept

    def __deepcopy__(self, memo: dict[int, Any]) -> SortedMap[K]:
        """Return a copy that reads the same pages; it is not to be stored."""
        copied = copy.copy(self)
        copied._root, copied._gone = copy.deepcopy(self._root, memo), []
        return copied

    def _write(self, node: _Node, pages: Pages) -> None:
        if not node.leaf:
            for child in node.items:
                if isinstance(child, _Node):
                    if child.page is None:
                        child.page, node.changed = self._next, True
                        self._next += 1
                    self._write(child, pages)
        if node.changed and node.page is not None:
            items = node.items if node.leaf else [_number(child) for child in node.items]
            pages.write(self._page(node.page), [int(node.leaf), node.keys, items])
        node.changed = False

    def _below(self, node: _Node, i: int) -> _Node:
        child = node.items[i]
        if isinstance(child, _Node):
            return child
        assert self._pages is not None
        leaf, keys, items = self._pages.read(self._page(child))
        below = node.items[i] = _Node(keys, items, bool(leaf), child, changed=False)
        return below

    def _before(self, node: _Node, key: K) -> K | None:
        for i in range(bisect_left(node.keys, key) - 1, -1, -1):
            key_before: K | None = node.keys[i] if node.leaf else self._before(self._below(node, i), key)
            if key_before is not None:
                return key_before
        return None

    def _leaves(self, low: K | None, high: K | None, within: _Node | None = None) -> Iterator[tuple[_Node, int, int]]:
        """Pages with keys from `low` to before `high`, and where these begin and end in them."""
        node = self._root if within is None else within
        stop = len(node.keys) if high is None else bisect_left(node.keys, high)
        if node.leaf:
            start = 0 if low is None else bisect_left(node.keys, low)
            if start < stop:
                yield node, start, stop
            return
        for i in range(0 if low is None else max(bisect_right(node.keys, low) - 1, 0), stop):
            yield from self._leaves(low, high, self._below(node, i))

    def _let_go(self, node: _Node) -> None:
        if node.page is not None:
            self._gone.append(node.page)

    def _page(self, number: int) -> str:
        return f"{self._name}/{number}"


def _number(child: _Node | int) -> int:
    if isinstance(child, int):
        return child
    assert child.page is not None
    return child.page


def _built(keys: list[Any], items: list[Any], *, leaf: bool = True) -> _Node:
    """Return the root of a tree over all of these."""
    if len(keys) <= MOST:
        return _Node(keys, items, leaf)
    starts = range(0, len(keys), _FULL)
    nodes = [_Node(keys[begin : begin + _FULL], items[begin : begin + _FULL], leaf) for begin in starts]
    return _built([node.keys[0] for node in nodes], nodes, leaf=False)
