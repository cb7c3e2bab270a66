"""Kernels of float64 in another process: what is believed, and what happens where there is none."""

import numpy as np
import pytest

from mindrlhf_msprobe.replay import kernel_process as process
from mindrlhf_msprobe.replay.kernels import KernelCall, KernelProcess, NoAnswerError

X = np.random.default_rng(0).uniform(0.2, 0.8, (3, 4))


@pytest.fixture
def kernels():
    """Return a process of its own."""
    kernels = KernelProcess()
    yield kernels
    kernels.end()


@pytest.mark.parametrize(
    ("function", "believed"),
    [
        (lambda x: np.exp(x), True),
        (lambda x: np.exp(x.astype(np.float32)).astype(np.float64), False),
        (lambda x: np.exp(x).astype(np.float32).astype(np.float64), False),
        (lambda x: x.astype(np.float32).sum(0).astype(np.float64), False),
        (lambda x: np.round(x), True),
        (lambda x: np.sort(x, -1), True),
        (lambda x: x[:, ::-1], True),
        (lambda x: np.argsort(x, -1), True),
    ],
)
def test_what_computes_in_float32_is_not_believed(function, believed):
    """Also where it returns float64."""
    assert process.computes_in_float64(lambda arrays: [function(arrays[0])], [X]) is believed


def test_gradients_that_differences_do_not_confirm_are_not_believed(monkeypatch):
    """Those of the differences are given; at a bend there are none."""

    def squares(arrays):
        return [arrays[0] ** 2]

    arriving = np.ones(X.shape)
    for factor in (2.0, 1.9):
        monkeypatch.setattr(process, "_by_kernel", lambda *_, factor=factor: [factor * X])
        (found,) = process.gradients(squares, [X], arriving, 0)
        assert np.allclose(found, 2 * X, rtol=1e-6)
    monkeypatch.setattr(process, "_by_kernel", lambda *_: [X * 0])
    at_a_bend = np.where(X > 0.5, X, 0)
    with pytest.raises(process.NoAnswerError):
        process.gradients(lambda arrays: [np.abs(arrays[0])], [at_a_bend], arriving, 0)


def test_a_process_that_ended_is_no_fault_of_the_training(kernels):
    """Its operator has no answer any more; the next one has."""
    call = KernelCall("Functional.hypot", (X, X), {}, ((X, X),))
    (result,) = kernels.compute(call).results
    assert np.array_equal(result[0], np.hypot(X, X)) or np.allclose(result[0], np.hypot(X, X))
    kernels._process.kill()
    kernels._process.wait()
    with pytest.raises(NoAnswerError):
        kernels.compute(call)
    with pytest.raises(NoAnswerError):
        kernels.compute(call)
    other = KernelCall("Functional.erfinv", (X,), {}, ((X,),))
    assert kernels.compute(other).results


@pytest.mark.parametrize(
    ("name", "attributes"),
    [("Functional.no_such", {}), ("Functional.print_", {}), ("Primitive.TensorDump", {})],
)
def test_what_does_more_than_compute_is_not_called(name, attributes):
    """Nor what is not in the installed list."""
    with pytest.raises(process.NoAnswerError):
        process.Kernels().answer(KernelCall(name, (X,), {}, ((X,),), attributes))
