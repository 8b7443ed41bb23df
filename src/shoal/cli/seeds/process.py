"""The process of one seed: ``python -m shoal.cli.seeds.process PARENT ARGS...`` runs ``shoal ARGS...``.

The kernel kills this process when its parent ends, so that it is not orphaned even if the parent is killed.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

from shoal.cli import main

PR_SET_PDEATHSIG = 1  # linux/prctl.h

if __name__ == "__main__":
    parent, *args = sys.argv[1:]
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(parent):
        sys.exit("shoal: the parent has ended")
    sys.exit(main(args))
