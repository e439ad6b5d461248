"""A file of TLS that is not there is a setting to mend, not a server that is away."""

from __future__ import annotations

from pathlib import Path

import pytest

from pumphouse.errors import ConfigError
from pumphouse.loader.target import TargetConnection
from pumphouse.settings import TargetSettings


def test_a_missing_ca_of_the_target_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*nope\.pem"):
        TargetConnection.open(TargetSettings(tls_ca=tmp_path / "nope.pem"))
