"""A plan takes the state of another one: which stages belong together, what is kept, migrated, reset or lost (SEMANTICS §12.2).

Both plans come as the outlines that checkpoints and savepoints note, so nothing runs for it.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias, cast

import attrs

from krishiv_py.kernels.spec import OperatorSpec
from krishiv_py.kernels.watermark import floor_watermark
from krishiv_py.plan.aggregates.selections import COMPLETE, HIDDEN, whole_since
from krishiv_py.plan.durations import END_OF_TIME, UNSET, show_instant, show_us
from krishiv_py.plan.expressions.expr import Col
from krishiv_py.plan.options.query import StartPoint
from krishiv_py.planner.cut import StagePlan
from krishiv_py.planner.explain import COMPARED, noted_call
from krishiv_py.planner.fingerprint import changed_part
from krishiv_py.planner.physical import PhysicalPlan

if TYPE_CHECKING:
    from krishiv_py.plan.windows.window import WindowOperation

Fate: TypeAlias = Literal["kept", "migrated", "rebuilt", "reset", "refused", "added", "dropped", "removed"]
_HIDDEN_BEFORE: Final = "__whole_"  # in checkpoints of 0.1
_LOSES: Final = ("reset", "refused", "dropped")
_FROM_ARCHIVE: Final = "its state is computed from the archive"
_INCOMPLETE: Final = "null in windows with rows from before"
_NOT_COMPLETE: Final = "false in windows with rows from before"


@attrs.frozen
class StageChange:
    """Say what becomes of the state of a stage, or of a source.

    Attributes
    ----------
    name : str
        The stage.
    fate : {"kept", "migrated", "rebuilt", "reset", "refused", "added", "dropped", "removed"}
        What becomes of it: migrated state is rewritten, rebuilt state is computed from archives, reset and dropped state is
        lost, an added stage begins without state, a source that was removed is not read any more.
    how : tuple of str
        What is done, or why it is refused.
    old, new : int or None
        The numbers of the stage in both plans; None where it is not there.
    overruled : bool
        Whether the state of a stage that is rebuilt is lost on request, so that the new one need not agree with it.
    """

    name: str
    fate: Fate
    how: tuple[str, ...] = ()
    old: int | None = None
    new: int | None = None
    overruled: bool = False

    @property
    def loses(self) -> bool:
        """Return whether state is lost."""
        return self.fate in _LOSES

    def __str__(self) -> str:
        return f"{self.name}: {self.fate}" + (f" ({'; '.join(self.how)})" if self.how else "")


def compared(
    old: Mapping[str, Any], new: Mapping[str, Any], begin: StartPoint | None = None, archived: Collection[int] = ()
) -> list[StageChange]:
    """Return what becomes of each stage when a plan takes the state of another one.

    Parameters
    ----------
    old, new : dict
        The outlines of both.
    begin : Begin, optional
        What may be lost.
    archived : collection of int, optional
        The stages of the new plan whose past is in archives: what is new in them is rebuilt.
    """
    wanted = {} if begin is None else begin.on_change
    before, after = (list(outline["stages"]) for outline in (old, new))
    pairs = _pairs(before, after)
    changes = []
    for number, stage in enumerate(after):
        partner, name = pairs.get(number), stage["name"]
        rebuilds = number in archived and stage["state"]
        if partner is None:
            fate: Fate = "rebuilt" if rebuilds else "added"
            changes.append(StageChange(name, fate, (_FROM_ARCHIVE if rebuilds else "it begins without state",), None, number))
            continue
        refused, how = _differences(before[partner], stage)
        word = wanted.get(name)
        if word == "reset":
            changes.append(
                StageChange(
                    name, "rebuilt" if rebuilds else "reset", tuple(refused) or ("as asked",), partner, number, rebuilds
                )
            )
        elif rebuilds and not refused and _adds(before[partner], stage):
            how = [text.replace(_INCOMPLETE, "from the archive").replace(_NOT_COMPLETE, "from the archive") for text in how]
            changes.append(StageChange(name, "rebuilt", tuple(how), partner, number))
        elif refused:
            changes.append(StageChange(name, "refused", tuple(refused), partner, number))
        else:
            changes.append(StageChange(name, "migrated" if how else "kept", tuple(how), partner, number))
    for partner, stage in enumerate(before):
        if partner not in pairs.values():
            fate = "dropped" if wanted.get(stage["name"]) == "drop" or not stage["state"] else "refused"
            changes.append(StageChange(stage["name"], fate, ("the plan has no stage of this name",), partner, None))
    return changes


def _pairs(before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Match stages by name; then, where one is left on each side of a kind without a name, these."""
    numbers = {stage["name"]: number for number, stage in enumerate(before)}
    pairs = {number: numbers[stage["name"]] for number, stage in enumerate(after) if stage["name"] in numbers}
    free = [n for n in range(len(before)) if n not in pairs.values()]
    for number, stage in enumerate(after):
        if number in pairs:
            continue
        alike = [n for n in free if _kind(before[n]) == _kind(stage)]
        same = [n for n, other in enumerate(after) if n not in pairs and _kind(other) == _kind(stage)]
        both_named = bool(alike) and all(s.get("shape", {}).get("named") for s in (before[alike[0]], stage))
        if len(alike) == 1 and len(same) == 1 and not both_named:
            pairs[number] = alike[0]
            free.remove(alike[0])
    return pairs


