"""``python -m benchmarks data|envs|run|check|measure|levers|summarise|report|nexmark|kafka|in_process|soak``, or all."""

from __future__ import annotations

import importlib
import os
import sys

MODULES = {"summarise": "record", "nexmark": "nexmark.run", "kafka": "kafka.run"}
"""Parts whose module has another name."""
PARTS = ("data", "envs", "run", "check", "measure", "levers", "summarise", "report", "nexmark", "kafka", "in_process", "soak")


def main() -> int:
    """Hand on to the named part, or to the suite."""
    os.environ.setdefault("KRISHIV_CLASS_ARCHIVE", "off")  # all rounds start alike
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # as installed: compiled once, not in every process
    name, rest = (sys.argv[1], sys.argv[2:]) if sys.argv[1:2] and sys.argv[1] in PARTS else ("suite", sys.argv[1:])
    return int(importlib.import_module(f"benchmarks.{MODULES.get(name, name)}").main(rest))


if __name__ == "__main__":
    sys.exit(main())
