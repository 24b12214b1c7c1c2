"""Fixtures of the command line's tests."""

from support.cli import kvlint, tree

__all__ = ["kvlint", "tree"]
