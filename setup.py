from setuptools import setup

setup(
    # yaml_examples lies at the top of the repository and is installed inside the package.
    package_dir={"mindrlhf_msprobe.yaml_examples": "yaml_examples"},
)
