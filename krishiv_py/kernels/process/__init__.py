"""Process functions: the operator and its calls of a user's function."""
