"""Packages that a plain install leaves out, and the extra that brings each."""

from __future__ import annotations

from autoconfig.specs.errors import InputError

_PACKAGES = {
    "plots": ("matplotlib",),
    "tables": ("pandas", "pyarrow"),
    "study": ("optuna", "psutil", "scipy"),
    "serve": ("dbos", "fastapi", "httpx", "pebble", "prometheus_client", "pydantic", "sqlalchemy", "starlette", "uvicorn"),
    "postgres": ("psycopg",),
    "mcp": ("mcp", "mcp_types"),
    "ray": ("ray",),
    "train": ("torch", "megatron", "triton"),
}
EXTRA = {package: extra for extra, packages in _PACKAGES.items() for package in packages}
"""Package as it is imported -> the extra of pyproject.toml that brings it."""


def missing_package(error: ModuleNotFoundError, what: str = "this") -> InputError:
    """Return the error that names the extra which brings a missing package; `what` needs it. Raises `error` where none does."""
    package = (error.name or "").partition(".")[0]
    if package not in EXTRA:
        raise error
    return InputError(f"{what} needs {package}: pip install 'megatron-autoconfig[{EXTRA[package]}]'")
