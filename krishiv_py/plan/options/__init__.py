"""What a query may be told beside its windows: watermark, lateness, late handler, trigger, TTL, sinks, presets."""
