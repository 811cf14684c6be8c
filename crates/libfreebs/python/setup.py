"""Names the wheel: any Python 3, and the machine that the C library in it was built for."""

from pathlib import Path

from setuptools import setup
from setuptools.command.bdist_wheel import bdist_wheel


class Wheel(bdist_wheel):
    """A wheel with a library of C, which no module of Python is linked with."""

    def finalize_options(self):
        super().finalize_options()
        self.root_is_pure = False

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


# The script `wheel` writes it: the version of all of freebs.
version = Path(__file__).with_name("VERSION").read_text("utf-8").strip()

setup(version=version, cmdclass={"bdist_wheel": Wheel})
