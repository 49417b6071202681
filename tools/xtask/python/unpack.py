"""Unpack what is wanted of some wheels: `unpack.py FOLDER WHEEL… -- PREFIX…` extracts each member whose path begins
with one of the prefixes, and every wheel's METADATA."""

import sys
import zipfile

folder, *rest = sys.argv[1:]
split = rest.index("--")
wheels, prefixes = rest[:split], tuple(rest[split + 1 :])
for wheel in wheels:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
        wanted = [n for n in names if n.startswith(prefixes) or n.endswith(".dist-info/METADATA")]
        archive.extractall(folder, wanted)
