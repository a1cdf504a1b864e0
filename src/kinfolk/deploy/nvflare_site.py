"""What runs in NVFlare's job process at a site: a thin pipe to the site's own process.

NVFlare 2.9 builds this class from its name in the job, where the site's list of allowed classes has it; no
code comes with a job. It holds no rows, no memory and no keys.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from nvflare.collab import collab

from kinfolk.deploy.agent import VARIABLE, ask

# In a site's job process NVFlare would import PyTorch, to carry tensors; a pipe of bytes saves its seconds.
if VARIABLE in os.environ:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # how Python is told that there is none
# Longer than any deadline of the lead, which is the one that counts.
PATIENCE = 24 * 3600.0


class Pipe:
    """Hands bytes to the site behind a socket, and its answer back."""

    @collab.init
    def begin(self) -> None:
        """Let the job outlive a kill of this process: NVFlare 2.9.0 would end it for all sites."""
        run = Path(collab.workspace.get_run_dir(collab.fl_ctx.get_job_id()))
        (run / "_process_rc.txt").write_text("0")

    @collab.publish
    def ask(self, data: bytes) -> bytes:
        """One message of the lead, and the site's answer."""
        return ask(os.environ[VARIABLE], data, PATIENCE)
