"""The order of events in a step: what ran around what, and where key data stand."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
from helpers.timelines import datum, entry, keys, passes, shown

from mindrlhf_msprobe.comparison.pairing.timeline import made_before_updates, merge, order_of
from mindrlhf_msprobe.storage.records import Entry

GENERATE, UPDATE = "actor_generate_sequences", "actor_update"


PHASES = [
    GENERATE,
    "actor_compute_log_prob",
    "reference_compute_log_prob",
    "critic_compute_values",
    UPDATE,
    "critic_update",
]
STEP = [
    ("prompts", GENERATE),
    ("responses", GENERATE),
    ("old_log_prob", "actor_compute_log_prob"),
    ("ref_log_prob", "reference_compute_log_prob"),
    ("values", "critic_compute_values"),
    ("rewards", None),
    ("advantages", None),
    ("returns", None),
    ("kl_loss", UPDATE),
    ("loss", UPDATE),
    ("value_loss", "critic_update"),
]


@pytest.mark.parametrize("seqs", [range(100, 111), range(110, 99, -1), [None] * 11])
def test_key_data_stand_where_they_belong_whenever_they_were_saved(seqs):
    """Saved at the end of a step, in any order or without a time, keys stand behind their phase.

    Prompts, which it is given, stand before it.
    """
    entries = [entry(phase, phase, 2 * i, 2 * i + 1) for i, phase in enumerate(PHASES)]
    data = [datum(key, seq) for (key, _), seq in zip(STEP, seqs)]
    events = shown(order_of(entries, data))
    for key, phase in STEP:
        place = events.index(f"{key}.0")
        if phase is None:
            assert events.index(f"end Cell.{PHASES[3]}.Net.forward.0") < place
            assert place < events.index(f"begin Cell.{UPDATE}.Net.forward.0")
        elif key == "prompts":
            assert place == 0
        else:
            assert events.index(f"end Cell.{phase}.Net.forward.0") < place
            last = "critic_update" if key == "loss" else phase  # it may come from any update
            following = PHASES[PHASES.index(last) + 1 :]
            assert all(place < events.index(f"begin Cell.{p}.Net.forward.0") for p in following)


@pytest.mark.parametrize(
    ("openings", "saves", "before"),
    [
        (1, 1, [0]),
        (1, 3, [0, 0, 0]),
        (2, 2, [0, 1]),
        (2, 4, [0, 0, 1, 1]),
        (2, 1, [0]),
        (2, 3, [0] * 3),
    ],
)
def test_prompts_stand_before_the_generation_they_are_given_to(openings, saves, before):
    """The n-th save belongs to the n-th opening; what cannot be told stands before the first."""
    entries = [
        replace(entry(f"{GENERATE}{n}", GENERATE, 2 * n, 2 * n + 1), opening=n)
        for n in range(openings)
    ]
    data = [datum("prompts", 50 + n, micro_step=n) for n in range(saves)]
    events = shown(order_of(entries, data))
    for micro_step, opening in enumerate(before):
        place = events.index(f"prompts.{micro_step}")
        assert place < events.index(f"begin Cell.{GENERATE}{opening}.Net.forward.0")
        assert not opening or place > events.index(
            f"end Cell.{GENERATE}{opening - 1}.Net.forward.0"
        )


def test_key_data_keep_their_order_without_any_cell():
    """Key data alone stand in the order of a step, whatever was saved first."""
    names = [key for key, _ in STEP]
    data = [datum(key, seq) for seq, key in enumerate(reversed(names))]
    assert keys(*data) == [f"{name}.0" for name in names]


def test_what_a_loss_is_made_of_keeps_the_order_in_which_it_is_made():
    """Key data alone: what the loss is given, what it computes, what the update returns."""
    names = ["loss_inputs", "log_prob", "ratio", "kl", "kl_loss", "actor_loss", "loss", "lr"]
    data = [datum(key, seq) for seq, key in enumerate(sorted(names))]
    assert keys(*data) == [f"{name}.0" for name in names]
    each = [datum("rewards", 0), datum("rewards.format", 1), datum("advantages", 2)]
    assert keys(*each) == ["rewards.format.0", "rewards.0", "advantages.0"]


REFERENCE = "reference_compute_log_prob"
EXPERIENCE = ["prompts", "ref_log_prob", "rewards.format"]
OF_LOSS = ["log_prob", "actor_loss", "loss"]


@pytest.mark.parametrize("cells", [False, True])
@pytest.mark.parametrize("updates", [1, 2])
def test_a_kl_that_rewards_are_made_of_stands_before_them(cells, updates):
    """It was saved before the update began, behind one reward and before the others."""
    of_experience = [*EXPERIENCE, "kl", "rewards", "advantages"]
    data = [datum(key, 10 + seq, 0, REFERENCE) for seq, key in enumerate(of_experience)]
    for n in range(updates):
        seqs = itertools.count(30 + 10 * n)
        data += [datum(key, next(seqs), n, UPDATE) for key in ("loss_inputs", *OF_LOSS)]
    entries = []
    if cells:
        entries = [entry("r", REFERENCE, 0, 1), entry("u", UPDATE, 20, 21)]
    assert made_before_updates(data) == {"kl"}
    order = order_of(entries, data, earlier=made_before_updates(data))
    names = [event.name for event in order if event.kind == "data" and event.micro_step == 0]
    assert [name for name in names if name in of_experience] == of_experience
    assert names.index("kl") < names.index("loss_inputs")
    assert all(event.phase is None for event in order if event.name == "kl")


@pytest.mark.parametrize(
    "phases",
    [
        [None] * 6,  # nobody told of phases
        [UPDATE] * 6,  # all saved when the step was over
        [UPDATE, UPDATE, UPDATE, REFERENCE, REFERENCE, REFERENCE],
    ],
)
def test_a_kl_of_the_loss_keeps_its_place(phases):
    """Also where the loss saves it before what it is made of, or before the experience is saved."""
    names = ["kl", "log_prob", "loss", "rewards", "advantages", "loss_inputs"]
    data = [datum(key, seq, 0, phase) for seq, (key, phase) in enumerate(zip(names, phases))]
    assert not made_before_updates(data)
    assert keys(*data) == [
        f"{key}.0" for key in ("rewards", "advantages", "loss_inputs", "log_prob", "kl", "loss")
    ]


def test_a_key_is_moved_where_both_runs_made_it_early():
    """A run that made it in the loss computes another value under this name."""
    early = [datum("kl", 0, 0, REFERENCE), datum("rewards", 1), datum("loss", 2, 0, UPDATE)]
    late = [datum("rewards", 0), datum("kl", 1, 0, UPDATE), datum("loss", 2, 0, UPDATE)]
    assert made_before_updates(early, early) == {"kl"}
    assert made_before_updates(early, late[:1]) == {"kl"}  # the other run lacks it
    assert not made_before_updates(early, late)
    assert not made_before_updates(late, early)


def test_unknown_keys_stand_where_they_were_saved():
    """A key nothing is known about stands at its time among the cells, or last without one."""
    entries = [entry("a", UPDATE, 0, 1), entry("b", UPDATE, 3, 4)]
    events = shown(order_of(entries, [datum("mine", 2)]))
    assert events.index("mine.0") == 2
    assert shown(order_of(entries, [datum("mine")]))[-1] == "mine.0"


def test_unknown_keys_follow_what_was_saved_before_them():
    """Without any cell, an unknown key stands behind the known keys that were saved before it."""
    data = [datum("prompts", 0), datum("scores", 1), datum("rewards", 2), datum("loss", 3)]
    assert keys(*data) == ["prompts.0", "scores.0", "rewards.0", "loss.0"]
    assert keys(datum("first", 0), datum("prompts", 1)) == ["first.0", "prompts.0"]


def test_rounds_of_key_data_stay_apart():
    """Where all keys of one round were saved before those of the next, the rounds stay apart."""
    data = [datum(key, 3 * r + i, r) for r in range(2) for i, key in enumerate(("prompts", "loss"))]
    assert keys(*data) == ["prompts.0", "loss.0", "prompts.1", "loss.1"]
    mixed = [datum("prompts", 0), datum("prompts", 1, 1), datum("loss", 2), datum("loss", 3, 1)]
    assert keys(*mixed) == ["prompts.0", "prompts.1", "loss.0", "loss.1"]


def rounds(*phases, number=2):
    """Return entries of phases that are opened in turn, `number` times."""
    clock = itertools.count()
    return [
        Entry(f"Cell.{phase}.Net.forward.{n}", phase, 0, 0, next(clock), next(clock), opening=n)
        for n in range(number)
        for phase in phases
    ]


@pytest.mark.parametrize("seq", [None, 100])
def test_the_nth_save_belongs_to_the_nth_opening(seq):
    """With two rounds, each key stands in its own round, also if it was saved at the end."""
    entries = rounds(GENERATE, "critic_compute_values", UPDATE)
    data = [datum(key, seq, n) for key in ("responses", "rewards", "loss") for n in range(2)]
    events = shown(order_of(entries, data))
    order = [name for name in events if not name.startswith("end")]
    assert order == [
        f"begin Cell.{GENERATE}.Net.forward.0",
        "responses.0",
        "begin Cell.critic_compute_values.Net.forward.0",
        "rewards.0",
        f"begin Cell.{UPDATE}.Net.forward.0",
        "loss.0",
        f"begin Cell.{GENERATE}.Net.forward.1",
        "responses.1",
        "begin Cell.critic_compute_values.Net.forward.1",
        "rewards.1",
        f"begin Cell.{UPDATE}.Net.forward.1",
        "loss.1",
    ]


def test_a_key_of_a_phase_that_was_not_recorded_stands_in_its_round():
    """Where only the update was recorded, each round's responses stand before its update."""
    entries = rounds(UPDATE)
    data = [datum("responses", 100 + n, n) for n in range(2)]
    events = [name for name in shown(order_of(entries, data)) if not name.startswith("end")]
    assert [name.split(".")[0] for name in events] == [
        "responses",
        "begin Cell",
        "responses",
        "begin Cell",
    ]


