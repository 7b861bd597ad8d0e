"""Programs that run as they are; tests run each of them."""
