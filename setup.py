"""What setup.cfg cannot say: the packages by their folders, and beside them the Spaces, which lie in none of these."""

from setuptools import find_packages, setup

NAMES = ("dalle_collab", "modeling_dalle_collab", "pipelines", "hub_tools")
OURS = find_packages(include=[*NAMES, *(f"{name}.*" for name in NAMES)])

setup(packages=[*OURS, "hub_tools._space_templates"])