def test_keys_of_phases_that_were_not_recorded_keep_their_order():
    """Where only a later phase was recorded, all keys before it stand in the order of a step."""
    entries = rounds(UPDATE)
    entries = [replace(e, seq=e.seq + 10 * (i + 1), end=e.end + 10) for i, e in enumerate(entries)]
    names = ("responses", "old_log_prob", "rewards")
    data = [datum(key, 10 * n + i, n) for n in range(2) for i, key in enumerate(names)]
    found = [
        name for name in shown(order_of(entries, data)) if name[-2] == "." and "Cell" not in name
    ]
    assert found == [f"{key}.{n}" for n in range(2) for key in names]


def test_one_round_of_experience_stands_before_all_its_updates():
    """Rewards saved once, or several times in one round, stand before the first of many updates."""
    entries = [
        entry("g", GENERATE, 0, 1),
        *[
            Entry(f"Cell.u.Net.forward.{n}", UPDATE, 0, 0, 10 + 2 * n, 11 + 2 * n, opening=n)
            for n in range(4)
        ],
    ]
    assert shown(order_of(entries, [datum("rewards", 100)]))[2] == "rewards.0"
    three = [datum("rewards", 100 + n, n) for n in range(3)]
    assert shown(order_of(entries, three))[2:5] == ["rewards.0", "rewards.1", "rewards.2"]


