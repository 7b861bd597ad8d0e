"""From a batch of a source to judged working rows: stateless steps, watermark, lateness.

Imports ``arrays``, ``aggregates`` and ``columns``."""
