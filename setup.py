"""Finds the packages; pyproject.toml has everything else. (It could not add `pipeline.configs` to what it finds.)"""

from setuptools import find_packages, setup

setup(packages=[*find_packages(include=["pipeline*", "tasks*"]), "pipeline.configs"])