def test_a_result_never_stands_later_than_where_it_was_saved():
    """A loss of the first of two passes in one opening stands between them."""
    entries = [entry("a", UPDATE, 0, 1), entry("b", UPDATE, 3, 4)]
    events = shown(order_of(entries, [datum("loss", 2), datum("loss", 5, 1)]))
    assert events.index("loss.0") == 2
    assert events[-1] == "loss.1"


def test_the_events_of_both_runs_are_merged():
    """A's order counts; what only B has follows what precedes it there."""
    a = order_of([entry(n, UPDATE, i, i + 0.5) for i, n in enumerate("acd")], [])
    b = order_of([entry(n, UPDATE, i, i + 0.5) for i, n in enumerate("xabcy")], [])
    begun = [name.split(".")[1] for name in shown(merge(a, b)) if name.startswith("begin")]
    assert begun == ["x", "a", "b", "c", "y", "d"]
    assert merge(a, a) == a


def test_rewards_saved_before_the_values_stand_before_them():
    """Without any cell, too: the critic may have been given them."""
    assert keys(datum("prompts", 0), datum("rewards", 1), datum("values", 2)) == [
        "prompts.0",
        "rewards.0",
        "values.0",
    ]
    assert keys(datum("rewards", 0), datum("values", 1), datum("prompts", 2))[0] == "prompts.0"


FORWARD = ("log_prob", "entropy", "ratio", "kl", "kl_loss", "actor_loss", "loss")


@pytest.mark.parametrize("seqs", ["in_the_phase", "behind_it", None])
@pytest.mark.parametrize("gradients", ["backward", "parameters_grad"])
def test_what_the_forward_pass_of_an_update_makes_stands_before_its_gradients(seqs, gradients):
    """Whenever it was saved; what is made of the gradients stands behind them."""
    entries = passes(UPDATE, f"forward {gradients}")
    saved = {"in_the_phase": itertools.count(entries[-1].end), "behind_it": itertools.count(100)}
    clock = saved.get(seqs, itertools.repeat(None))
    data = [datum(key, next(clock)) for key in (*FORWARD, "grad_norm")]
    events = shown(order_of(entries, data))
    begin = events.index(f"begin {entries[1].name}")
    assert events[: begin + 1] == [
        f"begin {entries[0].name}",
        f"end {entries[0].name}",
        *(f"{key}.0" for key in FORWARD),
        f"begin {entries[1].name}",
    ]
    assert events[-1] == "grad_norm.0"


