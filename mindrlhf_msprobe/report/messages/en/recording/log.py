"""What the log says while a training is recorded."""

from __future__ import annotations

from collections.abc import Sequence

from mindrlhf_msprobe.report.messages import Text


def _started(template: str) -> Text:
    def text(root: str, step: int, what: Sequence[str]) -> str:
        return template.format(root=root, step=step, what="; ".join(what))

    return text


def _texts(what: Sequence[str], left: int) -> str:
    return f"configurations: {'; '.join(what)}{f'; and {left} more' if left else ''}"


def _lost(lost: Sequence[Sequence[object]], noted: bool) -> str:
    kinds = ", ".join(f"{what}: {count}" for what, count in lost)
    return f"records lost while recording{' (see run.json)' if noted else ''}: {kinds}"


def _steps_from(first: int) -> str:
    return f"all steps from {first} on" if first else "all steps"


def _not_recorded_there(root: str, shown: str, left: int) -> str:
    more = f" and {left} more" if left else ""
    return f"dump_path {root} holds what no run recorded there: {shown}{more}. It is left as it is."


_GOES_ON = "Training goes on; what is lost is counted."

TEXTS: dict[str, Text] = {
    "recording": _started("recording to {root} from step {step} on: {what}"),
    "continuing": _started("continuing the run in {root} from step {step} on: {what}"),
    "layers": lambda phases, steps: f"layers of {', '.join(phases)} in {steps}",
    "configurations": "configurations",
    "nothing_on": "nothing is switched on",
    "steps": "steps {first} to {last}",
    "steps_from": _steps_from,
    "resumes": "the training resumes with step {step}",
    "fault": (
        "could not record {what} (step {step}): {kind}: {error}. Training goes on; further losses "
        "of this kind are counted in run.json."
    ),
    "hold_lost": (
        "dump_path {root} {how}. Recording stops in step {step}: nothing more is written, and what "
        "is still to come is counted and named when the probe is closed. Training goes on. To "
        "record again, start the job with a dump_path that is left alone while it runs."
    ),
    "loss_removed": "was removed while this job records into it",
    "loss_moved": "was moved away while this job records into it",
    "loss_replaced": "is another directory by now than the one that this job claimed",
    "loss_lock_gone": "is no longer this job's alone: the file that locks it was removed",
    "loss_lock_taken": "was taken by another job while this one records into it",
    "loss_manifest_gone": "has lost {manifest}: it was removed while this job records into it",
    "loss_manifest_replaced": "has another {manifest} by now than the one that this job wrote",
    "place_removed": (
        "{path} was removed while this job records into it, which was noticed in step {step}: "
        "{steps} step(s) that were recorded there are lost. Recording goes on in a new directory. "
        + _GOES_ON
    ),
    "place_taken": (
        "{path} was replaced by something else while this job records into it, which was noticed "
        "in step {step}: {steps} step(s) that were recorded there are lost. Nothing is recorded "
        "into what stands there now: move it away to record again. " + _GOES_ON
    ),
    "silent": (
        "phase {phase}, step {step}: no cell of the {role} network that was watched ran inside it, "
        "so nothing was recorded. Check that the phase is wrapped around the right call, that the "
        "network that runs is the one given to watch(), that include and exclude leave cells of "
        "it, and that watch() was called before it was first compiled."
    ),
    "text": "{path} is a {kind}, written as the text {text}",
    "texts": _texts,
    "left_out": lambda what, why: f"{what} are not recorded: {'; '.join(why)}",
    "gap": lambda cell, why: f"{cell}: {'; '.join(why)}",
    "gaps": lambda role, cells: (
        f"the {role} network is compiled, and of these cells something cannot be recorded (see "
        f"coverage.graph_mode in run.json): {'; '.join(cells)}"
    ),
    "lost": _lost,
    "step_forgotten": (
        "step() was never called, although phase {phase} was opened {times} times: all of it "
        "stands in step {step}. Call probe.step() at the end of every training step."
    ),
    "configurations_forgotten": (
        "configurations_dump is true, but save_configs() was never called: there is no "
        "configurations.json. Call probe.save_configs({{name: configuration, …}}) once, or set "
        "configurations_dump to false."
    ),
    "nothing_recorded": (
        "phase {phase} is switched on and ran in steps {first} to {last}, but nothing of it was "
        "recorded: {why}"
    ),
    "no_forward": "directions leaves out forward, and no gradients were computed in it",
    "meets_none": "{what} meets none of them",
    "look_at": lambda what: f"look at {', '.join(what)}",
    "no_cell_ended": "no cell of its network ran to an end",
    "took": "step {step} took {size} of this rank ({parts})",
    "room": "{took}; {free} are free at {root}",
    "room_for_rest": (
        "{took}; the steps up to step_end {last} of {ranks} rank(s) need {needed} more, {free} are "
        "free at {root}"
    ),
    "no_room_for_rest": (
        "{took}; the steps up to step_end {last} of {ranks} rank(s) need {needed} more, {free} are "
        "free at {root}. What does not fit will be lost: record fewer steps, phases or cells, or "
        "choose a dump_path with more room."
    ),
    "missing_ranks": (
        "{count} of the {ranks} ranks have not begun to write into {root} yet ({shown}). If they "
        "do not come: their nodes do not share this storage, or their dump_path is another one; "
        "what they write is put together with `mindrlhf-msprobe merge` when the job has ended."
    ),
    "no_section": "{trainer}: its configuration has no section {section}, so nothing is recorded.",
    "ignored": "{trainer}: {what} What is unknown is ignored, and training goes on.",
    "ray_actor": (
        "{trainer}: {role} runs in a Ray actor of its own, which knows neither its rank nor, "
        "unless it trains, where a step ends: its records stand apart in {place}."
    ),
    "not_recorded_there": _not_recorded_there,
    "waits": (
        "recording waits for the disk: {held:.0f} MB wait to be written (buffer_mb: {budget}), and "
        "the training waits with them; run.json says for how long. Record less, write to a faster "
        "disk, or raise buffer_mb."
    ),
    "no_trainer": lambda where, known: (
        f"nothing was recorded: no trainer {f'in {where}' if where else 'of MindRLHF'} was "
        f"imported (known are {known})."
    ),
    "no_probe": (
        "{call} was called, but no probe records: nothing is saved, here and in other calls, until "
        "there is one. Make a Probe with `msprobe: true` before."
    ),
}
