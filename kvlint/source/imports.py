"""The files of a project, by import name. A file is read when a question needs it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .corpus import Corpora, Corpus
from .disk import MAX_BYTES
from .locate import EXTERNAL, Locator
from .module import BadSource, ModuleIndex, decode


class Imports:
    """Resolves imports to indexed modules.

    Args:
        roots: folders that absolute imports are looked up in, besides those above the importing file.
        corpora: the trees of files to search, shared between projects; without them none is.
    """

    def __init__(self, roots: Iterable[str], corpora: Corpora | None = None) -> None:
        self._searched = corpora is not None
        self._corpora = corpora if corpora is not None else Corpora()
        self._modules = self._corpora.modules
        self._locator = Locator(roots, self._corpora.disk)

    def add(self, path: str, source: bytes) -> ModuleIndex:
        """Indexes a file whose text is at hand. Raises ``BadSource``."""
        full = os.path.abspath(path)
        text = decode(source)
        module = self._modules.get(full)
        if module is None or module.text != text or module.path != path:
            module = ModuleIndex(path, text)
            if len(source) <= MAX_BYTES:
                self._modules[full] = module
        return module

    def corpus(self, path: str) -> Corpus | None:
        """All files of the project that a file belongs to; None for a file by itself."""
        return self._corpora.of(path) if self._searched else None

    def find(self, origin: ModuleIndex, dotted: str, level: int) -> ModuleIndex | None:
        """The module that ``origin`` means by ``dotted`` with ``level`` leading dots.

        Level -1 takes ``dotted`` as ``project:<path>``.
        """
        if level < 0:
            return self.load(dotted.removeprefix("project:"))
        if not level and dotted.partition(".")[0] in EXTERNAL:
            return None
        folder = os.path.dirname(os.path.abspath(origin.path))
        found = self._locator.locate(folder, dotted, level)
        if self._corpora.trace is not None:
            self._corpora.trace.imports[folder, dotted, level] = found
        return self.load(found) if found is not None else None

    def load(self, path: str) -> ModuleIndex | None:
        """The module in a file; None when it cannot be read or parsed."""
        full = os.path.abspath(path)
        if self._corpora.trace is not None:
            self._corpora.trace.files.add(full)
        if full not in self._modules:
            module: ModuleIndex | None = None
            try:
                if os.path.getsize(full) <= MAX_BYTES:
                    module = ModuleIndex(full, decode(self._corpora.disk.read(full)))
            except (OSError, ValueError, BadSource):
                module = None
            self._modules[full] = module
        return self._modules[full]