def test_a_critics_loss_stands_before_its_gradients():
    """The critic's update, too."""
    entries = passes("critic_update", "forward backward")
    events = shown(order_of(entries, [datum("value_loss"), datum("critic_loss")]))
    assert events[2:4] == ["value_loss.0", "critic_loss.0"]


@pytest.mark.parametrize("openings", [1, 3])
@pytest.mark.parametrize("saved", ["each", "at the end", "no time"])
def test_the_nth_save_stands_before_the_nth_gradients(openings, saved):
    """Of updates in a row, or of micro-batches whose gradients are added up in one opening."""
    rounds = 3
    entries = passes(UPDATE, "forward backward", rounds=rounds, openings=openings)
    seqs = {"each": [e.end + 1 for e in entries[1::2]], "no time": [None] * rounds}
    at = seqs.get(saved, [500 + n for n in range(rounds)])
    data = [datum(key, at[n], n) for key in ("log_prob", "loss") for n in range(rounds)]
    events = [name for name in shown(order_of(entries, data)) if not name.startswith("end")]
    for n in range(rounds):
        at = events.index(f"begin {entries[2 * n + 1].name}")
        assert events[at - 3 : at] == [f"begin {entries[2 * n].name}", f"log_prob.{n}", f"loss.{n}"]


def test_what_was_saved_inside_a_later_forward_pass_stands_there():
    """Not before the gradients of the one before: it was not made yet."""
    entries = passes(UPDATE, "forward backward", rounds=2)
    inside = entries[2].seq + 1
    events = shown(order_of(entries, [datum("log_prob", inside), datum("log_prob", inside + 1, 1)]))
    begin = events.index(f"begin {entries[2].name}")
    assert events[begin + 1 : begin + 3] == ["log_prob.0", "log_prob.1"]


def test_a_cell_around_the_whole_update_does_not_hide_its_gradients():
    """The training cell holds the network and the optimizer, which runs behind the gradients."""
    inner = passes(UPDATE, "forward backward")
    around = entry("train", UPDATE, -1, 99)
    optimizer = entry("optimizer", UPDATE, 50, 51)
    events = shown(order_of([around, *inner, optimizer], [datum("log_prob", 200)]))
    assert events.index("log_prob.0") == events.index(f"begin {inner[1].name}") - 1


def test_what_the_cell_around_the_policy_computes_stands_before_its_end():
    """Its own code makes log-probabilities and losses of what the policy returned."""
    entries = [
        entry("outer", UPDATE, 0, 9),
        entry("root", UPDATE, 1, 4),
        entry("outer.loss_fn", UPDATE, 5, 8),
        *passes(UPDATE, "backward", begin=10, cell="outer"),
    ]
    data = [datum(key, 30) for key in ("log_prob", "loss", "grad_norm")]
    names = [e.rpartition(" ")[2].removeprefix("Cell.") for e in shown(order_of(entries, data))]
    assert names[-7:-3] == [
        "outer.loss_fn.Net.forward.0",
        "log_prob.0",
        "loss.0",
        "outer.Net.forward.0",
    ]
    assert names[-1] == "grad_norm.0"


def test_a_loss_of_both_updates_stands_before_the_gradients_of_the_last():
    """It may be of either; a loss saved between the two is the actor's."""
    entries = [
        *passes(UPDATE, "forward backward"),
        *passes("critic_update", "forward backward", begin=40, cell="c"),
    ]
    for seq, of in ((200, 3), (None, 3), (30, 1)):
        events = shown(order_of(entries, [datum("loss", seq)]))
        assert events.index("loss.0") == events.index(f"begin {entries[of].name}") - 1


def test_a_loss_of_two_networks_that_are_updated_together_stands_before_all_their_gradients():
    """Whichever network's begin first, and whichever phase ends last."""
    for first, second in ((10, 20), (20, 10)):
        entries = [
            *passes(UPDATE, "forward", begin=0),
            *passes("critic_update", "forward", begin=1, cell="c"),
            *passes(UPDATE, "backward", begin=first),
            *passes("critic_update", "backward", begin=second, cell="c"),
        ]
        events = shown(order_of(entries, [datum("loss", 99)]))
        at = events.index("loss.0")
        assert not any("backward" in event for event in events[:at])
        assert all("backward" in event for event in events[at + 1 :])


def test_an_entropy_that_the_experience_computed_stands_before_the_updates():
    """Not every trainer takes it from the update."""
    data = [datum("entropy", 1, 0, "actor_compute_log_prob"), datum("rewards", 2)]
    data += [datum("log_prob", 5, 0, UPDATE)]
    assert made_before_updates(data) == {"entropy"}
