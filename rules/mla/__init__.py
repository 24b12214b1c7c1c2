"""Rules: mla."""
