"""How many examples of a property are tried where one costs more, or less, than others."""

from __future__ import annotations

from hypothesis import settings

USUAL = 30
"""What a developer's run of all tests draws of a property (``tests/conftest.py``)."""


def scaled(usual: int) -> int:
    """Return how many examples are drawn where a developer's run draws `usual`: CI draws fewer, `nox -s properties` more."""
    return max(1, usual * settings().max_examples // USUAL)
