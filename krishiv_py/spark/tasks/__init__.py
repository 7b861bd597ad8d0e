"""Define what runs in the tasks of a micro-batch, and what they hand to the driver: pack, step, outputs, errors."""
