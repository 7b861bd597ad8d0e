"""What of a plan its state depends on (SEMANTICS §6.4)."""

from __future__ import annotations

from typing import Any

import attrs

from krishiv_py.kernels.layout import Layout
from krishiv_py.kernels.spec import OperatorSpec


def fingerprint(spec: OperatorSpec) -> dict[str, str]:
    """The parts of a plan that its state cannot follow when they change.

    Stateless steps, names of outputs, the watermark's lag, sinks and late handlers may change between runs.
    """
    layout = Layout(spec)
    window: Any = spec.window
    parts = {"window kind": window.kind, "time column type": spec.time_kind}
    parts |= {f"window {f.name}": repr(getattr(window, f.name)) for f in attrs.fields(type(window))}
    parts |= {f"key {i + 1}": f"{k} {t}" for i, (k, t) in enumerate(zip(spec.keys, layout.key_types, strict=True))}
    parts |= {
        f"aggregate {i + 1}": f"{c.func}({c.arg!r}) where {c.where!r} -> {', '.join(map(str, k.partial_types))}"
        for i, (c, k) in enumerate(zip(spec.aggs, layout.kernels, strict=True))
    }
    parts["emit"] = spec.options.emit_mode
    if not spec.options.fires_once:  # windows that fire often keep a log of firings instead of plain slices
        parts["firings"] = f"logged, {spec.options.accumulation}"
    return parts


def differences(stored: dict[str, str], mine: dict[str, str]) -> list[str]:
    """What changed, in words."""
    changed = []
    for part in sorted(stored.keys() | mine.keys()):
        was, now = stored.get(part, "(none)"), mine.get(part, "(none)")
        if was != now:
            changed.append(f"{part} was {was} and is {now}")
    return changed
