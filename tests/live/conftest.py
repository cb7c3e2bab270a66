"""What the tests of watched trainings share."""

from __future__ import annotations

import pytest
from helpers.programs import wait_for

from mindrlhf_msprobe.live.training import Live


@pytest.fixture
def steps_wait(monkeypatch):
    """A step ends when it was looked at: nothing depends on how fast this machine is."""
    tell = Live._announce

    def tell_and_wait(live, process, step):
        tell(live, process, step)
        wait_for(lambda: live.look() or not live._waiting or process.ended)

    monkeypatch.setattr(Live, "_announce", tell_and_wait)
