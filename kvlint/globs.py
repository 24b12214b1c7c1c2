"""Patterns as .gitignore has them, also used for ``exclude`` and ``per-file-ignores``.

Written out here because importing a library for it costs more than the whole check of a tree without
operator calls. Plain names, anchored paths, ``*.suffix`` and ``prefix*`` are matched without ``re``.
"""

from __future__ import annotations

import os

TYPE_CHECKING = False
if TYPE_CHECKING:
    import re
    from collections.abc import Iterable

_SPECIAL = frozenset("*?[\\")
_CLASSES = {
    "alnum": "a-zA-Z0-9",
    "alpha": "a-zA-Z",
    "blank": " \\t",
    "cntrl": "\\x00-\\x1f\\x7f",
    "digit": "0-9",
    "graph": "\\x21-\\x7e",
    "lower": "a-z",
    "print": "\\x20-\\x7e",
    "punct": "!-/:-@\\[-`{-~",
    "space": "\\s",
    "upper": "A-Z",
    "xdigit": "0-9A-Fa-f",
}


class Globs:
    """An ordered list of patterns that belong to a folder. The last one that matches decides."""

    __slots__ = (
        "_heads",
        "_names",
        "_paths",
        "_prefixes",
        "_regexes",
        "_suffixes",
        "_tails",
        "_verdicts",
        "base",
    )

    def __init__(self, base: str, lines: Iterable[str]) -> None:
        self.base = base
        # Per pattern: (what a match means, whether it only matches folders).
        self._verdicts: list[tuple[bool, bool]] = []
        self._names: dict[str, list[int]] = {}
        self._paths: dict[str, list[int]] = {}
        self._suffixes: list[tuple[str, int]] = []
        self._prefixes: list[tuple[str, int]] = []
        self._regexes: list[tuple[re.Pattern[str], bool, int]] = []
        for line in lines:
            self._add(line)
        self._tails = tuple(suffix for suffix, _ in self._suffixes)
        self._heads = tuple(prefix for prefix, _ in self._prefixes)

    def __bool__(self) -> bool:
        return bool(self._verdicts)

    def _add(self, line: str) -> None:
        pattern = line.rstrip("\r\n")
        while pattern.endswith(" ") and not pattern.endswith("\\ "):
            pattern = pattern[:-1]
        if not pattern or pattern.startswith("#"):
            return
        means = True
        if pattern.startswith("!"):
            means, pattern = False, pattern[1:]
        elif pattern.startswith(("\\#", "\\!")):
            pattern = pattern[1:]
        folder = pattern.endswith("/")
        if folder:
            pattern = pattern[:-1]
        anchored = "/" in pattern
        if pattern.startswith("/"):
            pattern = pattern[1:]
        if pattern.startswith("**/") and "/" not in pattern[3:] and pattern[3:] != "**":
            anchored, pattern = False, pattern[3:]
        if not pattern:
            return
        index = len(self._verdicts)
        self._verdicts.append((means, folder))
        if _SPECIAL.isdisjoint(pattern):
            (self._paths if anchored else self._names).setdefault(pattern, []).append(index)
        elif not anchored and pattern[0] == "*" and pattern[1:] and _SPECIAL.isdisjoint(pattern[1:]):
            self._suffixes.append((pattern[1:], index))
        elif not anchored and pattern[-1] == "*" and pattern[:-1] and _SPECIAL.isdisjoint(pattern[:-1]):
            self._prefixes.append((pattern[:-1], index))
        else:
            compiled = _compile(pattern)
            if compiled is not None:  # an unclosed bracket matches nothing, as in git
                self._regexes.append((compiled, anchored, index))

    def match(self, path: str, is_dir: bool) -> bool | None:
        """What the last matching pattern says about ``path`` (relative to the base, with ``/``).

        None when no pattern matches. Folders above ``path`` are not looked at.
        """
        name = path.rpartition("/")[2]
        best = -1
        for found in (self._names.get(name), self._paths.get(path)):
            if found:
                for index in found:
                    if index > best and (is_dir or not self._verdicts[index][1]):
                        best = index
        if self._tails and name.endswith(self._tails):
            for suffix, index in self._suffixes:
                if index > best and name.endswith(suffix) and (is_dir or not self._verdicts[index][1]):
                    best = index
        if self._heads and name.startswith(self._heads):
            for prefix, index in self._prefixes:
                if index > best and name.startswith(prefix) and (is_dir or not self._verdicts[index][1]):
                    best = index
        for pattern, anchored, index in self._regexes:
            if (
                index > best
                and (is_dir or not self._verdicts[index][1])
                and pattern.match(path if anchored else name)
            ):
                best = index
        return self._verdicts[best][0] if best >= 0 else None

    def covers(self, path: str, is_dir: bool = False) -> bool:
        """Whether ``path`` or a folder above it (below the base) is matched."""
        position = path.find("/")
        while position >= 0:
            if self.match(path[:position], True):
                return True
            position = path.find("/", position + 1)
        return bool(self.match(path, is_dir))


def relative(path: str, base: str) -> str | None:
    """``path`` below ``base`` with ``/`` as separator, or None when it is not below."""
    prefix = base if base.endswith(os.sep) else base + os.sep
    if not path.startswith(prefix):
        return None
    found = path[len(prefix) :]
    return found if os.sep == "/" else found.replace(os.sep, "/")


def _compile(pattern: str) -> re.Pattern[str] | None:
    import re

    text = _translate(pattern)
    if text is None:
        return None
    try:
        return re.compile(text, re.DOTALL)
    except re.error:
        return None


def _translate(pattern: str) -> str | None:
    """The regular expression of a wildmatch pattern; None when a bracket is not closed."""
    parts: list[str] = []
    position, size = 0, len(pattern)
    while position < size:
        char = pattern[position]
        if char == "*":
            end = position
            while end < size and pattern[end] == "*":
                end += 1
            opens = position == 0 or pattern[position - 1] == "/"
            if end - position == 2 and opens and end == size:
                parts.append(".+")
                position = end
            elif end - position == 2 and opens and pattern[end] == "/":
                parts.append("(?:.+/)?")
                position = end + 1
            else:
                parts.append("[^/]*")
                position = end
        elif char == "?":
            parts.append("[^/]")
            position += 1
        elif char == "[":
            found = _bracket(pattern, position)
            if found is None:
                return None
            text, position = found
            parts.append(text)
        else:
            if char == "\\":
                position += 1
                if position == size:
                    return None
                char = pattern[position]
            parts.append("\\" + char if not char.isalnum() and char != "_" else char)
            position += 1
    return "".join(parts) + r"\Z"


def _bracket(pattern: str, start: int) -> tuple[str, int] | None:
    position, size = start + 1, len(pattern)
    negated = position < size and pattern[position] in "!^"
    if negated:
        position += 1
    parts: list[str] = []
    first = True
    while position < size:
        char = pattern[position]
        if char == "]" and not first:
            inside = "".join(parts)
            # A bracket never matches the separator.
            return (f"[^/{inside}]" if negated else f"(?!/)[{inside}]"), position + 1
        first = False
        if char == "[" and pattern.startswith("[:", position):
            end = pattern.find(":]", position)
            name = pattern[position + 2 : end] if end >= 0 else ""
            if name not in _CLASSES:
                return None
            parts.append(_CLASSES[name])
            position = end + 2
            continue
        if char == "\\":
            position += 1
            if position == size:
                return None
            char = pattern[position]
        if char == "-" and parts and position + 1 < size and pattern[position + 1] != "]":
            parts.append("-")
        else:
            parts.append(char if char.isalnum() else "\\" + char)
        position += 1
    return None
