"""A check of a user's plan: streams are drawn, laws are tried on them, the smallest stream that fails is shown."""
