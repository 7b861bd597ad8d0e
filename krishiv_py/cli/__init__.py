"""The command ``krishiv``, also ``python -m krishiv_py``."""
