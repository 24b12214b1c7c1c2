"""Which file an import means, by its name alone. Imports nothing heavy."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from .disk import Disk

# Packages that are never part of the project; looking for their files would only cost time.
EXTERNAL = frozenset(
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


class Locator:
    """Finds the files of imports.

    Args:
        roots: folders that absolute imports are looked up in, besides those above the importing file.
        disk: the run's view of the file system.
    """

    def __init__(self, roots: Iterable[str], disk: Disk) -> None:
        self._roots = tuple(os.path.abspath(root) for root in roots)
        self._disk = disk
        self._found: dict[tuple[str, str, int], str | None] = {}
        self._above: dict[str, Sequence[str]] = {}

    def locate(self, folder: str, dotted: str, level: int) -> str | None:
        """The file that ``dotted`` with ``level`` leading dots means in the files of a folder."""
        key = (folder, dotted, level)
        if key not in self._found:
            self._found[key] = self._search(folder, dotted, level)
        return self._found[key]

    def _search(self, folder: str, dotted: str, level: int) -> str | None:
        sep = os.sep
        tail = dotted.replace(".", sep)
        if level:
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._module_file(os.path.join(folder, tail) if tail else folder)
        if not tail:
            return None
        package, inside, _ = tail.partition(sep)
        for base in (*self._folders_above(folder), *self._roots):
            start = base if base.endswith(sep) else base + sep
            # Most bases do not even have the package.
            if inside and not self._disk.is_folder(start + package):
                continue
            found = self._module_file(start + tail)
            if found is not None:
                return found
        return None

    def _folders_above(self, folder: str) -> Sequence[str]:
        """Folders an absolute import may start from: those above the file up to the project's top."""
        if folder not in self._above:
            found = [folder]
            current = folder
            for _ in range(12):
                parent = os.path.dirname(current)
                if parent == current or self._disk.is_top(current):
                    break
                current = parent
                found.append(current)
            self._above[folder] = found
        return self._above[folder]

    def _module_file(self, base: str) -> str | None:
        for candidate in (f"{base}.py", f"{base}{os.sep}__init__.py"):
            if self._disk.is_file(candidate):
                return candidate
        return None
