# SPDX-License-Identifier: Apache-2.0
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from tap import nats_tap  # noqa: E402, F401  (a fixture)
