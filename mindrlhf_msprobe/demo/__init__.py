"""A small real PPO training on CPU: the example of how a trainer uses the probe.

trainer.py is the example; networks.py and task.py are what it trains, rollout.py what it generates
with; fault.py plants an error in a cell, or what makes inference part from training;
command.py runs the training twice and checks that the verdict names what was planted.
"""
