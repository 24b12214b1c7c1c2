"""Finding the files of a project by import name. A file is read when a question needs it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from .corpus import Corpora, Corpus
from .module import BadSource, ModuleIndex, decode

# Packages that are never part of the project; looking for their files would only cost time.
_EXTERNAL = frozenset(
    [
        "torch",
        "torch_npu",
        "torchair",
        "numpy",
        "math",
        "typing",
        "os",
        "sys",
        "functools",
        "itertools",
        "dataclasses",
        "enum",
        "abc",
        "collections",
        "logging",
        "transformers",
        "triton",
        "time",
        "json",
        "re",
        "copy",
        "contextlib",
        "einops",
        "random",
        "warnings",
        "pathlib",
    ]
)
MAX_FILE_BYTES = 4_000_000


class Imports:
    """Resolves imports to indexed modules.

    Args:
        roots: folders that absolute imports are looked up in, besides those above the importing file.
        corpora: the trees of files to search, shared between projects; without them none is.
    """

    def __init__(self, roots: Iterable[str], corpora: Corpora | None = None) -> None:
        self._roots = tuple(os.path.abspath(root) for root in roots)
        self._corpora = corpora
        self._modules: dict[str, ModuleIndex | None] = corpora.modules if corpora is not None else {}
        self._found: dict[tuple[str, str, int], str | None] = {}

    def add(self, path: str, source: bytes) -> ModuleIndex:
        """Indexes a file whose text is at hand. Raises ``BadSource``."""
        full = os.path.abspath(path)
        text = decode(source)
        module = self._modules.get(full)
        if module is None or module.text != text or module.path != path:
            module = self._modules[full] = ModuleIndex(path, text)
        return module

    def corpus(self, path: str) -> Corpus | None:
        """All files of the project that a file belongs to; None for a file by itself."""
        return self._corpora.of(path) if self._corpora is not None else None

    def find(self, origin: ModuleIndex, dotted: str, level: int) -> ModuleIndex | None:
        """The module that ``origin`` means by ``dotted`` with ``level`` leading dots.

        Level -1 takes ``dotted`` as ``project:<path>``.
        """
        if level < 0:
            return self.load(dotted.removeprefix("project:"))
        if not level and dotted.partition(".")[0] in _EXTERNAL:
            return None
        folder = os.path.dirname(os.path.abspath(origin.path))
        key = (folder, dotted, level)
        if key not in self._found:
            self._found[key] = self._locate(folder, dotted, level)
        found = self._found[key]
        return self.load(found) if found is not None else None

    def _locate(self, folder: str, dotted: str, level: int) -> str | None:
        tail = dotted.replace(".", os.sep)
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return _module_file(os.path.join(folder, tail) if tail else folder)
        if not tail:
            return None
        for base in self._bases(folder):
            found = _module_file(os.path.join(base, tail))
            if found is not None:
                return found
        return None

    def _bases(self, folder: str) -> Iterable[str]:
        """Folders an absolute import may start from: those above the file up to the project's top."""
        yield folder
        current = folder
        for _ in range(12):
            parent = os.path.dirname(current)
            if parent == current or any(
                os.path.exists(os.path.join(current, m)) for m in (".git", "pyproject.toml", "setup.py")
            ):
                break
            current = parent
            yield current
        yield from self._roots

    def load(self, path: str) -> ModuleIndex | None:
        """The module in a file; None when it cannot be read or parsed."""
        full = os.path.abspath(path)
        if full not in self._modules:
            module: ModuleIndex | None = None
            try:
                if os.path.getsize(full) <= MAX_FILE_BYTES:
                    with open(full, "rb") as stream:
                        module = ModuleIndex(full, decode(stream.read()))
            except (OSError, ValueError, BadSource):
                module = None
            self._modules[full] = module
        return self._modules[full]


def _module_file(base: str) -> str | None:
    for candidate in (f"{base}.py", os.path.join(base, "__init__.py")):
        if os.path.isfile(candidate):
            return candidate
    return None
