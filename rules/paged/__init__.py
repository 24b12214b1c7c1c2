"""Rules: paged."""
