from mindrlhf_msprobe.cli import command

command()
