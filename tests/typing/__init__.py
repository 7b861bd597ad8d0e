"""What the type checker must refuse."""
