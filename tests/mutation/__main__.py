"""``python -m tests.mutation``: the table of kinds, mutants and detections."""

from .report import main

raise SystemExit(main())
