"""``QUALIFY`` and ``WINDOW w AS (...)``: shorter words for a query around OVER, and for what comes after it."""

from __future__ import annotations

from typing import Final

import attrs
from sqlglot import expressions as sg

from krishiv_py.plan.names import free
from krishiv_py.sql.env import conjuncts
from krishiv_py.sql.scope import Relation
from krishiv_py.sql.text.aggregates import aggregates
from krishiv_py.sql.text.statements import only, refused

_PARTS: Final = ("partition_by", "order", "spec")


def with_named_windows(tree: sg.Select) -> sg.Select:
    """The query with the definitions of its WINDOW clause in the place of their names.

    Raises
    ------
    PlanError
        For names that are not defined, or twice, or by one another; and for OVER that adds to a name.
    """
    given = {}
    for node in tree.args.get("windows") or ():
        name = node.name.lower()
        if name in given:
            raise refused("a WINDOW of one name twice", node.sql("spark"), "name one otherwise")
        given[name] = node
    over = [w for w in _of(tree) if w.args.get("alias")]
    if not given and not over:
        return tree
    changed = tree.copy()
    changed.set("windows", None)
    for window in (w for w in _of(changed) if w.args.get("alias")):
        if any(window.args.get(part) for part in _PARTS):
            raise refused("OVER that adds to a WINDOW", window.sql("spark"), "write all of it in the WINDOW, or behind OVER")
        found = _defined(window, given)
        window.set("alias", None)
        for part in _PARTS:
            value = found.args.get(part)
            window.set(part, [v.copy() for v in value] if isinstance(value, list) else value and value.copy())
    return changed


def _of(tree: sg.Select) -> list[sg.Window]:
    """OVER in the items of a query and in its QUALIFY."""
    qualify = tree.args.get("qualify")
    return [w for e in (*tree.expressions, *([] if qualify is None else [qualify])) for w in e.find_all(sg.Window)]


def _defined(window: sg.Window, given: dict[str, sg.Window]) -> sg.Window:
    """The definition behind a name, which may be another name."""
    alias, seen = window.args["alias"].name.lower(), set[str]()
    while True:
        if alias not in given or alias in seen:
            known = ", ".join(given) or "none"
            raise refused(f"OVER {alias}, which no WINDOW defines", f"defined: {known}", f"write WINDOW {alias} AS (...)")
        seen.add(alias)
        found = given[alias]
        if not found.args.get("alias"):
            only(found, frozenset({"this", *_PARTS}))
            return found
        if any(found.args.get(part) for part in _PARTS):
            raise refused("a WINDOW that adds to another one", found.sql("spark"), "write all of it in each")
        alias = found.args["alias"].name.lower()


def _check_over(tree: sg.Select) -> None:
    if not _of(tree):
        text = tree.args["qualify"].sql("spark").strip()
        raise refused("QUALIFY without OVER", text, "write WHERE, or HAVING behind GROUP BY")


def around_groups(tree: sg.Select) -> sg.Select:
    """A query with GROUP BY and QUALIFY as two: the groups, and one around them that ranks.

    Raises
    ------
    PlanError
        For items without a name, and aggregates that QUALIFY needs and the query does not give.
    """
    _check_over(tree)
    if tree.args.get("distinct") is not None:
        raise refused("DISTINCT with QUALIFY", tree.sql("spark"), "leave it out: groups are distinct")
    inside: list[sg.Expression] = []
    named: dict[str, str] = {}
    for item in tree.expressions:
        if item.find(sg.Window) is not None:
            continue
        node = item.unalias().unnest()
        if not item.alias and not (isinstance(node, sg.Column) and not isinstance(node.this, sg.Star)):
            raise refused("an item without a name with GROUP BY and QUALIFY", item.sql("spark"), "name it with AS")
        named[_said(node)] = item.alias or node.name
        inside.append(item.copy())

    for key in _unselected(tree, named):
        named[_said(key)] = key.name
        inside.append(key)

    def outside(node: sg.Expression) -> sg.Expression:
        whole = not isinstance(node, (sg.Identifier, sg.Order, sg.Ordered))  # which may be written as what they hold
        name = named.get(_said(node)) if whole else None
        return node if name is None else sg.column(name, quoted=True)

    over = [e.find(sg.Window) is not None for e in tree.expressions]
    names = [sg.column(e.alias or e.unalias().unnest().name, quoted=True) for e in tree.expressions]
    items = [e.copy().transform(outside) if w else n for e, w, n in zip(tree.expressions, over, names, strict=True)]
    condition = tree.args["qualify"].this.copy().transform(outside)
    for part in (*items, condition):
        if aggregates(part):
            hint = "select the aggregate under a name: SUM(x) AS total, and ORDER BY total"
            raise refused("an aggregate in QUALIFY, or OVER, that is not an item", part.sql("spark"), hint)
    groups = tree.copy()
    groups.set("qualify", None)
    groups.set("expressions", inside)
    found = sg.select(*items).from_(groups.subquery())
    found.set("qualify", sg.Qualify(this=condition))
    return found


def _unselected(tree: sg.Select, named: dict[str, str]) -> list[sg.Expression]:
    """The columns of GROUP BY that no item gives, which OVER may name all the same."""
    taken = {name.lower() for name in named.values()}
    group = tree.args.get("group")
    keys = [g.copy() for g in (group.expressions if group is not None else ()) if isinstance(g, sg.Column)]
    return [k for k in keys if _said(k) not in named and k.name.lower() not in taken]


def _said(node: sg.Expression) -> str:
    """Return what an expression says: the case of names does not matter, that of texts in it does."""
    found = node.copy()
    for name in found.find_all(sg.Identifier):
        name.replace(sg.to_identifier(name.name.lower(), quoted=True))
    for call in found.find_all(sg.Anonymous):
        call.set("this", call.name.lower())
    return found.sql("spark")


def qualified(tree: sg.Select) -> tuple[sg.Select, list[sg.Expression], tuple[str, ...]]:
    """A query whose QUALIFY asks for its items only: what it wants of them, and the names of items that were added for it.

    Raises
    ------
    PlanError
        Where neither an item nor QUALIFY has OVER.
    """
    qualify = tree.args.get("qualify")
    if qualify is None:
        return tree, [], ()
    _check_over(tree)
    known = {e.unalias().unnest().sql("spark"): e.alias for e in tree.expressions if e.alias}
    taken = [e.alias_or_name for e in tree.expressions]
    added: list[sg.Expression] = []

    def step(node: sg.Expression) -> sg.Expression:
        if not isinstance(node, sg.Window):
            return node
        text = node.sql("spark")
        if text not in known:
            known[text] = free(f"qualified_{len(added) + 1}", taken)
            taken.append(known[text])
            added.append(sg.Alias(this=node.copy(), alias=sg.to_identifier(known[text], quoted=True)))
        return sg.column(known[text], quoted=True)

    wanted = [part.transform(step) for part in conjuncts(qualify.this.copy())]
    changed = tree.copy()
    changed.set("qualify", None)
    changed.set("expressions", [*changed.expressions, *added])
    return changed, wanted, tuple(e.alias for e in added)


def without(rows: Relation, names: tuple[str, ...]) -> Relation:
    """Rows whose added columns are not among those of ``*``."""
    return attrs.evolve(rows, columns=tuple(attrs.evolve(c, hidden=c.hidden or c.name in names) for c in rows.columns))
