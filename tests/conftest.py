"""Puts this folder on the import path, so that every test can use ``support``."""

import os

# What one run of the tests finds must not depend on an earlier one.
os.environ["KVLINT_NO_CACHE"] = "1"
