"""Rules: mask."""
