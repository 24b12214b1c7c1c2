"""The HTML report in a real browser: scripts run, heat maps are drawn, filters count."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
from kvlint.oracle.backends import backend
from kvlint.oracle.cases import select
from kvlint.oracle.report import render_html, report_data
from kvlint.oracle.runner import run

BROWSER = next((b for b in ("chromium", "chromium-browser", "google-chrome") if shutil.which(b)), "")


@pytest.mark.skipif(not BROWSER, reason="no Chromium")
def test_page_in_a_browser(tmp_path: Path) -> None:
    results = run(select(names=["tnd-paged-block-16", "dit-full-bnsd"]), backend("sim:block-size-16"))
    page = tmp_path / "report.html"
    page.write_text(
        render_html(report_data(results, backend="sim:block-size-16", selection="2 cases", seconds=1.0))
    )
    done = subprocess.run(
        [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path / 'profile'}",
         "--enable-logging=stderr", "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-500:]
    assert not re.search(r"Uncaught|SyntaxError|TypeError|ReferenceError", done.stderr)
    assert "2 of 2 cases" in done.stdout
    assert done.stdout.count('data-drawn="1"') == 2
