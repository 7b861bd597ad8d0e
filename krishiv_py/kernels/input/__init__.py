"""From a batch of a source to classified working rows: stateless steps, watermark, lateness.

Imports ``arrays``, ``aggregates`` and ``columns``."""
