"""Reference attention, cache modes, comparison and attribution."""
