"""Local variables of a loss as key data: the last value, once a run, whatever the control flow."""

import functools
import inspect
import traceback

import mindspore as ms
import numpy as np
import pytest
from helpers.small_networks import MODES, in_mode
from mindspore import Tensor, nn

from mindrlhf_msprobe import Probe, ProbeConfig, open_run
from mindrlhf_msprobe.capture.cells import construct_frames
from mindrlhf_msprobe.capture.local_values import SavedLocals, copy_that_saves

SCALE = 2.0


class Loss(nn.Cell):
    def __init__(self, flag=True):
        super().__init__()
        self.dense = nn.Dense(4, 3, weight_init="ones", bias_init="zeros")
        self.flag = flag

    def square(self, a):
        return a * a

    def construct(self, x, power=1):
        y = self.dense(x)  # assigned
        y = y * SCALE  # and again
        kl = self.square(y)
        if self.flag:
            shifted = y + power
            total = shifted.sum()
        else:
            total = y.sum()
        a, b = y - 1, y + 1
        return total + kl.mean() + (a + b).sum()


WANTED = [
    ("missing", "y"),
    ("y", "y"),
    ("square()", "kl"),
    ("shifted", "shifted"),
    ("total", "total"),
    ("b", "b"),
    ("nowhere", "nowhere"),
]


@pytest.fixture(params=MODES.values(), ids=MODES)
def mode(request):
    with in_mode(request.param):
        yield request.param


@pytest.mark.parametrize("flag", [True, False])
def test_the_last_value_is_saved_once_a_run(mode, flag, tmp_path):
    x = Tensor(np.arange(8).reshape(2, 4), ms.float32)
    expected = Loss(flag)(x).asnumpy()
    loss = Loss(flag)
    with Probe(ProbeConfig(msprobe=True, key_data_dump=True, dump_path=str(tmp_path))):
        saved = SavedLocals(loss, "construct", WANTED, compiled=mode == ms.GRAPH_MODE)
        assert saved.keys == {"y", "kl", "shifted", "total", "b"}
        assert [loss(x).asnumpy() for _ in range(2)] == [expected, expected]
    saved.remove()
    assert "construct" not in vars(loss)
    run = open_run(tmp_path)
    y = np.array([[12.0] * 3, [44.0] * 3])
    found = {"y": y, "kl": y * y, "b": y + 1, "total": (y + 1).sum() if flag else y.sum()}
    if flag:
        found["shifted"] = y + 1
    assert set(run.keys) == set(found)
    for key, value in found.items():
        data = run.key_data(key)
        assert [d.micro_step for d in data] == [0, 1]
        np.testing.assert_array_equal(data[1].value, value)


def test_a_traceback_shows_the_lines_of_the_original():
    loss = Loss()
    SavedLocals(loss, "construct", WANTED, compiled=False)
    with pytest.raises(TypeError) as raised:
        loss("text")
    frames = traceback.extract_tb(raised.value.__traceback__)
    (frame,) = [f for f in frames if f.filename == __file__ and f.name == "construct"]
    assert frame.line == "y = self.dense(x)  # assigned"


def test_a_graph_is_said_to_be_where_the_trainer_wrote_it(run_phase):
    """The copy lies in no file; the outer cell shows its construct's line, behind a wrapper too."""
    line = inspect.getsourcelines(Loss.construct)[1]
    loss, x = Loss(), Tensor(np.arange(8).reshape(2, 4), ms.float32)
    SavedLocals(loss, "construct", WANTED, compiled=True)
    entries = run_phase(loss, lambda: loss(x), mode=ms.GRAPH_MODE).entries()
    (root,) = [e for e in entries if ".root." in e.name]
    (frame,) = root.stack
    assert frame.startswith(f"File {__file__}, line {line}, in construct")


def test_a_wrapper_around_ours_says_nothing_of_itself():
    """A trainer that keeps what it found in the cell gets the line of the class."""
    loss = Loss()
    SavedLocals(loss, "construct", WANTED, compiled=True)
    ours = loss.construct

    @functools.wraps(ours)
    def construct(*args):
        return ours(*args)

    loss.construct = construct
    assert __file__ in construct_frames(loss)[0]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: lambda self, x: SCALE, "no variable|plain function|cannot be read"),
        (lambda: print, "decorator|no source"),
    ],
)
def test_what_has_no_source_to_copy_is_refused(make, said):
    with pytest.raises(LookupError, match=said):
        copy_that_saves(make(), [("y", "y")])


def test_a_function_with_variables_around_it_is_refused():
    outside = 3

    def inner():
        y = outside
        return y

    with pytest.raises(LookupError, match="uses variables of a function around it"):
        copy_that_saves(inner, [("y", "y")])


def module_level(count):
    table = np.zeros((2, count))
    for i in range(count):
        table[:, i] = i
    return table.sum()


def test_an_array_that_is_filled_is_saved_when_it_is_full(tmp_path):
    copy = copy_that_saves(module_level, [("table", "table")])
    with Probe(ProbeConfig(msprobe=True, key_data_dump=True, dump_path=str(tmp_path))):
        assert copy(3) == module_level(3)
    (datum,) = open_run(tmp_path).key_data("table")
    assert datum.value.tolist() == [[0, 1, 2]] * 2


def branches(flag):
    if flag:
        total = 1
        return total
    else:
        total = 2
        return total


def comprehension(rows):
    doubled = [ratio * 2 for ratio in rows]

    def ratio_of(x):
        ratio = x
        return ratio

    return doubled, ratio_of(1)


def matched(kind, default=lambda x: x):
    match kind:
        case "a":
            found = 1
        case _:
            return default(None)
    return found


def attempted(value):
    try:
        number = int(value)
    except ValueError:
        number = -1
    return number


class WithPrivateNames:
    def method(self):
        y = self.__own
        return y


@pytest.mark.parametrize(
    ("function", "arguments", "variable", "saved"),
    [
        (branches, (True,), "total", [1]),
        (branches, (False,), "total", [2]),
        (matched, ("a",), "found", [1]),
        (matched, ("b",), "found", []),
        (attempted, ("3",), "number", [3]),
        (attempted, ("x",), "number", [-1]),
    ],
)
def test_where_a_value_may_be_missing_it_is_saved_where_it_is_made(
    function, arguments, variable, saved, tmp_path
):
    copy = copy_that_saves(function, [(variable, "value")])
    with Probe(ProbeConfig(msprobe=True, key_data_dump=True, dump_path=str(tmp_path))):
        assert copy(*arguments) == function(*arguments)
    assert [int(d.value) for d in open_run(tmp_path).key_data("value")] == saved


def test_variables_of_other_scopes_are_none():
    with pytest.raises(LookupError, match="no variable ratio"):
        copy_that_saves(comprehension, [("ratio", "ratio")])


def test_names_of_a_class_alone_are_refused():
    with pytest.raises(LookupError, match="two leading underscores"):
        copy_that_saves(WithPrivateNames.method, [("y", "y")])
