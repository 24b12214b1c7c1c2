"""Where the imports of a file start. Imports nothing heavy."""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .config import Settings


class Roots:
    """The folders that absolute imports are looked up in, for the files of one run."""

    def __init__(self) -> None:
        self._packages: dict[str, str] = {}
        self._homes: dict[str, str] = {}
        self._folders: dict[str, bool] = {}

    def of(self, path: str, settings: Settings) -> tuple[str, ...]:
        """The roots for a file: that of its own package comes first."""
        folder = os.path.dirname(path)
        roots = [self._package(folder)]
        written = settings.src
        home = settings.base if settings.source is not None else self._home(folder)
        for name in (".", "src") if written is None else written:
            root = os.path.normpath(os.path.join(home, name))
            if root not in roots and (written is not None or self._is_folder(root)):
                roots.append(root)
        return tuple(roots)

    def _package(self, folder: str) -> str:
        """The folder that holds the outermost package around a folder."""
        found = self._packages.get(folder)
        if found is None:
            found = self._packages[folder] = above_package(folder)
        return found

    def _home(self, folder: str) -> str:
        """The folder of the project around a folder; itself when there is none."""
        found = self._homes.get(folder)
        if found is None:
            found = project_around(folder) or folder
            self._homes[folder] = found
        return found

    def _is_folder(self, path: str) -> bool:
        found = self._folders.get(path)
        if found is None:
            found = self._folders[path] = os.path.isdir(path)
        return found


def above_package(folder: str) -> str:
    """The folder that holds the outermost package around a folder; itself when there is none."""
    while os.path.isfile(os.path.join(folder, "__init__.py")):
        above = os.path.dirname(folder)
        if above == folder:
            break
        folder = above
    return folder


def project_around(folder: str) -> str | None:
    """The nearest folder, from here upwards, that is marked as a project."""
    while True:
        if any(
            os.path.lexists(os.path.join(folder, name)) for name in ("pyproject.toml", "setup.py", ".git")
        ):
            return folder
        above = os.path.dirname(folder)
        if above == folder:
            return None
        folder = above
