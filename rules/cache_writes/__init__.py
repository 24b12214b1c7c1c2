"""Rules: cache writes."""
