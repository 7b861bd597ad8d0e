"""What is written when, whatever the kind of window."""
