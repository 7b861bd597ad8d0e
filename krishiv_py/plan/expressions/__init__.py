"""Expressions as frozen trees, built by ``col`` and ``lit`` or read from text."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
