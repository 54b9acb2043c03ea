"""Unpacks the Python source of the wheel in a folder, and deletes that folder.

usage: unpack.py FOLDER TARGET
"""

import pathlib
import shutil
import sys
import zipfile

(wheel,) = pathlib.Path(sys.argv[1]).glob("*.whl")
with zipfile.ZipFile(wheel) as archive:
    archive.extractall(sys.argv[2], [name for name in archive.namelist() if name.endswith(".py")])
shutil.rmtree(wheel.parent)
