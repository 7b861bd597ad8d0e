"""Kill -9 at random moments, restart, and compare with a run that was left alone."""
