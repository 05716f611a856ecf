"""Put configs, tools and metafiles into the package, as mim expects them."""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

ROOT = Path(__file__).resolve().parent
CARRIED = ('configs', 'tools', 'model-index.yml')


class BuildWithConfigs(build_py):
    """Copies :data:`CARRIED` to ``mmlaplacian/.mim/`` of the build."""

    def run(self):
        super().run()
        if self.editable_mode:
            return
        target = Path(self.build_lib, 'mmlaplacian', '.mim')
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir(parents=True)
        for name in CARRIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(
                    source,
                    target / name,
                    ignore=shutil.ignore_patterns('__pycache__'),
                )
            else:
                shutil.copy2(source, target)


setup(cmdclass=dict(build_py=BuildWithConfigs))
