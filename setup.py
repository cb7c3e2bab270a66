from setuptools import Extension, setup

setup(
    # yaml_examples lies at the top of the repository and is installed inside the package.
    package_dir={"mindrlhf_msprobe.yaml_examples": "yaml_examples"},
    # Makes comparing float32 several times faster. Without a C compiler the installation goes on
    # without it, and numpy does its work.
    ext_modules=[
        Extension(
            "mindrlhf_msprobe.comparison._float32",
            ["mindrlhf_msprobe/comparison/_float32.c"],
            extra_compile_args=["-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"],
            optional=True,
        )
    ],
)
