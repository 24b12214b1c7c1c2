"""Correctness linter and numeric oracle for FlashAttention and KV-cache call sites on Ascend NPUs."""

__version__ = "0.1.0"
