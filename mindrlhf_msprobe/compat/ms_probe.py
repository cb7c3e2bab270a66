"""MsProbe: the class MindRLHF and MindSpeed-RL call, with their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, ClassVar

from mindrlhf_msprobe.capture.arguments import MISSING
from mindrlhf_msprobe.common.message import message
from mindrlhf_msprobe.config import ProbeConfig, load_config
from mindrlhf_msprobe.errors import UsageError, nearest_of
from mindrlhf_msprobe.log import warn
from mindrlhf_msprobe.probe import Probe

if TYPE_CHECKING:
    from mindrlhf_msprobe.compat.shared import SharedProbe

_START = "MsProbe.debugger_start"


class MsProbe:
    """One probe for the whole process, called through the class.

        MsProbe.config_init(config.msprobe_config)
        MsProbe.debugger_start(model, tag="actor_update")
        MsProbe.save_data({"loss": loss})
        MsProbe.debugger_stop(tag="actor_update")
        MsProbe.step()

    Until `config_init` was given a configuration with `msprobe: true`, every call does nothing.

    Attributes:
        enabled: whether this process records anything.
        config: what is recorded.
    """

    enabled: ClassVar[bool] = False
    config: ClassVar[ProbeConfig | None] = None
    _shared: ClassVar[SharedProbe | None] = None

    @classmethod
    def config_init(cls, msprobe_config: Any) -> None:
        """Begin to record, if the configuration says so.

        Called again with an equal configuration, or a switched-off one, it changes nothing; with
        another one it ends the run and begins the next.

        Args:
            msprobe_config: as for `Probe.from_config`; also MindSpeed-RL's MsprobeConfig.

        Raises:
            ConfigError: the configuration is wrong; the message names key, value and expectation.
            RunError: the dump_path already holds another run, or cannot be written.
        """
        attributes = getattr(msprobe_config, "__dict__", {})
        if "role" in attributes:  # MindSpeed-RL's
            others = {name: attributes[name] for name in attributes if name != "role"}
            msprobe_config = SimpleNamespace(**others)
        config = load_config(msprobe_config)
        if not config.msprobe or (cls.enabled and config == cls.config):
            return
        if cls._shared is not None:
            warn("log.config_init_again")
            cls._shared.probe.close()
            cls.enabled, cls.config, cls._shared = False, None, None
        probe = Probe(config)
        cls.config, cls.enabled = config, probe.enabled
        if probe.enabled:
            from mindrlhf_msprobe.compat.shared import SharedProbe

            cls._shared = SharedProbe.for_tool(probe, "MsProbe")

    @classmethod
    def save_configs(cls, data: Any) -> None:
        """Write configurations.json; see `Probe.save_configs`."""
        if cls._shared is not None:
            cls._shared.probe.save_configs(data)

    @classmethod
    def save_data(cls, name: Any = MISSING, data: Any = MISSING) -> None:
        """Save key data: `save_data("loss", loss)` or `save_data({"loss": loss})`.

        The mapping may also be given as `data`, as MindSpeed-RL's trainers do.

        Raises:
            UsageError: a name cannot name a directory; the other names of the call are saved.
        """
        if cls._shared is None:
            return
        given = [value for value in (name, data) if value is not MISSING]
        cls._shared.probe.save_data(*given)

    @classmethod
    def save_string_list(cls, name: str, string_list: Iterable[str]) -> None:
        """Save texts under one name, as one micro-step; each stays readable as text.

        Raises:
            UsageError: a single text was given, or the name cannot name a directory.
        """
        if cls._shared is None or not cls._shared.probe.config.key_data_dump:
            return
        alone = isinstance(string_list, (str, bytes, Mapping))
        if alone or not isinstance(string_list, Iterable):
            raise UsageError.saying("error.string_list", name=name, string_list=string_list)
        cls._shared.probe.save_data(name, list(string_list))

    @classmethod
    def debugger_start(cls, model: Any = None, tag: str | None = None) -> None:
        """Begin to record what the cells of `model` compute, as the phase `tag`.

        Does nothing where the phase is switched off. A tag that is no phase is ignored, with a
        warning; phases of your own are declared in `msprobe_config.phases`.

        Args:
            model: a network or a list of networks; None: the one the phase's role was last given.

        Raises:
            UsageError: there is no network, it is no cell, or, in graph mode, it has been compiled
                already.
        """
        if cls._shared is None or cls.config is None:
            return
        table = cls.config.phase_table()
        phase = table.get(tag) if isinstance(tag, str) else None
        if phase is None:
            known = {"nearest": nearest_of(str(tag), table), "phases": ", ".join(table)}
            cls._shared.warn_once(message("log.no_phase", call=_START, tag=repr(tag), **known))
        elif cls.config.records_phase(phase):
            cls._shared.start(_START, phase.name, phase.role, model)

    @classmethod
    def debugger_stop(cls, tag: str | None = None) -> None:
        """End the phase `tag`, or whichever is open; does nothing if it is not open."""
        if cls._shared is not None and (tag is None or tag == cls._shared.open):
            cls._shared.stop()

    @classmethod
    def step(cls) -> None:
        """End the training step: when this returns, all it recorded is readable on disk."""
        if cls._shared is not None:
            cls._shared.step("MsProbe")
