"""Rules: call form."""
