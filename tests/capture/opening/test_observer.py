"""An observer of calls: what it is told, and what the training gets from it."""

import numpy as np
import pytest
from helpers.small_networks import Assembled
from mindspore import Tensor, nn, ops

from mindrlhf_msprobe.capture.opening.observer import CallObserver, ObservedCall


class Inner(nn.Cell):
    def construct(self, x):
        if x.shape[0] == 1:
            raise ValueError("a batch of one")
        return ops.tanh(x)


class Outer(Assembled, inner=Inner):
    def construct(self, x):
        return self.inner(x) * 2


class Noting(CallObserver):
    """Notes what it is told, and answers for what it is made with."""

    lost = "lost.second_run"

    def __init__(self, instead=None, fails=False):
        self.told, self.instead, self.fails = [], instead or {}, fails

    def cell_begins(self, call):
        return self._begins(call.name, call.entry)

    def operator_begins(self, call):
        return self._begins(call.operator.name, call.entry)

    def _begins(self, name, entry):
        self.told.append(("begins", name, entry))
        if self.fails:
            raise RuntimeError("a fault of the observer")
        return _Noted(self, name)


class _Noted(ObservedCall):
    def __init__(self, observer, name):
        self.observer, self.name = observer, name

    def ended(self, output):
        self.observer.told.append(("ended", self.name))
        return self.observer.instead.get(self.name)

    def raised(self):
        self.observer.told.append(("raised", self.name))


@pytest.fixture
def observed(layer_probe):
    """Return what runs a function of a network in a phase, and its observer's notes."""

    def run(observer, function, **settings):
        probe = layer_probe(**settings)
        probe._recorder.phases.observer_of = lambda phase, opening: observer
        network = Outer()
        probe.watch(actor=network)
        with probe.phase("actor_update"):
            output = function(network)
        probe.step()
        return output, observer.told

    return run


def numbers(rows=2):
    return Tensor(np.ones((rows, 3), np.float32))


def test_the_training_goes_on_with_what_it_hands_on(observed):
    """Of an operator and of a cell; what is around it gets that."""
    seven = Tensor(np.full((2, 3), 7, np.float32))
    for name in ("tanh", "inner"):
        output, _ = observed(
            Noting({name: seven}), lambda n: n(numbers()), level="mix", existing="overwrite"
        )
        assert (output.asnumpy() == 14).all()


def test_it_is_told_that_a_call_raised(observed):
    """Also where somebody catches that."""

    def caught(network):
        with pytest.raises(ValueError, match="a batch of one"):
            network(numbers(rows=1))
        return network(numbers())

    _, told = observed(Noting(), caught)
    ends = [one for one in told if one[0] in ("ended", "raised") and one[1] in ("inner", "root")]
    assert ends == [("raised", "inner"), ("raised", "root"), ("ended", "inner"), ("ended", "root")]


def test_its_faults_do_not_reach_the_training(observed):
    """Each is counted, as one of the recording is."""
    output, told = observed(Noting(fails=True), lambda n: n(numbers()), strict=False)
    assert np.allclose(output.asnumpy(), 2 * np.tanh(1))
    assert ("begins", "inner", "Cell.inner.Inner.forward.0") in told
