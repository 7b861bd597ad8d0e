"""The options of a query next to its windows: watermark, lateness, late handler, triggers, TTL, presets."""
