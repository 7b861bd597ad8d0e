"""Define what an operator keeps between micro-batches: sections, chunk logs by name, key or time, and queues of what is due.

Imports ``arrays``, ``aggregates`` and ``columns``."""
