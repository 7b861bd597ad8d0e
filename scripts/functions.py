"""Write what is made of the definitions in krishiv_py/functions: the methods of columns and the page of all functions.

``python -m scripts.functions`` writes both; a test says when they are out of date.
"""

from __future__ import annotations

import datetime as dt
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Final

from krishiv_py import Expr
from krishiv_py.functions.definition import Definition, Param
from krishiv_py.functions.known import FUNCTIONS

ROOT: Final = Path(__file__).parents[1]
METHODS: Final = ROOT / "krishiv_py" / "plan" / "expressions" / "methods.py"
PAGE: Final = ROOT / "docs" / "reference" / "functions.md"
REFERENCE: Final = ROOT / "docs" / "reference" / "expressions.md"
FAMILIES: Final = {
    "text": ("Text", "TextMethods", "str"),
    "numbers": ("Numbers", "NumberMethods", None),
    "times": ("Dates and times", "TimeMethods", "dt"),
    "lists": ("Lists", "ListMethods", "list"),
    "maps": ("Maps", "MapMethods", "map"),
    "structs": ("Structs", "StructMethods", "struct"),
    "conditions": ("Conditions", "ConditionMethods", None),
    "hashes": ("Hashes", "HashMethods", None),
    "json": ("JSON", "JsonMethods", None),
}
"""Title, class and namespace of each family."""
_HEAD: Final = '''"""Functions as methods of columns, from krishiv_py/functions: ``python -m scripts.functions`` writes it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from krishiv_py.plan.expressions.called import Calls, Pair, Single, TruncUnit, unless

if TYPE_CHECKING:
    from krishiv_py.plan.expressions.expr import Func
'''


def shown() -> list[Definition]:
    """Return the functions that users call, by family and name."""
    known = [f for f in FUNCTIONS.values() if f.example[0]]
    return sorted(known, key=lambda f: (list(FAMILIES).index(f.family), f.name))


def methods() -> str:
    """Return the module of the methods."""
    out, classes = [_HEAD], []
    for family, (title, name, _) in FAMILIES.items():
        own = [f for f in shown() if f.family == family and f.method is not None]
        if own:
            classes.append(name)
            of = title if title.isupper() else title[0].lower() + title[1:]
            out += [_class(name, "Calls", f"Functions of {of} as methods."), *map(_method, own)]
    return "".join(
        [*out, _class("FunctionMethods", ", ".join(classes), "All functions as methods, each Spark's of that name.")]
    )


def _class(name: str, bases: str, doc: str) -> str:
    return f'\n\nclass {name}({bases}):\n    """{doc}"""\n\n    __slots__ = ()\n'


def _method(known: Definition) -> str:
    """Return one method, with the parameters of its function but the one that it is called on."""
    given = [p for i, p in enumerate(known.params) if i != known.subject]
    parameters = [_parameter(p) for p in given] + (['time_zone: str = "UTC"'] if known.zoned else [])
    passed = "".join(f", {_argument(p, known.short)}" for p in given)
    subject = f", subject={known.subject}" if known.subject else ""
    call = f'self._call("{known.name}"{passed}{subject})'
    if known.zoned:
        call = f'self._in_zone("{known.name}", time_zone{passed})'
    words, *sections = re.split(r"\n\n(?=\w+\n---)", inspect.cleandoc(known.doc))
    doc = "\n\n".join([words + _sql(known), *sections])
    raw = "r" if "\\" in doc else ""
    lines = doc.splitlines()
    body = lines[0] + "".join(f"\n{'        ' + x if x else ''}" for x in lines[1:])
    closing = "\n        " if len(lines) > 1 else ""
    return f'''
    def {known.method}({", ".join(["self", *parameters])}) -> Func:
        {raw}"""{body}{closing}"""
        return {call}
'''


def _sql(known: Definition) -> str:
    return f"\n\nSQL text: ``{known.example[0]}`` is {text_of(known.example[1])}."


def _parameter(param: Param) -> str:
    python = param.takes.python
    if param.many:
        return f"*{param.name}: {python}"
    if not param.optional:
        return f"{param.name}: {python}"
    kind = f"{python} | None" if param.default is None and python != "object" else python
    default = f'"{param.default}"' if isinstance(param.default, str) else repr(param.default)
    return f"{param.name}: {kind} = {default}"


def _argument(param: Param, short: bool) -> str:
    if param.many:
        return f"*{param.name}"
    if param.optional and (short or param.default is None):
        default = f'"{param.default}"' if isinstance(param.default, str) else repr(param.default)
        return f"*unless({param.name}, {default})"
    return param.name


