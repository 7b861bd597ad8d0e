"""Values of records as columns, one file a format. Imports the settings and the client next to it."""
