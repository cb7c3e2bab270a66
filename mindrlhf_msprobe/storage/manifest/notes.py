"""Notes of a run: what is said of it while it is recorded, each with its place in run.json.

A recorder makes a note and hands it to `RunWriter.note`; nothing between it and the manifest has to
know which one it is. A new kind of note is a new class here; one that replaces a
key as it is, is `Replaced`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe.common.message import Message, message
from mindrlhf_msprobe.storage.manifest.run_file import (
    AT_FIRST_PHASE,
    COUNTER,
    Generation,
    Settings,
    began_unlike,
)

if TYPE_CHECKING:
    from mindrlhf_msprobe.storage.manifest.manifest import Manifest


class Written(Enum):
    """When a note reaches the disk."""

    WITH_THE_STEP = "with the manifest, when the step ends"
    SOON = "as soon as the writing thread comes to it"
    NOW = "before the call that hands it over returns"


class Note(ABC):
    """One thing that is said of a run.

    Attributes:
        written: when it reaches the disk.
        code: of what is lost where it cannot be written.
    """

    written: Written = Written.WITH_THE_STEP
    code: ClassVar[str] = "lost.note"

    @property
    def lost(self) -> Message:
        """What is lost where it cannot be written."""
        return message(self.code)

    @abstractmethod
    def put_into(self, manifest: Manifest) -> None:
        """Put it into the content of the manifest, which is not written by this."""


@dataclass(frozen=True)
class FirstEntry(Note):
    """What was found when a role's network was first entered.

    Attributes:
        weights: parameter name → fingerprint; None where they are not recorded.
        settings: what the process runs with, by section; None where that is known already.
        phase: that it was entered in.
    """

    role: str
    weights: Mapping[str, Any] | None
    settings: Mapping[str, Any] | None
    phase: str | None = None
    written = Written.NOW

    @property
    def lost(self) -> Message:
        """The initial weights of the role."""
        return message("lost.initial_weights", role=self.role)

    def put_into(self, manifest: Manifest) -> None:
        """Note settings and weights; a further attempt notes weights that are not the first's."""
        if self.settings is not None:
            manifest.note_settings(self.settings, AT_FIRST_PHASE, self.phase)
        if self.weights is None:
            return
        target, first = manifest.target, manifest.content.initial_weights or {}
        if not manifest.further or first.get(self.role) != self.weights:
            target.initial_weights = {
                **(target.initial_weights or {}),
                self.role: dict(self.weights),
            }


@dataclass(frozen=True)
class Networks(Note):
    """What the networks and their optimizers are set to.

    Attributes:
        content: its `networks`, `modes` and `optimizers`. A network that is the same object as in
            an earlier note is not encoded again.
    """

    content: Settings
    written: Written = Written.WITH_THE_STEP
    code = "lost.networks"

    def put_into(self, manifest: Manifest) -> None:
        """Note it; a further attempt notes what is not as the first one began.

        It always notes how far its optimizers had counted.
        """
        optimizers = self.content.optimizers
        manifest.keep_encoded(self.content.networks)
        if not manifest.further or began_unlike(manifest.content, self.content):
            manifest.target.json.update(self.content.json)
        elif any(COUNTER in optimizer.settings for optimizer in optimizers.values()):
            manifest.target.optimizers = optimizers


@dataclass(frozen=True)
class Generated(Note):
    """What phases generate with: the phase's name → its settings and how they changed."""

    content: Mapping[str, Generation]
    code = "lost.generation"

    def put_into(self, manifest: Manifest) -> None:
        """Note it; a further attempt notes what is not as the first one began."""
        first = manifest.content.generation
        same = all(
            phase in first and first[phase].settings == of.settings and not of.changes
            for phase, of in self.content.items()
        )
        if not (manifest.further and same):
            manifest.target.generation = dict(self.content)


@dataclass(frozen=True)
class Checkpoint(Note):
    """From what a role's network was loaded, "" for nothing, or what it was saved to.

    Attributes:
        saved_after: it was saved there, after so many steps; None: it was loaded.
    """

    role: str
    path: str
    saved_after: int | None = None
    code = "lost.checkpoints"

    def put_into(self, manifest: Manifest) -> None:
        """Note it beside those of other roles and steps."""
        content = manifest.content
        path = str(self.path)  # a trainer may give one of pathlib
        if self.saved_after is None:
            content.checkpoints = {**(content.checkpoints or {}), self.role: path}
            return
        saved = content.saved_checkpoints or {}
        of_role = {**saved.get(self.role, {}), f"{self.saved_after}": path}
        content.saved_checkpoints = {**saved, self.role: of_role}


@dataclass(frozen=True)
class StepStates(Note):
    """The states of random generators in the steps of this attempt."""

    content: Mapping[str, Any]
    code = "lost.random_states"

    def put_into(self, manifest: Manifest) -> None:
        """Note them behind those of earlier attempts."""
        before = manifest.states_before
        manifest.content.random_states = {
            name: [*before.get(name, ()), *self.content.get(name, ())]
            for name in dict.fromkeys([*before, *self.content])
        }


@dataclass(frozen=True)
class Replaced(Note):
    """What one key of the manifest says from now on, in the place of what it said before.

    Attributes:
        key: its name in `RunFile`, e.g. `played` or `grafted`.
        content: as JSON; nobody changes it any more.
    """

    key: str
    content: Any
    written: Written = Written.WITH_THE_STEP

    @property
    def lost(self) -> Message:
        """What the key would have said."""
        return message("lost.configuration" if self.key == "config" else self.code)

    def put_into(self, manifest: Manifest) -> None:
        """Note it."""
        manifest.content.json[self.key] = self.content
