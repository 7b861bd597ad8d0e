"""Golden cases and a runner that holds engines against them: ``python -m tests.goldens --engine reference``."""
