"""What is installed, and what a source distribution carries."""

from __future__ import annotations

import configparser
import shutil
import subprocess
import sys
import tarfile
import zipfile
from email import message_from_string
from pathlib import Path

import pytest

from kvlint import __version__

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
# What a build reads. Copied, so that a build leaves nothing in the working tree.
SOURCES = ("kvlint", "rules", "oracle", "tests", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A wheel and a source distribution, built by the backend with what is installed here."""
    setuptools = pytest.importorskip("setuptools")
    if int(setuptools.__version__.split(".")[0]) < 77:
        pytest.skip("needs setuptools 77")
    folder = tmp_path_factory.mktemp("build")
    source, out = folder / "source", folder / "out"
    source.mkdir()
    out.mkdir()
    unwanted = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, source / name, ignore=unwanted)
        else:
            shutil.copy(ROOT / name, source / name)
    build = (
        f"from setuptools import build_meta as b; b.build_sdist({str(out)!r}); b.build_wheel({str(out)!r})"
    )
    subprocess.run([sys.executable, "-c", build], cwd=source, check=True, capture_output=True)
    (wheel,) = out.glob("*.whl")
    (sdist,) = out.glob("*.tar.gz")
    return wheel, sdist


def modules_in(folder: str) -> set[str]:
    return {
        str(path.relative_to(ROOT / folder))
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    }


class TestWheel:
    def test_only_kvlint_at_the_top(self, built: tuple[Path, Path]) -> None:
        names = zipfile.ZipFile(built[0]).namelist()
        assert {name.split("/")[0] for name in names} == {"kvlint", f"kvlint-{__version__}.dist-info"}

    def test_every_module_is_in_it(self, built: tuple[Path, Path]) -> None:
        names = set(zipfile.ZipFile(built[0]).namelist())
        wanted = {f"kvlint/{name}" for name in modules_in("kvlint")}
        wanted |= {f"kvlint/rules/{name}" for name in modules_in("rules")}
        wanted |= {f"kvlint/oracle/{name}" for name in modules_in("oracle")}
        assert sorted(wanted - names) == []

    def test_data_is_in_it(self, built: tuple[Path, Path]) -> None:
        names = set(zipfile.ZipFile(built[0]).namelist())
        data = {
            f"kvlint/contract/data/{path.name}" for path in (ROOT / "kvlint/contract/data").glob("*.json")
        }
        assert data and data <= names
        assert "kvlint/py.typed" in names

    def test_no_tests_in_it(self, built: tuple[Path, Path]) -> None:
        assert not [name for name in zipfile.ZipFile(built[0]).namelist() if "test" in name.split("/")[:2]]

    def test_console_script(self, built: tuple[Path, Path]) -> None:
        with zipfile.ZipFile(built[0]) as wheel:
            parser = configparser.ConfigParser()
            parser.read_string(wheel.read(f"kvlint-{__version__}.dist-info/entry_points.txt").decode())
        assert parser["console_scripts"]["kvlint"] == "kvlint.__main__:main"

    def test_runs_from_the_wheel(self, built: tuple[Path, Path], tmp_path: Path) -> None:
        with zipfile.ZipFile(built[0]) as wheel:
            wheel.extractall(tmp_path)
        child = subprocess.run(
            [sys.executable, "-m", "kvlint", "check", "kvlint/examples", "--output-format=concise"],
            capture_output=True,
            check=False,
            text=True,
            cwd=tmp_path,
        )
        assert child.returncode == 1 and child.stderr == ""
        assert ": KV101 [silent] " in child.stdout


class TestSource:
    def test_has_what_a_build_and_the_tests_need(self, built: tuple[Path, Path]) -> None:
        with tarfile.open(built[1]) as archive:
            names = {name.partition("/")[2] for name in archive.getnames()}
        wanted = {"pyproject.toml", "README.md", "LICENSE"}
        for folder in ("kvlint", "rules", "oracle", "tests"):
            wanted |= {f"{folder}/{name}" for name in modules_in(folder)}
        wanted |= {str(path.relative_to(ROOT)) for path in (ROOT / "tests/report/golden").iterdir()}
        assert sorted(wanted - names) == []


class TestMetadata:
    def test_versions_agree(self) -> None:
        assert PROJECT["project"]["version"] == __version__

    def test_every_package_is_listed(self) -> None:
        found = {"kvlint"}
        for folder, name in (("kvlint", "kvlint"), ("rules", "kvlint.rules"), ("oracle", "kvlint.oracle")):
            for module in modules_in(folder):
                parents = Path(module).parent.parts
                found.add(".".join((name, *parents)))
        assert sorted(found) == sorted(PROJECT["tool"]["setuptools"]["packages"])

    def test_frameworks_are_optional(self, built: tuple[Path, Path]) -> None:
        with zipfile.ZipFile(built[0]) as wheel:
            metadata = message_from_string(wheel.read(f"kvlint-{__version__}.dist-info/METADATA").decode())
        needed = [item for item in metadata.get_all("Requires-Dist", []) if "extra ==" not in item]
        names = sorted(item.split(";")[0].strip().rstrip("<>=.,0123456789") for item in needed)
        assert names == ["libcst", "tomli", "typer"]


def test_hook_calls_a_command_that_exists() -> None:
    yaml = pytest.importorskip("yaml")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    assert (hook["id"], hook["language"], hook["require_serial"]) == ("kvlint", "python", True)
    words = hook["entry"].split()
    assert words[:2] == ["kvlint", "check"]
    from kvlint.options import parse

    assert parse([*words[2:], "a.py"]) is not None
