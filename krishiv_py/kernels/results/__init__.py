"""What leaves an operator: its contract, result rows, late rows, and state as a table.

Imports ``arrays``, ``columns`` and ``state``."""
