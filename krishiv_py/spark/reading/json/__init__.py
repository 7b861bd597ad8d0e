"""JSON files. Imports the rest of the reading room."""
