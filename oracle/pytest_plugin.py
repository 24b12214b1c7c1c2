"""pytest plugin: the oracle inside an operator repository's own tests.

Fixtures: ``assert_matches_reference`` (see :func:`kvlint.oracle.assertions.assert_matches_reference`) and
``oracle_backend``, the backend chosen with ``--oracle-backend``, and ``run_oracle_case``. Marker:
``@pytest.mark.oracle_cases(keyword=..., modes=..., full=...)`` parametrises the argument ``oracle_case``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kvlint oracle")
    group.addoption(
        "--oracle-backend",
        default="sim",
        metavar="NAME",
        help="backend of kvlint oracle cases: sim, sdpa or npu",
    )
    group.addoption("--oracle-full", action="store_true", help="take the full case matrix of kvlint oracle")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers",
        "oracle_cases(keyword='', modes=(), names=(), full=None): parametrise 'oracle_case' from the matrix",
    )


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "oracle_case" not in metafunc.fixturenames:
        return
    from .cases import select
    from .errors import OracleError

    marker = metafunc.definition.get_closest_marker("oracle_cases")
    options: dict[str, Any] = dict(marker.kwargs) if marker is not None else {}
    if options.get("full") is None:
        options["full"] = bool(metafunc.config.getoption("--oracle-full"))
    try:
        chosen = select(**options)
    except (OracleError, TypeError) as error:
        raise pytest.UsageError(f"oracle_cases on {metafunc.definition.nodeid}: {error}") from None
    metafunc.parametrize("oracle_case", chosen, ids=[c.name for c in chosen])


@pytest.fixture(scope="session")
def oracle_backend(pytestconfig: pytest.Config) -> Any:
    """The backend named by ``--oracle-backend``; the test is skipped where it cannot run."""
    from .backends import backend
    from .errors import CaseSelectionError, OracleError

    try:
        return backend(str(pytestconfig.getoption("--oracle-backend")))
    except CaseSelectionError as error:
        raise pytest.UsageError(str(error)) from None
    except OracleError as error:
        pytest.skip(str(error))


@pytest.fixture
def run_oracle_case(oracle_backend: Any) -> Callable[[Any], Any]:
    """Run a case on the chosen backend and fail the test, with where and why, if it does not pass."""
    from .runner import run_case

    def run(case: Any) -> Any:
        result = run_case(case, oracle_backend)
        if result.outcome == "skip":
            pytest.skip(result.reasons[0])
        if result.failed:
            lines = [f"{case.name}: {result.outcome}", *result.reasons[:5]]
            if result.location is not None:
                lines.append(f"where: {result.location.pattern}")
            if result.attribution is not None:
                lines.append(f"why: {result.attribution.sentence()}")
            pytest.fail("\n".join(lines), pytrace=False)
        return result

    return run


@pytest.fixture
def assert_matches_reference() -> Callable[..., Any]:
    """See :func:`kvlint.oracle.assertions.assert_matches_reference`."""
    from .assertions import assert_matches_reference as check

    return check
