"""JSON files: lines, their values, what is malformed. Imports the rest of the reading room."""
