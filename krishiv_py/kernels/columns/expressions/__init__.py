"""What expressions compute, by family of operations (docs/expressions.md); ``kernels/columns/evaluate.py`` walks the tree."""
