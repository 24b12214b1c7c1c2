"""Errors whose text is one line and is meant for the user."""

from __future__ import annotations


class OracleError(Exception):
    """The oracle cannot do what was asked: the message says which argument is wrong and why."""


class CaseSelectionError(OracleError):
    """A selection of cases, modes or backends names something that does not exist."""


class ReportError(OracleError):
    """A report file is missing, unreadable or of another schema version."""
