"""Fixtures of the reports's tests."""

from support.cli import kvlint, tree

__all__ = ["kvlint", "tree"]
