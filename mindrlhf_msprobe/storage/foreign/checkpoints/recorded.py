"""The parameters that a run recorded, as a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from mindrlhf_msprobe.common.message import Messages, message
from mindrlhf_msprobe.phases import phase_table
from mindrlhf_msprobe.storage.foreign.checkpoints.stored import Checkpoint, CheckpointError
from mindrlhf_msprobe.storage.place import LayerPlace
from mindrlhf_msprobe.storage.reading.reader import Run, open_run
from mindrlhf_msprobe.storage.records import Record, network_name

_PREFERRED = "actor"
_STEPS = re.compile("[0-9]{1,12}")

#: Role → rank → name → the parameter.
_Roles = dict[str, dict[int, dict[str, Record]]]


def recorded_parameters(
    path: Path, step: int | None = None, checkpoint: Path | None = None
) -> Checkpoint:
    """Return the parameters of one network of a run, by their names in it.

    They are those of the actor, else of the first network that recorded any; each as it was first
    recorded: the initial weights.

    Args:
        step: as they were in this step, instead.
        checkpoint: those that the run saved in this one, or in one that this is a file of, instead,
            if it did and no step is given.

    Raises:
        RunError: there is no run, or it recorded no parameters (there).
    """
    run = open_run(path.absolute())
    saved = None if step is not None or checkpoint is None else _saved_in(run, checkpoint)
    if saved is not None:
        role, step = saved
        held = _held(run, [step])
        if role not in held:
            what = {"checkpoint": str(checkpoint), "steps": step}
            raise CheckpointError.saying("checkpoint.saved_unrecorded", path=str(path), **what)
        notes: Messages = (message("checkpoint.saved_after", role=role, steps=step),)
        return Checkpoint(path, "run", held[role], notes=notes)
    steps = run.steps if step is None else [step]
    held = _held(run, steps)
    if not held:
        code = "checkpoint.no_parameters" if step is None else "checkpoint.no_parameters_in_step"
        raise CheckpointError.saying(code, path=str(path), step=step)
    role = _PREFERRED if _PREFERRED in held else next(iter(held))
    others = [name for name in held if name != role]
    notes = (message("checkpoint.of_role", role=role, others=others, step=step),)
    return Checkpoint(path, "run", held[role], notes=notes)


def _saved_in(run: Run, checkpoint: Path) -> tuple[str, int] | None:
    """Return whose network a run saved in a checkpoint, and the step that begins with it."""
    whole = checkpoint.resolve()
    for file in run.run_files:
        for role, saved in (file.saved_checkpoints or {}).items():
            for steps, at in saved.items() if isinstance(saved, dict) else ():
                if not (isinstance(at, str) and at and _STEPS.fullmatch(steps)):
                    continue
                if Path(at).resolve() in (whole, *whole.parents):
                    return role, int(steps)
    return None


def _held(run: Run, steps: Sequence[int]) -> _Roles:
    """Return the parameters of each role that has any, as they were first recorded in `steps`."""
    roles: _Roles = {}
    known = 0
    for step in steps:
        there = run.layer_places(step)
        places = (LayerPlace(p, step, r) for r in run.ranks for p in run.phases)
        for at in (at for at in places if at in there):
            config = run.config(at.rank)
            phase = (config.phase_table() if config else phase_table({})).get(at.phase)
            role = roles.setdefault(at.phase if phase is None else phase.role, {})
            found = role.setdefault(at.rank, {})
            for entry in run.each_entry(*at):
                for record in entry.records:
                    if record.io == "parameters" and record.leaf.is_tensor:
                        name = network_name(entry.cell, record.path)
                        if name not in found:  # as it was first recorded
                            found[name] = replace(record, name=name)
        before, known = known, sum(len(t) for ranks in roles.values() for t in ranks.values())
        if known and known == before:  # every step records the same ones
            break
    held = {role: {r: t for r, t in ranks.items() if t} for role, ranks in roles.items()}
    return {role: ranks for role, ranks in held.items() if ranks}
