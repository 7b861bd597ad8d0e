"""``python -m benchmarks data|envs|run|check|measure|report ...``: the parts of the suite under one roof."""

from __future__ import annotations

import importlib
import sys

PARTS = ("data", "envs", "run", "check", "measure", "report")


def main() -> int:
    """Hand on to the named part."""
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        print(f"usage: python -m benchmarks {{{','.join(PARTS)}}} ...", file=sys.stderr)
        return 2
    part = importlib.import_module(f"benchmarks.{sys.argv[1]}")
    return int(part.main(sys.argv[2:]))


if __name__ == "__main__":
    sys.exit(main())
