"""One room for each family of windows. They do not import one another; ``registry.py`` chooses."""
