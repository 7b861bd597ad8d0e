"""Define what leaves an operator: its contract, result rows and their change log, late rows, and state as a table.

Imports ``arrays``, ``columns`` and ``state``."""
