"""Contract rules: one file per rule, discovered from this package."""
