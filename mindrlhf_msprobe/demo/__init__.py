"""A small real PPO training on CPU: the example of how a trainer uses the probe.

trainer.py is the example; networks.py and task.py are what it trains; fault.py plants an error;
command.py runs the training twice and checks that the verdict names what was planted.
"""
