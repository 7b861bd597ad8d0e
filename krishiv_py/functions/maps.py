"""Functions of maps, by way of the lists of their keys and values."""

from __future__ import annotations

import numpy as np

from krishiv_py.functions.computing.checks import alike
from krishiv_py.functions.computing.lists import Lists, Maps, codes, has_element, list_of
from krishiv_py.functions.computing.values import FaultError, arrays, is_floating, joined, misfit
from krishiv_py.functions.definition import SqlNode, Value, function


@function(
    "maps", "array", node=SqlNode("MapKeys"), elsewhere={"map.keys": "map_keys()"}, example=("map_keys(map('a', 1))", ["a"])
)
def map_keys(value: Value) -> Value:
    """Return the keys of a map as a list."""
    (column,), single = arrays(value)
    return joined(Maps.of(column).keys.column(), single)


@function("maps", "array", elsewhere={"map.values": "map_values()"}, example=("map_values(map('a', 1))", [1]))
def map_values(value: Value) -> Value:
    """Return the values of a map as a list."""
    (column,), single = arrays(value)
    return joined(Maps.of(column).values.column(), single)


@function(
    "maps",
    "boolean",
    node=SqlNode("MapContainsKey", "this key"),
    elsewhere={"map.contains_key": 'map_contains_key("key")'},
    example=("map_contains_key(map('a', 1), 'b')", False),
)
def map_contains_key(value: Value, key: Value) -> Value:
    """Return whether a map has a `key`."""
    return has_element(map_keys(value), key)


@function("maps", "map", node=SqlNode("Map", "keys values"), example=("map_from_arrays(array('a'), array(1))", [("a", 1)]))
def map_from_arrays(keys: Value, values: Value) -> Value:
    """Return a map of the list, its keys, to the list `values`; keys that are null, or equal to another one, are errors."""
    (one, other), single = arrays(keys, values)
    a, b = Lists.of(one), Lists.of(other)
    missing = a.missing | b.missing
    a, b = a.without(missing), b.without(missing)
    if not np.array_equal(a.counts, b.counts):
        raise FaultError("a map has as many keys as values")
    return joined(_checked(Maps(a, b)).column(), single)


def _checked(maps: Maps) -> Maps:
    items, rows = maps.keys.items, maps.keys.rows
    if is_floating(items.type):  # Spark's answer for -0.0 next to 0.0 depends on how the map was made
        raise misfit(items.type)
    if items.null_count:
        raise FaultError("a map has no key that is null")
    number, most = codes(items)
    if len(np.unique(rows * most + number)) < len(rows):
        raise FaultError("a map has two keys that are equal")
    return maps


@function(
    "maps",
    "map",
    name="map",
    nulls="own",
    method=False,
    most=2_000,
    by_turns="keys and values",
    example=("map('a', 1)", [("a", 1)]),
)
def map_of(key: Value, value: Value, *more: Value) -> Value:
    """Return a map of keys and values by turns; keys that are null, or equal to another one, are errors."""
    keys, items = alike([key, *more[::2]]), alike([value, *more[1::2]])
    columns, single = arrays(*keys, *items)
    lists = [list_of(part) for part in (columns[: len(keys)], columns[len(keys) :])]
    result = map_from_arrays(*lists)
    return result[0] if single else result