def _kind(stage: Mapping[str, Any]) -> object:
    fixed = stage.get("shape", {}).get("fixed", {})
    return stage["state"], fixed.get("window kind"), [name for name, _ in keys_of(stage["shape"])] if fixed else []


def _differences(old: Mapping[str, Any], new: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return what the state cannot follow, and what it is migrated for."""
    if "shape" not in old or "shape" not in new:
        return ([] if old["state"] == new["state"] else ["only one of both keeps state"]), []
    was, now = old["shape"], new["shape"]
    refused, how = [], []
    for part in sorted(was["fixed"].keys() | now["fixed"].keys()):
        if part.startswith((*COMPARED, "firings", "trigger")):
            continue
        a, b = was["fixed"].get(part, "(none)"), now["fixed"].get(part, "(none)")
        if _without_columns(a) != _without_columns(b):
            refused.append(changed_part(part, a, b))
    for number, (old_key, new_key) in enumerate(zip_longest(keys_of(was), keys_of(now)), 1):
        a, b = (" ".join(key) if key else "(none)" for key in (old_key, new_key))
        if old_key is None or new_key is None or old_key[0] != new_key[0] or not holds(old_key[1], new_key[1]):
            refused.append(f"key {number} was {a} and is {b}")
        elif a != b:
            how.append(f"key {number} from {a} to {b}")
    narrower, wider = _types(was, now)
    refused += narrower
    how += wider
    how += _aggregates(was["aggregates"], now["aggregates"])
    how += [f"column {name} of rows added: null in rows from before" for name in now["own"] if name not in was["own"]]
    how += [f"column {name} of rows removed" for name in was["own"] if name not in now["own"]]
    how += _lateness(was, now)
    for refusal, done in (_state(was, now), _emission(was, now), _firings(was, now)):
        refused += refusal
        how += done
    if was["ttl"] != now["ttl"]:
        if now["ttl"] is None:
            how.append("time to live removed")
        else:
            before = "no time to live" if was["ttl"] is None else f"time to live by {was['ttl']} time"
            how.append(f"{before} becomes one by {now['ttl']} time, which begins with the next batch")
    return refused, how


def _capped(shape: Mapping[str, Any]) -> bool:
    return bool(shape["fixed"].get("window max_duration_us", "None") != "None")


_JOINS_THAT_WAIT: Final = ("window join", "as-of join", "versioned join", "rules")


def _sums(shape: Mapping[str, Any]) -> bool:
    """Return whether a stage has sessions of which totals are kept, not rows."""
    return shape["fixed"].get("window kind") == "session" and not _capped(shape)


def _lateness(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return how the allowed lateness and the late rule change."""
    changes = list[str]()
    if was["lateness_us"] != now["lateness_us"]:
        changes.append(f"allowed lateness from {show_us(was['lateness_us'])} to {show_us(now['lateness_us'])}")
    if late_rule_of(was) not in (None, late_rule_of(now)) and was["fixed"].get("window kind") in _EMITS:
        changes.append(f"late rule from {late_rule_of(was)} to {late_rule_of(now)}")
    return changes


_EMITS: Final = ("tumbling", "hopping", "assigned", "lookback", "distinct", "session", "count")


def _emission(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return why results cannot be emitted otherwise, and how they are."""
    if was["emit"] == now["emit"]:
        return [], []
    said, kind = f"emit from {was['emit']} to {now['emit']}", was["fixed"].get("window kind")
    if kind not in _EMITS:
        return [f"{said}, and state does not hold which results stand"], []
    early_us = int(was.get("early_us", UNSET))
    if now["emit"] == "retractions" and early_us != UNSET:
        said += f", refused until the watermark has passed {show_instant(early_us)}, for earlier results are not in state"
    elif now["emit"] == "retractions" and "firings" in was["fixed"] and ("firings" not in now["fixed"] or _sums(was)):
        said += ", refused while early results are not in state"
    return [], [said]


_FIXED: Final = ("tumbling", "hopping", "assigned")
_OWN_TRIGGER: Final = "a user's trigger is asked about rows that are not counted now"


def _firings(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return why windows cannot fire otherwise, and how they go on where they can."""
    (a, b), (old, new) = ([shape["fixed"].get(part) for shape in (was, now)] for part in ("firings", "trigger"))
    if (a, old) == (b, new):
        return [], ["rows by window, which fire before their end"] if _parts_slices(was, now) else []
    kind = was["fixed"].get("window kind")
    discarded, discards = (text is not None and text.endswith("discarding") for text in (a, b))
    how = f"accumulation from {_named(discarded)} to {_named(discards)}"
    if a is None:
        how = "firings by a trigger; the rows that a window holds count where count() has counted all, else they are one"
    elif b is None:
        how = "firings without a trigger"
    if shows_otherwise(was, now):
        how += "; aggregates of a window that has been shown are null " + (
            "in its next result" if discards else "until it leaves"
        )
    refused = None
    if discarded and not discards and (was["fixed"].get("firings hold") == "rows by slice" or now["emit"] == "retractions"):
        refused = "accumulation was discarding: what windows have shown is not in state"
    elif kind == "count":
        if a is None or (b is not None and old != new and (a != b or discarded or now["emit"] == "retractions")):
            kept = "what was shown follows from row numbers and the trigger" if a is not None else _KEPT_AS[True]
            refused = f"trigger was {old or 'the default'} and is {new or 'the default'}, and {kept}"
        elif b is None and now["emit"] == "retractions":
            refused = f"trigger was {old}, and what it has shown of windows that are not full would stand"
        elif a == b:
            how = f"trigger from {old} to {new}"
    elif old != new:
        refused = f"trigger was {old or 'none of a user'} and is {new or 'none of a user'}: {_OWN_TRIGGER}"
    elif _capped(was) and (a is None or b is None):
        refused = f"firings were {a or 'plain'} and are {b or 'plain'}, and {_KEPT_AS[a is None]}"
    elif kind in _FIXED and b is None and _overlap(was["fixed"]):
        refused = "the trigger is removed, and rows of windows that overlap are kept by window"
    elif kind not in (*_FIXED, "session"):
        refused = f"firings were {a or 'plain'} and are {b or 'plain'}, and {_KEPT_AS[a is None]}"
    return ([], [how]) if refused is None else ([refused], [])


def _named(discards: bool) -> str:
    return "discarding" if discards else "accumulating"


def shows_otherwise(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether state holds other contents than the new plan shows: those since a firing, or all.

    Of fixed windows both are known where all are wanted until now; a session without a longest duration keeps one of them.
    """
    kind = was["fixed"].get("window kind")
    discarded, discards = (shape["fixed"].get("firings", "").endswith("discarding") for shape in (was, now))
    if kind in _FIXED:
        return bool(discarded and not discards)
    return bool(_sums(was) and discarded != discards)


def _parts_slices(was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
    """Return whether windows that overlap hold their rows by slice until now, and each its own from now on."""
    held = [shape["fixed"].get("firings hold") for shape in (was, now)]
    return held == ["rows by slice", "rows by window"]


_KEPT_AS: Final = {True: "no rows are kept that could be counted", False: "state keeps rows or totals for its trigger"}


def _overlap(fixed: Mapping[str, str]) -> bool:
    return fixed.get("window slide_us", "") != fixed.get("window size_us", "")


def _without_columns(text: str) -> str:
    """Return a part of a plan without the columns of the sides of a join, which are compared one by one."""
    return re.sub(r"\b(left|right)=\([^()]*\)", r"\1", text) if text.startswith("JoinColumns(") else text


def keys_of(shape: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return name and type of each key; earlier versions noted both as one text."""
    if "keys" in shape:
        return [(name, type_) for name, type_ in shape["keys"]]
    texts = (shape["fixed"][f"key {n}"] for n in range(1, sum(p.startswith("key ") for p in shape["fixed"]) + 1))
    return [(name, type_) for name, _, type_ in (_split_key(text) for text in texts)]


def _split_key(text: str) -> tuple[str, str, str]:
    """Split a key from its type, whose text may have spaces within brackets."""
    parts = re.fullmatch(r"(.*?) (\S+(?:\(.*\)|<.*>|\[.*\])?)", text)
    return (text, " ", "") if parts is None else (parts[1], " ", parts[2])


def late_rule_of(shape: Mapping[str, Any]) -> str | None:
    """Return the late rule; None where an earlier version did not note it, as state does not depend on it."""
    parts = shape.get("late rule", shape["fixed"].get("late rule"))
    return None if parts is None else str(parts)


_WHOLE: Final = {"int8": 3, "int16": 5, "int32": 10, "int64": 19}
_FLOATING: Final = {"float": 1, "double": 2}


def holds(narrow: str, wide: str) -> bool:
    """Return whether values of one Arrow type are values of another one, both as text; how many digits fit is seen later.

    Examples
    --------
    >>> holds("int32", "decimal128(20, 2)"), holds("int64", "int32"), holds("float", "double"), holds("string", "int64")
    (True, False, True, False)
    """
    if narrow == wide:
        return True
    for order in (_WHOLE, _FLOATING):
        if narrow in order and wide in order:
            return order[narrow] <= order[wide]
    to = _digits(wide)
    if to is None or narrow in _WHOLE:
        return to is not None
    of = _digits(narrow)
    return of is not None and of[0] <= to[0] and of[1] <= to[1]


def _digits(type_: str) -> tuple[int, int] | None:
    """Return how many digits a decimal has, in all and after the point."""
    parts = re.fullmatch(r"decimal\d*\((\d+), (\d+)\)", type_)
    return None if parts is None else (int(parts[1]), int(parts[2]))


def _types(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return which values of kept rows would not fit, and which get a wider type."""
    narrower, wider = [], []
    for names, types, what in (("inputs", "input types", "values of"), ("own", "own types", "column")):
        if types not in was:
            continue
        before = dict(zip(was[names], was[types], strict=True))
        for name, b in zip(now[names], now[types], strict=True):
            a = before.get(name, b)
            if not holds(a, b) and "<" not in a:
                narrower.append(f"{what} {name} were {a} and are {b}, which does not hold all of them")
            elif a != b:
                wider.append(f"{what} {name} from {a} to {b}")
    return narrower, wider


def former_name(field: str, before: Collection[str], renamed: Mapping[str, str]) -> str:
    """Return the name that a field of state had, of those `before`; its own where it had none."""
    if field in before:
        return field
    return next((old for old, new in renamed.items() if new == field and old in before), field)


def _state(was: Mapping[str, Any], now: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return which fields of a user's state cannot be kept, and how the others change."""
    before, after = (dict(shape.get("state", ())) for shape in (was, now))
    renamed = now.get("state renamed", {})
    former = {name: old for name in after if (old := former_name(name, before, renamed)) != name}
    before = {name: before[former.get(name, name)] for name in after if former.get(name, name) in before} | {
        name: type_ for name, type_ in before.items() if name not in former.values()
    }
    narrower = [
        f"state.{name} was {before[name]} and is {type_}, which does not hold all of its values"
        for name, type_ in after.items()
        if name in before and not holds(before[name], type_)
    ]
    how = [f"state.{name} from {before[name]} to {type_}" for name, type_ in after.items() if before.get(name, type_) != type_]
    how += [f"state.{name} added: its default for keys from before" for name in after if name not in before]
    how += [f"state.{name} removed" for name in before if name not in after]
    how += [f"state.{name} was state.{old}" for name, old in former.items()]
    return narrower, how


def _aggregates(was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> list[str]:
    was = [agg for agg in was if not is_hidden(agg)]
    now = [agg for agg in now if not is_hidden(agg)]
    pairs = paired(was, now)
    how = []
    for number, agg in enumerate(now):
        partner = pairs.get(number)
        if partner is None:
            how.append(f"{agg['name']} added: {_NOT_COMPLETE if marks_whole(agg) else _INCOMPLETE}")
        else:
            if was[partner]["name"] != agg["name"]:
                how.append(f"{was[partner]['name']} is called {agg['name']}")
            if was[partner]["parts"] != agg["parts"]:
                how.append(f"{agg['name']}: {', '.join(was[partner]['parts'])} becomes {', '.join(agg['parts'])}")
            if partner != number and len(was) == len(now) == len(pairs):
                how.append(f"{agg['name']} moved")
    how += [f"{agg['name']} removed" for partner, agg in enumerate(was) if partner not in pairs.values()]
    return how


def _adds(old: Mapping[str, Any], new: Mapping[str, Any]) -> bool:
    """Return whether a stage has an aggregate that it had not before."""
    if "shape" not in old or "shape" not in new:
        return False
    pairs = paired(old["shape"]["aggregates"], new["shape"]["aggregates"])
    return any(n not in pairs and not marks_whole(agg) for n, agg in enumerate(new["shape"]["aggregates"]))


def marks_whole(agg: Mapping[str, Any]) -> bool:
    """Return whether an aggregate says which windows are whole; an aggregate of the user's may have the name of one."""
    name = agg["name"]
    number = name.rpartition("_")[2] if name.startswith((HIDDEN, _HIDDEN_BEFORE)) else "0" if name == COMPLETE else ""
    if not (number.isascii() and number.isdecimal()):
        return False
    mark = whole_since(int(number), name)
    return bool(agg["call"] == noted_call(mark, mark.func))


def is_hidden(agg: Mapping[str, Any]) -> bool:
    """Return whether an aggregate is a mark that results do not show."""
    return agg["name"] != COMPLETE and marks_whole(agg)


def paired(was: Sequence[Mapping[str, Any]], now: Sequence[Mapping[str, Any]]) -> dict[int, int]:
    """Return which aggregates are the same: by call, and of equal calls by name."""
    pairs: dict[int, int] = {}
    for names_too in (True, False):
        for number, agg in enumerate(now):
            if number in pairs:
                continue
            pairing = [
                i
                for i, other in enumerate(was)
                if i not in pairs.values() and other["call"] == agg["call"] and (not names_too or other["name"] == agg["name"])
            ]
            if pairing:
                pairs[number] = pairing[0]
    return pairs


@attrs.frozen
class Frontiers:
    """Up to where a stage has come, by the facts of its last step (SEMANTICS §12.3).

    Attributes
    ----------
    stepped_us : int
        The watermark of the last step.
    left_us : int
        Windows that end up to here have left.
    given_us : int
        Windows that end up to here had their result when the watermark passed their end.
    final : bool
        Whether results were final in the last step.
    """

    stepped_us: int
    left_us: int
    given_us: int
    final: bool

    def fired(self, fired_us: int, now: Mapping[str, Any], *, once: bool) -> int:
        """Return up to which watermark windows have fired, as an operator of a stage of the shape `now` counts it.

        Those that fire `once` do so when they leave.
        """
        if fired_us in (UNSET, END_OF_TIME):
            return fired_us
        return min(self.stepped_us, self.left_us + int(now["lateness_us"])) if once else self.given_us

    def fires_alike(self, was: Mapping[str, Any], now: Mapping[str, Any]) -> bool:
        """Return whether state that says what has fired as a stage of the shape `was` counts it says the same for `now`."""

        def fired(shape: Mapping[str, Any]) -> int:
            waits = shape["emit"] == "final" or shape["fixed"].get("window kind") in _JOINS_THAT_WAIT
            return self.fired(self.stepped_us, shape, once=waits)

        return fired(was) == fired(now)

    def left_beyond_options(self, now: Mapping[str, Any]) -> int:
        """Return what a stage of the shape `now` has to know of windows that have left; ``UNSET`` where its options say it."""
        follows = floor_watermark(self.stepped_us, int(now["lateness_us"]))
        return UNSET if self.left_us == END_OF_TIME or self.left_us <= follows else self.left_us

    def results_beyond_options(self, now: Mapping[str, Any]) -> int:
        """Return what a stage of the shape `now` has to know of results that were given; ``UNSET`` where its options say it."""
        follows = self.left_us if self.final or now["emit"] == "final" else self.stepped_us
        return UNSET if self.given_us == END_OF_TIME or self.given_us <= follows else self.given_us


def rewritten(was: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Return what of the state of a stage has to be written again for a plan whose stage has the shape `now`."""

    def visible(shape: Mapping[str, Any]) -> list[object]:
        return [(agg["call"], agg["parts"]) for agg in shape["aggregates"] if not is_hidden(agg)]

    def kept(shape: Mapping[str, Any], *parts: str) -> list[object]:
        return [shape.get(part) for part in parts]

    parts = []
    if keys_of(was) != keys_of(now):
        parts.append("keys")
    if visible(was) != visible(now) or any(was[p][: len(now[p])] != now[p] for p in ("inputs", "input types") if p in was):
        parts.append("aggregates")
    if "own types" in was and kept(was, "own", "own types", "carried") != kept(now, "own", "own types", "carried"):
        parts.append("columns of rows")
    if was.get("state", []) != now.get("state", []):
        parts.append("fields of state")
    if was["ttl"] != now["ttl"]:
        parts.append("times at which keys were last touched")
    kind, fires = was["fixed"].get("window kind"), was["fixed"].get("firings")
    rule_changes = late_rule_of(was) not in (None, late_rule_of(now))
    if kind == "distinct" and (rule_changes or was["lateness_us"] != now["lateness_us"]):
        parts.append("from when rows count")
    session = kind == "session"
    others = (was["emit"], late_rule_of(was)) != (now["emit"], late_rule_of(now))
    waits = was["lateness_us"] != now["lateness_us"] and (_capped(was) or not now["lateness_us"] or fires is not None)
    shows = fires != now["fixed"].get("firings")
    less = now["lateness_us"] < was["lateness_us"]
    if (
        (less and (now["emit"] == "final" or kind in _JOINS_THAT_WAIT))
        or (was["emit"] == "final" and now["emit"] != "final" and was["lateness_us"] > 0)
        or (session and (others or waits or shows))
        or (fires is None) != ("firings" not in now["fixed"])
        or shows_otherwise(was, now)
        or _parts_slices(was, now)
    ):
        parts.append("which windows have fired")
    return parts


@attrs.frozen
class CarriedState:
    """Hold what a stage carries along because its state came from another plan; part of the note of a checkpoint.

    Attributes
    ----------
    wholes : list of (str, list of str)
        Hidden aggregates, and the aggregates that each speaks for.
    blind_us : int
        Windows that begin before it may lack rows.
    left_us : int
        Windows that end up to there have left.
    early_us : int
        Windows that end up to there may have early results that state does not hold.
    given_us : int
        Windows that end up to there had a result before results became final.
    floor_us : int
        The watermark of the last step before the plan changed, where it would be lower now.
    """

    wholes: list[list[Any]] = attrs.field(factory=list)
    blind_us: int = UNSET
    left_us: int = UNSET
    early_us: int = UNSET
    given_us: int = UNSET
    floor_us: int = UNSET


def carrying(plan: PhysicalPlan, carried: Mapping[str, Mapping[str, Any]], names: Sequence[str]) -> PhysicalPlan:
    """Return a plan whose stages carry along what a checkpoint notes of them, by name."""
    if not carried:
        return plan
    stages = tuple(
        _carrying(stage, CarriedState(**carried[name])) if name in carried else stage
        for stage, name in zip(plan.stages, names, strict=True)
    )
    return attrs.evolve(plan, stages=stages)


def _carrying(stage: StagePlan, carried: CarriedState) -> StagePlan:
    def changed(spec: OperatorSpec) -> OperatorSpec:
        hidden = tuple(whole_since(int(name.rpartition("_")[2]), name) for name, _ in carried.wholes)
        output, operation = spec.output, spec.operation
        if hidden:
            operation = cast("WindowOperation", operation)  # or another one with aggregates
            operation = attrs.evolve(operation, aggs=(*operation.aggs, *hidden))
        if output is None and hidden:
            taken = {"op", "pane_timing", "pane_index"}
            plain = attrs.evolve(spec, after=(), followed=False)
            output = tuple((name, Col(name)) for name in _results(stage, plain) if name not in taken)
        return attrs.evolve(
            spec,
            operation=operation,
            output=output,
            options=attrs.evolve(spec.options, left_us=carried.left_us),
            wholes=tuple((name, tuple(of)) for name, of in carried.wholes),
            blind_us=carried.blind_us,
            early_us=carried.early_us,
            given_us=carried.given_us,
        )

    inputs = tuple(attrs.evolve(b, spec=changed(b.spec)) for b in stage.inputs)
    times = attrs.evolve(stage.times, floor_us=carried.floor_us)
    return attrs.evolve(stage, spec=changed(stage.spec), inputs=inputs, times=times)


def _results(stage: StagePlan, plain: OperatorSpec) -> list[str]:
    names: list[str] = attrs.evolve(stage, spec=plain).layout.result_schema.names
    return names
