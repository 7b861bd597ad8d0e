"""What the site of the docs needs next to its pages."""
