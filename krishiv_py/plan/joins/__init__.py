"""The joins of SEMANTICS §9, as frozen values: two streams as one, and how their rows meet."""
