"""Look-back and distinct-set windows."""