def text_of(value: object) -> str:
    """Return a value as readers of the docs see it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return f"``{value}``"
    if isinstance(value, list):
        if value and isinstance(value[0], tuple):
            return f"``{{{', '.join(f'{k}: {v}' for k, v in value)}}}``"
        return f"``[{', '.join('null' if x is None else str(x) for x in value)}]``"
    if isinstance(value, dt.datetime):
        return f"``{value.replace(tzinfo=None).isoformat(' ')}``" + (" UTC" if value.tzinfo else "")
    return f"``{value}``" if isinstance(value, (dt.date, Decimal)) else str(value)


def page() -> str:
    """Return the page of all functions."""
    return "\n".join(_page()) + "\n"


_INTRODUCTION: Final = """# Functions

All functions of expressions. `python -m scripts.functions` writes this page from the definitions in `krishiv_py/functions`, and
each example runs as a test. SQL text and `func(name, ...)` take the names of the first column; methods are in the second.
The rules for nulls, types and patterns are in [expressions](../expressions.md)."""


def _page() -> Iterator[str]:
    yield _INTRODUCTION
    for family, (title, _, namespace) in FAMILIES.items():
        own = [f for f in shown() if f.family == family]
        yield f"\n## {title}\n"
        if namespace and any(f.method for f in own):
            yield f'The methods are also in `col("x").{namespace}`.\n'
        yield "| Function | Method | Type | | Example |"
        yield "|---|---|---|---|---|"
        yield from map(_line, own)
    yield "\n## Methods that are not functions\n"
    yield "| Method | |"
    yield "|---|---|"
    for name in own_methods():
        doc = inspect.cleandoc(getattr(Expr, name).__doc__ or "").split("\n\n")[0]
        yield f"| `.{name}{_signature(name)}` | {_cell(doc)} |"


def own_methods() -> list[str]:
    """Return the methods of columns that are not calls of functions."""
    inside = ("children", "parts")
    return [n for n, v in sorted(vars(Expr).items()) if n[0] != "_" and callable(v) and n not in inside]


def _signature(name: str) -> str:
    own = [p for n, p in inspect.signature(getattr(Expr, name)).parameters.items() if n != "self"]
    return f"({', '.join(str(p.replace(annotation=p.empty)) for p in own)})"


def _method_called(known: Definition) -> str:
    given = [_called(p) for i, p in enumerate(known.params) if i != known.subject]
    return f"`.{known.method}({', '.join([*given, *(['time_zone=' + repr('UTC')] if known.zoned else [])])})`"


def _called(param: Param) -> str:
    if param.many:
        return f"*{param.name}"
    if not param.optional:
        return param.name
    return f"[{param.name}]" if param.default is None else f"{param.name}={param.default!r}"


def _line(known: Definition) -> str:
    called = f"`{known.name}({', '.join(map(_called, known.params))})`" + "".join(f", `{n}`" for n in known.names)
    method = "" if known.method is None else _method_called(known)
    doc = inspect.cleandoc(known.doc).split("\n\n")[0].removeprefix("Return ")
    text, value = known.example
    cells = (called, method, known.returns, doc[0].upper() + doc[1:], f"`{text}` is {text_of(value)}")
    return f"| {' | '.join(map(_cell, cells))} |"


def _cell(text: str) -> str:
    plain = re.sub(r":meth:`(\w+)`", r"`.\1`", text.replace("\n", " ").replace("``", "`"))
    return plain.replace("|", "\\|")


def reference() -> str:
    """Return the page of the reference with all methods of columns."""
    text = REFERENCE.read_text(encoding="utf-8")
    begin = text.index("::: krishiv_py.Expr\n")
    groups = [space for _, _, space in FAMILIES.values() if space is not None]
    members = ", ".join([*own_methods(), *groups, *(f.method for f in shown() if f.method is not None)])
    return text[:begin] + re.sub(r"members: \[[^]]*\]", f"members: [{members}]", text[begin:], count=1)


def formatted(text: str) -> str:
    """Return source as ruff lays it out."""
    command = [sys.executable, "-m", "ruff", "format", "--stdin-filename", str(METHODS), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


def files() -> dict[Path, str]:
    """Return the files that are written, and what belongs into them."""
    return {METHODS: formatted(methods()), PAGE: page(), REFERENCE: reference()}


def main() -> None:
    """Write all of it."""
    for path, text in files().items():
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
