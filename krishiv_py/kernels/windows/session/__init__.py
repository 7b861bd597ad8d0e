"""Session windows (SEMANTICS §3.3): here those that fire once, and what all kinds share.

``growing`` has those with triggers, ``capped`` those with a longest duration."""

from krishiv_py.lazy import load_modules_late

load_modules_late(__name__)
