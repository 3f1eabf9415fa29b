# SPDX-License-Identifier: GPL-2.0
"""What our scripts share: where things are, and how they end."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

SRC = Path(__file__).resolve().parent.parent
BUILD = Path(os.environ.get("BUILD", SRC / "build"))
CACHE = Path(os.environ.get("CACHE", BUILD / "cache"))


class Error(Exception):
    """A failure that the user can act on; printed as one line."""


def need_space(where, gigabytes):
    """Refuse to start what the disk cannot hold."""
    free = shutil.disk_usage(where).free >> 30
    if free < gigabytes:
        raise Error(f"{free} GB free in {where}, {gigabytes} needed: free some, or set BUILD= to another disk")


def finish(main):
    """Run a script's `main`; a failure is one line and a non-zero exit."""
    try:
        main()
    except (Error, OSError, subprocess.SubprocessError) as error:
        sys.exit(f"{Path(sys.argv[0]).name}: {error}")
    except KeyboardInterrupt:
        sys.exit(f"{Path(sys.argv[0]).name}: interrupted; what was not finished will be made anew")
