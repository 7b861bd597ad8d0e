"""Functions of lists, maps and calendars as methods of expressions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Expr, Func

Single: TypeAlias = "Callable[[Expr], object]"
Pair: TypeAlias = "Callable[[Expr, Expr], object]"


class ListMethods:
    """What can be called on an expression; each is Spark's function of that name (docs/expressions.md)."""

    __slots__ = ()

    def _call(self, name: str, *more: object) -> Func:
        raise NotImplementedError

    def transform(self, function: Single | Pair) -> Func:
        """A list of what a `function` gives for each element, or for element and place, which counts from 0.

        Examples
        --------
        >>> from krishiv_py import col
        >>> col("prices").transform(lambda price: price * col("rate"))
        transform(prices, price -> (price * rate))
        """
        return self._call("transform", function)

    def filter(self, function: Single | Pair) -> Func:
        """The elements for which a `function`, of the element or of element and place, is true."""
        return self._call("filter", function)

    def exists(self, function: Single) -> Func:
        """Whether a `function` is true for an element; null if it is for none, and null for one."""
        return self._call("exists", function)

    def forall(self, function: Single) -> Func:
        """Whether a `function` is true for every element; null if it is false for none, and null for one."""
        return self._call("forall", function)

    def aggregate(self, start: object, merge: Pair, finish: Single | None = None) -> Func:
        """What `merge` makes of `start` and the first element, then of that and the second one, and so on.

        Parameters
        ----------
        start : Expr or constant
            What is there before the first element; `merge` must give values of its type.
        merge : callable
            Of what is there so far, and an element.
        finish : callable, optional
            Makes the result of what is there in the end.
        """
        return self._call("aggregate", start, merge, *(() if finish is None else (finish,)))

    def zip_with(self, other: object, function: Pair) -> Func:
        """A list of what a `function` gives for the elements at one place of it and the `other`; null for what is not there."""
        return self._call("zip_with", other, function)

    def array_distinct(self) -> Func:
        """The list without what is equal to an element before."""
        return self._call("array_distinct")

    def array_position(self, value: object) -> Func:
        """The place of the first element that equals `value`, from 1 on; 0 if there is none."""
        return self._call("array_position", value)

    def array_max(self) -> Func:
        """The greatest element; nulls are left out."""
        return self._call("array_max")

    def array_min(self) -> Func:
        """The least element; nulls are left out."""
        return self._call("array_min")

    def sort_array(self, ascending: bool = True) -> Func:
        """The list in order, `ascending` with nulls first, else descending with nulls last."""
        return self._call("sort_array", ascending)

    def array_sort(self, compare: Pair | None = None) -> Func:
        """The list in ascending order, nulls last; or as a function says of any two elements.

        Parameters
        ----------
        compare : callable, optional
            Of two elements, which may be null: a whole number below 0 if the first one comes first, above 0 if the second one
            does, else 0; equal ones keep their order. Null is an error.
        """
        return self._call("array_sort", *(() if compare is None else (compare,)))

    def array_join(self, delimiter: object, null: object = None) -> Func:
        """The texts of a list with a `delimiter` between them; nulls are left out, or written as the text `null`."""
        return self._call("array_join", delimiter, *(() if null is None else (null,)))

    def array_union(self, other: object) -> Func:
        """The elements of the list and the `other` one, each once."""
        return self._call("array_union", other)

    def array_intersect(self, other: object) -> Func:
        """The elements that the `other` list has as well, each once."""
        return self._call("array_intersect", other)

    def array_except(self, other: object) -> Func:
        """The elements that the `other` list has not, each once."""
        return self._call("array_except", other)

    def arrays_overlap(self, other: object) -> Func:
        """Whether the list and the `other` one have an element in common; null if none is found beside a null."""
        return self._call("arrays_overlap", other)

    def array_remove(self, value: object) -> Func:
        """The list without the elements that equal `value`."""
        return self._call("array_remove", value)

    def array_compact(self) -> Func:
        """The list without nulls."""
        return self._call("array_compact")

    def array_repeat(self, times: object) -> Func:
        """A list of the value so many `times`."""
        return self._call("array_repeat", times)

    def sequence(self, stop: object, step: object = None) -> Func:
        """The list of whole numbers, dates or times from this one to `stop`.

        Parameters
        ----------
        stop : Expr or constant
            The last element, if a `step` meets it.
        step : Expr or constant, optional
            A whole number; of dates and times a ``timedelta``. 1 or a day, backwards where `stop` comes before, by default.
        """
        return self._call("sequence", stop, *(() if step is None else (step,)))

    def flatten(self) -> Func:
        """The elements of the lists in a list, as one list."""
        return self._call("flatten")

    def slice(self, start: object, length: object) -> Func:
        """At most `length` elements from place `start` on, which counts from 1, below 0 from the end."""
        return self._call("slice", start, length)

    def map_keys(self) -> Func:
        """The keys of a map as a list."""
        return self._call("map_keys")

    def map_values(self) -> Func:
        """The values of a map as a list."""
        return self._call("map_values")

    def map_contains_key(self, key: object) -> Func:
        """Whether a map has a `key`."""
        return self._call("map_contains_key", key)

    def map_from_arrays(self, values: object) -> Func:
        """A map of the list, its keys, to the list `values`."""
        return self._call("map_from_arrays", values)

    def map_filter(self, function: Pair) -> Func:
        """The entries of a map for which a `function` of key and value is true."""
        return self._call("map_filter", function)

    def transform_values(self, function: Pair) -> Func:
        """A map with what a `function` of key and value gives in the place of each value."""
        return self._call("transform_values", function)

    def months_between(self, start: object, round_off: bool = True) -> Func:
        """Months from `start` to the date or time, a fraction in 31 days; rounded to eight digits with `round_off`."""
        return self._call("months_between", start, *(() if round_off is True else (round_off,)))

    def shiftleft(self, bits: object) -> Func:
        """The integer with its `bits` moved to the left."""
        return self._call("shiftleft", bits)

    def shiftright(self, bits: object) -> Func:
        """The integer with its `bits` moved to the right, its sign kept."""
        return self._call("shiftright", bits)

    def shiftrightunsigned(self, bits: object) -> Func:
        """The integer with its `bits` moved to the right, and zeros in their place."""
        return self._call("shiftrightunsigned", bits)
