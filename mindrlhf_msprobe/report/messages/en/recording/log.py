"""What the log says while a training is recorded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mindrlhf_msprobe.report.messages import Text
from mindrlhf_msprobe.report.messages.choices.log import CHOICES
from mindrlhf_msprobe.report.messages.chosen import chosen, joined
from mindrlhf_msprobe.report.messages.lists import Joined

_GOES_ON = "Training goes on; what is lost is counted."

_PIECES: Mapping[str, Text] = {
    "each": joined("what", "; "),
    "kinds": lambda lost, **_: ", ".join(f"{what}: {count}" for what, count in lost),
    "n_left": " and {left} more",
    "see_run_file": " (see run.json)",
    "all_steps": "all steps",
    "steps_after": "all steps from {first} on",
    "trainer_there": "in {where}",
    "trainer_of_mindrlhf": "of MindRLHF",
    "n_texts_left": "; and {left} more",
}

TEXTS: Mapping[str, Any] = chosen(
    CHOICES,
    _PIECES,
    {
        "recording": Joined("recording to {root} from step {step} on: {what}", "; "),
        "continuing": Joined("continuing the run in {root} from step {step} on: {what}", "; "),
        "layers": Joined("layers of {phases} in {steps}", ", "),
        "configurations": "configurations",
        "nothing_on": "nothing is switched on",
        "every_nth_step": "one of {interval} of {steps}",
        "steps": "steps {first} to {last}",
        "steps_from": "{which_steps}",
        "no_network": (
            "phase {phase}: no network is watched for its role. Operators are recorded; for its "
            "cells call watch({role}=cell)"
        ),
        "resumes": "the training resumes with step {step}",
        "fault": (
            "could not record {what} (step {step}): {kind}: {error}. Training goes on; further "
            "losses of this kind are counted in run.json."
        ),
        "hold_lost": (
            "dump_path {root} {how}. Recording stops in step {step}: nothing more is written, and "
            "what is still to come is counted and named when the probe is closed. Training goes "
            "on. To record again, start the job with a dump_path that is left alone while it runs."
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
            "{steps} step(s) that were recorded there are lost. Recording goes on in a new "
            "directory. " + _GOES_ON
        ),
        "place_taken": (
            "{path} was replaced by something else while this job records into it, which was "
            "noticed in step {step}: {steps} step(s) that were recorded there are lost. Nothing is "
            "recorded into what stands there now: move it away to record again. " + _GOES_ON
        ),
        "silent": (
            "phase {phase}, step {step}: no cell of the {role} network that was watched ran inside "
            "it, so nothing was recorded. Check that the phase is wrapped around the right call, "
            "that the network that runs is the one given to watch(), that include and exclude "
            "leave cells of it, and that watch() was called before it was first compiled."
        ),
        "text": "{path} is a {kind}, written as the text {text}",
        "texts": "configurations: {each}{and_texts_left}",
        "changes_training": (
            "THE TRAINING IS CHANGED: handler_type: fix hands the result of the second run "
            "({task}, {pert_mode}) to the training instead of its own. run.json says so under "
            "changed_training."
        ),
        "closer": "step {step}: of {phase}, the elements of {cell} are recorded, too",
        "nothing_closer": (
            "on_divergence: record: from step {step} on no step is recorded, so the elements of "
            "{cell} in {phase} are not. Train again with a later step_end, or task: tensor there"
        ),
        "played": (
            "THE TRAINING IS CHANGED: it is given {name} of {path} instead of its own. run.json "
            "says so under played."
        ),
        "generators_not_put_back": (
            "step {step}: {path} does not say in which states all random generators were behind "
            "the rollout that is played: what is drawn from here on, as by dropout, is not what it "
            "drew"
        ),
        "played_other_batch": (
            "the rollout of step {source}, call {call}, is played in step {step}, and was "
            "generated of another batch: {difference}. The training goes on with responses to "
            "other prompts. Where that is not meant, bring the data into the recorded order, or "
            "use rollout_order: same, which refuses it. This is said once."
        ),
        "left_out": Joined("{what} are not recorded: {why}", "; "),
        "layers_of": "the layers of {phase}",
        "needs_mindspore": "what needs MindSpore's {name}",
        "gap": Joined("{cell}: {why}", "; "),
        "gaps": Joined(
            "the {role} network is compiled, and of these cells something cannot be recorded (see "
            "coverage.graph_mode in run.json): {cells}",
            "; ",
        ),
        "lost": "records lost while recording{where_noted}: {kinds}",
        "operators_replaced": Joined(
            "in the place of operators stands what is not MindSpore's own; its calls are recorded "
            "by their names (coverage.operators in run.json): {operators}",
            ", ",
        ),
        "operators_held": Joined(
            "operators are held where their calls are not recorded; hold them as an attribute of a "
            "module or a cell (coverage.operators in run.json): {places}",
            ", ",
        ),
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
            "phase {phase} is switched on and ran in steps {first} to {last}, but nothing of it "
            "was recorded: {why}"
        ),
        "no_forward": "directions leaves out forward, and no gradients were computed in it",
        "meets_none": "{what} meets none of them",
        "look_at": Joined("look at {what}", ", "),
        "no_cell_ended": "no cell of its network ran to an end",
        "took": lambda step, size, parts: (
            f"step {step} took {size} of this rank ({', '.join(map(' '.join, parts))})"
        ),
        "room": "{took}; {free} are free at {root}",
        "room_for_rest": (
            "{took}; the steps up to step_end {last} of {ranks} rank(s) need {needed} more, {free} "
            "are free at {root}"
        ),
        "no_room_for_rest": (
            "{took}; the steps up to step_end {last} of {ranks} rank(s) need {needed} more, {free} "
            "are free at {root}. What does not fit will be lost: record fewer steps, phases or "
            "cells, or choose a dump_path with more room."
        ),
        "missing_ranks": (
            "{count} of the {ranks} ranks have not begun to write into {root} yet ({shown}). If "
            "they do not come: their nodes do not share this storage, or their dump_path is "
            "another one; what they write is put together with `mindrlhf-msprobe merge` when the "
            "job has ended."
        ),
        "no_section": (
            "{trainer}: its configuration has no section {section}, so nothing is recorded."
        ),
        "ignored": "{trainer}: {what} What is unknown is ignored, and training goes on.",
        "ray_actor": (
            "{trainer}: {role} runs in a Ray actor of its own, which knows neither its rank nor, "
            "unless it trains, where a step ends: its records stand apart in {place}."
        ),
        "not_recorded_there": (
            "dump_path {root} holds what no run recorded there: {shown}{and_left}. It is left as "
            "it is."
        ),
        "sketches_on_host": (
            "task: sketch has no operators for {target}: every tensor is brought to the host and "
            "sketched there."
        ),
        "keeps": (
            "keep_mb is {keep}: when this rank's share of {root} exceeds that, data of old steps "
            "are removed (see docs, files of a run). Set keep_mb: 0 to keep everything."
        ),
        "keep_too_small": (
            "keep_mb is {keep}, but what is never removed (the first step, the last {last}, those "
            "around findings) takes {taken} in {steps} step(s) on this rank. Raise keep_mb, or "
            "record fewer phases or cells."
        ),
        "overflow": (
            "NaN or Inf first arises in {entry} (step {step}): its full tensors are written, see "
            "overflow_nums; `mindrlhf-msprobe check` says what became of it"
        ),
        "waits": (
            "recording waits for the disk: {held:.0f} MB wait to be written (buffer_mb: {budget}), "
            "and the training waits with them; run.json says for how long. Record less, write to a "
            "faster disk, or raise buffer_mb."
        ),
        "no_trainer": (
            "nothing was recorded: no trainer {trainer_of} was imported (known are {known})."
        ),
        "no_probe": (
            "{call} was called, but no probe records: nothing is saved, here and in other calls, "
            "until there is one. Make a Probe with `msprobe: true` before."
        ),
        "level": (
            "{name} is {value!r}; expected 0 (debug), 1 (info), 2 (warnings), 3 (errors) or 4 "
            "(nothing). Logging as with 1."
        ),
        "of_call": "{call}: {why}",
        "in_graph": "{call} in a graph that is compiled",
        "no_constant": "{call}() in a graph got the name {name}; expected a constant text.",
        "no_gradient": (
            "{call} got a {what}; expected a tensor that can have a gradient, of floating point or "
            "complex numbers. Nothing is saved."
        ),
        "a_value": "value of type {type}",
        "a_tensor": "tensor of dtype {dtype}",
        "saved_without_probe": "not recorded as key data: {keys}: {why}",
        "disk_unknown": "what the disk holds is not known: {why}",
        "rule_failed": "rule {rule} failed",
        # The older tools' names.
        "debugger_again": (
            "PrecisionDebugger({given}): there is one in this process already, made with ("
            "{known}); the arguments change nothing."
        ),
        "config_init_again": "MsProbe.config_init() with another configuration: the run ends here.",
        "no_phase": (
            "{call}(tag={tag}): not a phase, so it is not recorded.{nearest} Phases: {phases}. A "
            "phase of your own is declared in msprobe_config.phases."
        ),
        "monitor_in_graph": (
            "{call}: in graph mode gradients are recorded between start(model) and stop() alone: "
            "start the network before it is compiled"
        ),
        "still_open_start": (
            "{call}: {phase} is started while {open} is still open, which ends here."
        ),
        "still_open_step": "{call}: the step ends while {open} is still open, which ends here.",
        "of_gradients": "{call}: gradients of parameters: {why}",
        "single_no_dict": (
            "SingleSave.{call}() got {kind}; expected a dict of name to data. Nothing was saved."
        ),
        "single_no_text": "SingleSave.{call}() left out the name {name}: it is no text.",
        "single_continues": (
            "SingleSave: {place} holds a run already; it is continued with step {step}. Give every "
            "run a dump_path of its own to keep them apart."
        ),
        # Trainers.
        "import_unnoticed": "the import of {name} is not noticed: {loader}",
        "not_prepared": (
            "what should be recorded of {name} could not be prepared: {kind}: {error}. It is "
            "imported without."
        ),
        "installed_before": "install() was called before; nothing is installed twice.",
        "other_version": Joined(
            "{trainer} is not the version this integration was written for. {missing}. The rest is "
            "recorded.",
            "; ",
        ),
        "around_failed": (
            "recording around {where} failed: {kind}: {error}. Training goes on; this is said once."
        ),
        "no_parameter_gradients": "the gradients of parameters are not recorded: {why}",
        "no_key_data": Joined("{keys} are not recorded as key data: {why}", " and "),
        "vllm_failed": (
            "vLLM was being built when this happened, and its network is recorded. If it cannot be "
            "compiled with probes, actor_infer_dump: false leaves it as it is."
        ),
        "no_section_in_file": "{trainer}: no section {section} in {path}: nothing is recorded",
        "left_to_mindrlhf": (
            "{path}: {keys} of {section} is known to MindRLHF and not to this probe: it is left to "
            "MindRLHF."
        ),
        "switched_off": Joined("{trainer}: {keys} are not recorded: {why}", " and "),
        "no_each_reward": "{trainer}: the rewards of each function are not recorded: {why}",
        "step_not_called": (
            "{trainer}: MsProbe.step() is not called; a step ends where the next experience begins."
        ),
        "steps_from_0": "{trainer}: the steps are counted from 0 if it resumes: {why}",
        "sink_mode": (
            "dataset_sink_mode: MindSpore runs {steps} training steps in one call. They are "
            "recorded as one step, one after the other; the loss is that of the last. For steps "
            "apart train with dataset_sink_mode=False or sink_size=1."
        ),
    },
)
