# SPDX-License-Identifier: Apache-2.0
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1] / "support"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
