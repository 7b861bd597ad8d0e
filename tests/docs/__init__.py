"""The docs as a site."""
