"""Docstrings for the site: roles such as :meth:`Session.sql` become links, and classes made by attrs get their signature."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from griffe import (
    Alias,
    Attribute,
    Class,
    Expr,
    ExprCall,
    ExprKeyword,
    ExprName,
    Extension,
    Function,
    Module,
    Object,
    Parameter,
    ParameterKind,
    Parameters,
)
from markdown.extensions.toc import slugify

DOCS = Path(__file__).resolve().parents[2] / "docs"
_ROLE = re.compile(r":(?:class|func|meth|mod|attr):`([^`]+)`")
_TARGET = re.compile(r"(?P<title>[^<]+?)\s*<(?P<path>[^>]+)>")
_PAGE = re.compile(r"docs/([a-z-]+)\.md")
_RULE = re.compile(r"(?:SEMANTICS )?§(\d+(?:\.\d+)?)")


def documented() -> list[str]:
    """The names that have an entry in the reference."""
    return [
        name for page in sorted((DOCS / "reference").glob("*.md")) for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)
    ]


@functools.cache
def rule_places() -> dict[str, str]:
    """Where on its page each section and rule of the semantics stands; see ``pages.py`` for those of the rules."""
    text = _text("semantics")
    sections = {number: slugify(head, "-") for head, number in re.findall(r"^## (§(\d+) .*)$", text, re.M)}
    numbered = re.findall(r"§(\d+\.\d+)", " ".join(re.findall(r"^\*\*((?:§\d+\.\d+(?:, )?)+)", text, re.M)))
    rules = {rule: f"rule-{rule.replace('.', '-')}" for rule in numbered}
    return sections | rules


def _cited(text: str, rules: dict[str, str]) -> str:
    return _RULE.sub(lambda at: f"[{at[0]}](../semantics.md#{rules[at[1]]})" if at[1] in rules else at[0], text)


class Docstrings(Extension):
    """Prepares the package when it has been loaded."""

    def on_package(self, *, pkg: Module, **_: Any) -> None:
        """Go through all objects of `pkg`."""
        shown = {pkg[name.partition(".")[2]].canonical_path for name in documented() if "." in name}
        rules = rule_places()
        for obj in [pkg, *_inside(pkg)]:
            if isinstance(obj, Class):
                _settle_signature(obj, pkg, shown)
            if obj.docstring is not None:
                text = _linked(obj.docstring.value, obj, pkg, shown)
                text = _PAGE.sub(lambda found: f"[{_title(found[1])}](../{found[1]}.md)", text)
                text = _cited(text, rules)
                obj.docstring.value = re.sub(r"::(\n\n {4})", r":\1", text)


def _text(page: str) -> str:
    return (DOCS / f"{page}.md").read_text(encoding="utf-8")


def _title(page: str) -> str:
    """What a page is called, in running text; an error if there is none."""
    head = _text(page).partition("\n")[0].removeprefix("# ")
    return head[:1].lower() + head[1:]


def _inside(scope: Object) -> Iterator[Object]:
    for member in scope.members.values():
        if isinstance(member, Object):
            yield member
            yield from _inside(member)


def _linked(text: str, obj: Object, pkg: Module, shown: set[str]) -> str:
    return _ROLE.sub(lambda found: _link(obj, found[1], pkg, shown), text)


def _link(obj: Object, role: str, pkg: Module, shown: set[str]) -> str:
    """A link where the reference shows the target, plain code where it does not; strict builds refuse what does not exist."""
    named = _TARGET.fullmatch(role)
    path = named["path"] if named else role.removeprefix("~")
    title = named["title"] if named else path.rpartition(".")[2] if role.startswith("~") else path
    target = _found(obj, path, pkg)
    if target is None:
        return f"[`{title}`][{path}]"
    owner = target.canonical_path.rpartition(".")[0]
    linked = target.canonical_path in shown or (owner in shown and target.has_docstring)
    return f"[`{title}`][{target.canonical_path}]" if linked else f"`{title}`"


def _found(obj: Object, path: str, pkg: Module) -> Object | Alias | None:
    """What a role names: a member of the same class, a name of the module, or a full path."""
    scope: Object | Alias | None = pkg if path.startswith("krishiv_py.") else obj
    first, *rest = path.removeprefix("krishiv_py.").split(".")
    while scope is not None:
        result = scope.all_members.get(first)
        for name in rest:
            result = None if result is None else result.all_members.get(name)
        if result is not None:
            return result
        scope = scope.parent
    return None


def _settle_signature(cls: Class, pkg: Module, shown: set[str]) -> None:
    """Give a class made by attrs its ``__init__``; take it away where only the library can call it."""
    if "__init__" not in cls.members and _is_made_by_attrs(cls):
        itself = Parameter("self", kind=ParameterKind.positional_or_keyword)
        cls.set_member(
            "__init__", Function("__init__", parameters=Parameters(itself, *map(_parameter, _fields(cls))), parent=cls)
        )
    made = cls.members.get("__init__")
    if not isinstance(made, Function):
        return
    described = cls.docstring is not None and "Parameters\n----------\n" in cls.docstring.value
    for parameter in list(made.parameters)[1:]:
        if described and _has_internal_type(parameter, pkg, shown):
            parameter.annotation = None  # a type after conversion; the table of parameters says what can be passed
        elif not described and _is_internal(parameter, pkg, shown):
            cls.del_member("__init__")
            return


def _is_internal(parameter: Parameter, pkg: Module, shown: set[str]) -> bool:
    """Whether a user cannot know what to pass: a private name, an error's arguments, or a class without an entry."""
    if parameter.name.startswith("_") or parameter.kind is ParameterKind.var_positional:
        return True
    return _has_internal_type(parameter, pkg, shown)


