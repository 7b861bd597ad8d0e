"""Define what a query may be told next to its windows: watermark, lateness, late handler, triggers, TTL, presets."""
