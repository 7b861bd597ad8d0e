"""Further functions as methods of expressions: numbers, texts, comparison of nulls."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_py.plan.expressions.list_methods import ListMethods

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Func


class MoreMethods(ListMethods):
    """What can be called on an expression; each is Spark's function of that name (docs/expressions.md)."""

    __slots__ = ()

    def equal_null(self, other: object) -> Func:
        """Whether it equals `other`, or both are null; never null. ``a <=> b`` in text, ``IS NOT DISTINCT FROM``."""
        return self._call("equal_null", other)

    def isnan(self) -> Func:
        """Whether the number is NaN; false for null."""
        return self._call("isnan")

    def floor(self) -> Func:
        """The greatest whole number that is not above it; ``bigint``."""
        return self._call("floor")

    def ceil(self) -> Func:
        """The least whole number that is not below it; ``bigint``."""
        return self._call("ceil")

    def sign(self) -> Func:
        """-1.0, 0.0 or 1.0."""
        return self._call("sign")

    def sqrt(self) -> Func:
        """The square root; NaN of a negative number."""
        return self._call("sqrt")

    def exp(self) -> Func:
        """The power of e."""
        return self._call("exp")

    def ln(self) -> Func:
        """The natural logarithm, as :meth:`log2` and :meth:`log10` to their bases; null of 0 and below."""
        return self._call("ln")

    def log2(self) -> Func:
        """The logarithm to the base 2."""
        return self._call("log2")

    def log10(self) -> Func:
        """The logarithm to the base 10."""
        return self._call("log10")

    def pow(self, exponent: object) -> Func:
        """The power with an `exponent`, a column or constant; ``double``."""
        return self._call("pow", exponent)

    def div(self, divisor: object) -> Func:
        """How often an integer `divisor` goes into it, cut off towards zero: ``a DIV b`` in text; ``bigint``."""
        return self._call("div", divisor)

    def pmod(self, divisor: object) -> Func:
        """The remainder by `divisor`, which is not negative for a positive one."""
        return self._call("pmod", divisor)

    def instr(self, part: object) -> Func:
        """The place of the first character of `part`, a column or constant, from 1 on; 0 if it is not in the text."""
        return self._call("instr", part)

    def replace(self, part: str, by: str = "") -> Func:
        """Every `part`, a plain text, exchanged for the text `by`."""
        return self._call("replace", part, by)

    def translate(self, characters: str, by: str) -> Func:
        """Each of the `characters` exchanged for the one at its place in `by`, or left out if there is none."""
        return self._call("translate", characters, by)

    def reverse(self) -> Func:
        """The characters of the text from the end on."""
        return self._call("reverse")

    def repeat(self, times: int) -> Func:
        """The text so many `times`."""
        return self._call("repeat", times)

    def get_json_object(self, path: str) -> Func:
        """What a `path` such as ``"$.user.tags[0]"`` leads to in the text: a text as it is, anything else as JSON; or null."""
        return self._call("get_json_object", path)

    def get(self, place: object) -> Func:
        """The element of a list at `place`, which counts from 0; null beyond the list."""
        return self._call("get", place)

    def to_date(self, pattern: str | None = None) -> Func:
        """The text as a date, written by a `pattern` such as ``"dd/MM/yyyy"``; an error where it is not."""
        return self._call("to_date", *(() if pattern is None else (pattern,)))

    def to_timestamp(self, pattern: str | None = None) -> Func:
        """The text as a time in UTC, written by a `pattern`; an error where it is not."""
        return self._call("to_timestamp", *(() if pattern is None else (pattern,)))

    def try_to_timestamp(self, pattern: str | None = None) -> Func:
        """:meth:`to_timestamp` by a `pattern`, null where the text is not written by it."""
        return self._call("try_to_timestamp", *(() if pattern is None else (pattern,)))
