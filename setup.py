"""Which folders make up the one import name `autoconfig`; everything else about the distribution is in pyproject.toml.

Folders beside `autoconfig/` that hold an `__init__.py` are its subpackages: `specs/` is imported as `autoconfig.specs`.
"""

import os
from pathlib import Path

from setuptools import find_packages, setup

NOT_SHIPPED = ("autoconfig", "tools", "validation")
beside = sorted(path.parent.name for path in Path(__file__).parent.glob("*/__init__.py") if path.parent.name not in NOT_SHIPPED)
packages = [*find_packages(include=["autoconfig", "autoconfig.*"])]
for folder in beside:
    packages += [f"autoconfig.{package}" for package in find_packages(include=[folder, f"{folder}.*"])]

os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")  # the date of files in a wheel: the same tree makes the same wheel
setup(packages=packages, package_dir={f"autoconfig.{folder}": folder for folder in beside})
