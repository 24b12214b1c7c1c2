"""Rules: lifecycle."""
