"""Windows around rows: look-back and distinct-set sliding windows (SEMANTICS §3.4, §3.5)."""
