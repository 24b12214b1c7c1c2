"""Reports of a run: JSON for machines, Markdown to paste, HTML to look at."""

from __future__ import annotations

from .data import SCHEMA_VERSION, load, replay_data, report_data
from .html import render_html
from .markdown import render_markdown

__all__ = ["SCHEMA_VERSION", "load", "render_html", "render_markdown", "replay_data", "report_data"]
