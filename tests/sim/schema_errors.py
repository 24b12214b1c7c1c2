"""Prints, as JSON, what catalogue operators say to wrong calls: ``python schema_errors.py ROUTE RELEASE``."""

from __future__ import annotations

import json
import sys
from typing import Any

from kvlint.contract import catalogue
from kvlint.sim import simulate


def said(call: Any, *args: Any, **kwargs: Any) -> str:
    """Type and text of the error."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        # Overloads are listed in the order of their registration, which says nothing.
        return f"{type(error).__name__}: " + "\n".join(sorted(str(error).splitlines()))
    return "accepted"


def main(route: str, release: str) -> None:
    errors: dict[str, list[str]] = {}
    with simulate(route, release=release):  # type: ignore[arg-type]
        import torch

        for operator in catalogue.operators(release):
            packet = getattr(getattr(torch.ops, operator.namespace), operator.name)
            overload = getattr(packet, operator.overload or "default")
            many = [torch.zeros(1)] * (len(operator.params) + 1)
            errors[f"{operator.namespace}::{operator.full_name}"] = [
                said(packet),
                said(overload),
                said(overload, *many),
                said(packet, *many),
                said(overload, no_such_argument=1),
                said(packet, 1, no_such_argument=1),
                said(overload, 1.5),
                said(overload, **{operator.params[0].name: "text"}),
                str(overload._schema),
            ]
    json.dump(errors, sys.stdout)


if __name__ == "__main__":
    main(*sys.argv[1:])
