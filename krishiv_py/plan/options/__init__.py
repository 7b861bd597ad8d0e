"""Define what a query may be told beside its windows: watermark, lateness, late handler, triggers, TTL, presets."""
