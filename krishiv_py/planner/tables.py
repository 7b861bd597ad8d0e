"""The tables of the lookup joins in a plan that a function loads (SEMANTICS §9.3)."""

from __future__ import annotations

from krishiv_py.connectors.lookup_table import LookupTable
from krishiv_py.kernels.joins.lookup import Lookup
from krishiv_py.plan.nodes import MapBatches
from krishiv_py.plan.running.progress import TableVersion
from krishiv_py.planner.physical import PhysicalPlan


def lookup_tables(plan: PhysicalPlan) -> tuple[LookupTable, ...]:
    """The tables of a plan that a function loads, in the order of its steps."""
    found: dict[str, LookupTable] = {}
    for number, stage in enumerate(plan.stages):
        own = [step for output in plan.outputs if output.stage == number for step in output.steps]
        steps = [step for spec in (*(b.spec for b in stage.inputs), stage.spec) for step in (*spec.prefix, *spec.after, *own)]
        for step in steps:
            looks = step.function if isinstance(step, MapBatches) else None
            table = getattr(looks.current, "__self__", None) if isinstance(looks, Lookup) else None
            if isinstance(table, LookupTable) and table.load is not None:
                found.setdefault(table.token, table)
    return tuple(found.values())


def table_names(tables: tuple[LookupTable, ...]) -> list[str]:
    """Return what tables are called in progress: as the functions that load them, numbered where that is not enough."""
    names: list[str] = []
    for table in tables:
        name, n = table.name, 2
        while name in names:
            name, n = f"{table.name} {n}", n + 1
        names.append(name)
    return names


def tables_seen(plan: PhysicalPlan, clock: object) -> dict[str, TableVersion]:
    """The version of each table in which rows are looked up where tables age by a clock, by the name of the table."""
    tables = lookup_tables(plan)
    seen = [table.seen(clock) for table in tables]
    return {name: one for name, one in zip(table_names(tables), seen, strict=True) if one is not None}
