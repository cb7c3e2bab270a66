from setuptools import Extension, find_packages, setup

# Makes recording and comparing floats several times faster. Without a C compiler the installation
# goes on without them, and numpy does their work.
LIBRARIES = (
    "capture/tensors/_statistics",
    "capture/tensors/_sketch",
    "comparison/judging/_float32",
)

setup(
    packages=[*find_packages(include=["mindrlhf_msprobe*"]), "mindrlhf_msprobe.yaml_examples"],
    # yaml_examples lies at the top of the repository and is installed inside the package.
    package_dir={"mindrlhf_msprobe.yaml_examples": "yaml_examples"},
    ext_modules=[
        Extension(
            f"mindrlhf_msprobe.{library.replace('/', '.')}",
            [f"mindrlhf_msprobe/{library}.c"],
            extra_compile_args=[
                *("-O3", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"),
                # The same digits on every machine: no multiplication is fused with an addition.
                *(("-ffp-contract=off",) if library.endswith("_float32") else ()),
            ],
            optional=True,
        )
        for library in LIBRARIES
    ],
)
