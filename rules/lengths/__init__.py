"""Rules: lengths."""
