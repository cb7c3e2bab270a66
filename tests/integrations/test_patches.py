"""Methods of somebody else's class are wrapped, and what they do stays as it was."""

import logging
from types import SimpleNamespace

import pytest

from mindrlhf_msprobe.common.message import Message
from mindrlhf_msprobe.integrations.patches import Patches


class Base:
    """What a trainer's class has."""

    def __init__(self):
        self.calls = []

    def train(self, batch, scale=1):
        """Train on a batch."""
        self.calls.append(batch)
        if batch == "bad":
            raise RuntimeError("no memory")
        return batch * scale

    @staticmethod
    def pack(samples):
        return list(samples)

    @classmethod
    def named(cls, name):
        return cls, name


@pytest.fixture
def worker():
    """Return a class that may be changed."""
    return type("Worker", (), {**vars(Base)})


def wrap(kind, around, *names, strict=False, **options):
    """Let a function go around methods, by default around `train`."""
    patches = Patches("a trainer")
    patches.strict = strict
    return [
        patches.wrap(kind, name, around, without="-", **options) for name in names or ("train",)
    ]


@pytest.fixture
def said(caplog):
    caplog.set_level(logging.WARNING, logger="mindrlhf_msprobe")
    return caplog


def test_static_and_class_methods_stay_what_they_are(worker):
    seen = []

    def around(*args):
        seen.append((args, (yield)))

    wrap(worker, around, "pack", "named")
    assert worker.pack("ab") == worker().pack("ab") == ["a", "b"]
    assert worker.named("x") == (worker, "x")
    assert seen == [(("ab",), ["a", "b"])] * 2 + [((worker, "x"), (worker, "x"))]


def test_a_method_is_wrapped_once_and_an_inherited_one_for_the_subclass_alone(worker):
    special, seen = type("Special", (worker,), {}), []

    def around(self, batch):
        seen.append(batch)
        yield

    assert [wrap(special, around), wrap(special, around)] == [[True], [False]]
    worker().train(1)
    special().train(2)
    assert seen == [2]
    assert worker.train is not special.train


def test_missing_names_are_said_once_with_what_follows(said, worker):
    patches = Patches("the trainer")
    assert not patches.wrap(worker, "fit", lambda self: (yield), without="x is not recorded")
    patches.note_missing("Critic", "y neither", ["values"])
    patches.note_missing("Critic", "y neither", ["critic_update"])
    module = SimpleNamespace(__name__="mod", version="1")
    assert not patches.wrap(module, "version", lambda: (yield), without="z neither")
    noted = []
    patches.report(lambda *lost: noted.append(lost))
    patches.report(lambda *lost: noted.append(lost))  # of the next training
    (message,) = said.messages
    why = Message("trainer.missing", {"what": "Critic"})
    assert noted == [("values", why), ("critic_update", why)] * 2
    assert "Worker.fit is missing: x is not recorded" in message
    assert message.count("Critic is missing: y neither") == 1
    assert "mod.version is missing: z neither" in message


@pytest.mark.parametrize("place", ["before", "after"])
def test_a_fault_around_a_method_is_logged_once_and_harms_nothing(said, worker, place):
    def around(self, batch):
        if place == "before":
            raise KeyError("renamed")
        yield
        raise KeyError("renamed")

    wrap(worker, around)
    trained = worker()
    assert [trained.train(batch) for batch in (1, 2)] == [1, 2]
    assert trained.calls == [1, 2]
    (message,) = said.messages
    assert "Worker.train" in message
    assert "renamed" in message


@pytest.mark.parametrize("options", [{"raises": (LookupError,)}, {"strict": True}])
def test_what_is_for_the_user_is_raised_and_all_where_he_wants_it(worker, options):
    def around(self, batch):
        yield
        raise KeyError("dump_path is taken")

    wrap(worker, around, **options)
    with pytest.raises(KeyError, match="dump_path is taken"):
        worker().train(1)


@pytest.mark.parametrize("reaction", ["passes it on", "swallows it", "fails", "yields again"])
def test_the_methods_own_exception_passes_through(said, worker, reaction):
    seen = []

    def around(self, batch):
        try:
            yield
        except RuntimeError:
            seen.append("told")
            if reaction == "passes it on":
                raise
            if reaction == "fails":
                raise KeyError("mine") from None
            if reaction == "yields again":
                yield

    wrap(worker, around, strict=True)  # even then the training's exception is the one to see
    trained = worker()
    with pytest.raises(RuntimeError, match="no memory") as caught:
        trained.train("bad")
    assert seen == ["told"]
    assert trained.calls == ["bad"]
    frames = [frame.name for frame in caught.traceback]
    assert "around" not in frames


def test_what_goes_around_may_have_nothing_to_do(worker):
    def around(self, batch):
        if batch is None:
            yield

    wrap(worker, around)
    assert worker().train(3) == 3
