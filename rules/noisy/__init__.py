"""Rules: noisy."""
