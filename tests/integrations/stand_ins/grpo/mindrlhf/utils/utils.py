"""MindRLHF's own MsProbe, in the version that has one: it must not run beside the plugin."""

from mindrlhf.configs.grpo_configs import SHIPS_MSPROBE

if SHIPS_MSPROBE:

    class MsProbe:
        config = None
        enabled = False

        @classmethod
        def config_init(cls, msprobe_config):
            assert not msprobe_config.msprobe

        @classmethod
        def save_configs(cls, data):
            assert not cls.enabled

        @classmethod
        def save_data(cls, name, data):
            raise AssertionError(f"MindRLHF's own MsProbe saves {name}")

        @classmethod
        def save_string_list(cls, name, string_list):
            raise AssertionError(f"MindRLHF's own MsProbe saves {name}")

        @classmethod
        def step(cls):
            raise AssertionError("MindRLHF's own MsProbe ends a step")
