"""Files of Azure, on a server of the tests' own, or on Azurite."""
