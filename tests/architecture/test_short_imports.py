"""What an application imports from a package is there, and costs only what it asks for."""

from __future__ import annotations

import ast
import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import pumphouse

_PACKAGES = ("client", "replay")


def _type_checked(package: str) -> set[str]:
    """The names that a type checker sees there."""
    tree = ast.parse((Path(pumphouse.__path__[0]) / package / "__init__.py").read_text())
    (block,) = (each for each in tree.body if isinstance(each, ast.If))
    return {name.name for each in block.body if isinstance(each, ast.ImportFrom) for name in each.names}


@pytest.mark.row("W7", "O3")
@pytest.mark.parametrize("package", _PACKAGES)
def test_every_name_that_a_package_offers_is_there_and_no_other(package: str) -> None:
    module = importlib.import_module(f"pumphouse.{package}")
    assert set(module.__all__) == _type_checked(package)
    for name in module.__all__:
        assert getattr(module, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        module.Nothing  # noqa: B018


@pytest.mark.parametrize("package", _PACKAGES)
def test_a_package_imports_none_of_its_modules_before_a_name_is_asked_for(package: str) -> None:
    script = f"import sys, json, pumphouse.{package}; print(json.dumps([n for n in sys.modules if 'pumphouse' in n]))"
    env = {**os.environ, "PYTHONPATH": str(Path(pumphouse.__path__[0]).parent)}
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=True)
    assert set(json.loads(done.stdout)) == {"pumphouse", f"pumphouse.{package}", "pumphouse.lazy", "pumphouse.extras"}