def _has_internal_type(parameter: Parameter, pkg: Module, shown: set[str]) -> bool:
    """Whether the annotation names a class of this package without an entry."""
    names = (
        [e.canonical_path for e in parameter.annotation.iterate() if isinstance(e, ExprName)]
        if isinstance(parameter.annotation, Expr)
        else []
    )
    own = [_found(pkg, n, pkg) for n in names if n.startswith("krishiv_py.")]
    return any(o is not None and o.is_class and o.canonical_path not in shown for o in own)


def _is_made_by_attrs(cls: Class) -> bool:
    return any(str(decorator.value).startswith(("attrs.frozen", "attrs.define")) for decorator in cls.decorators)


def _fields(cls: Class) -> list[Attribute]:
    """Return the fields that attrs takes: those of the bases first, and a field that is defined again at its new place."""
    result: dict[str, Attribute] = {}
    for owner in filter(_is_made_by_attrs, (*reversed(cls.mro()), cls)):
        for member in owner.members.values():
            if isinstance(member, Attribute) and member.annotation is not None and _is_field(member):
                result.pop(member.name, None)
                result[member.name] = member
    return list(result.values())


def _is_field(attribute: Attribute) -> bool:
    """Whether attrs makes a field of it: no property, no ``ClassVar`` and none that ``__init__`` leaves out."""
    labels = attribute.labels
    return "property" not in labels and "instance-attribute" in labels and _options(attribute).get("init") != "False"


def _options(attribute: Attribute) -> dict[str, Any]:
    value = attribute.value
    if not isinstance(value, ExprCall) or str(value.function) not in ("attrs.field", "field"):
        return {} if value is None else {"default": value}
    given = {a.name: a.value for a in value.arguments if isinstance(a, ExprKeyword)}
    return {name: str(v) if name in ("init", "kw_only") else v for name, v in given.items()}


def _parameter(field: Attribute) -> Parameter:
    options = _options(field)
    kind = ParameterKind.keyword_only if options.get("kw_only") == "True" else ParameterKind.positional_or_keyword
    default = f"{options['factory']}()" if "factory" in options else options.get("default")
    return Parameter(field.name, annotation=field.annotation, kind=kind, default=default)
