"""The sandbox for untrusted Python: what this package uses of `codeverdict`, which stands beside
it."""

from __future__ import annotations

from concurrent.futures import Future, wait

import codeverdict
from codeverdict import NO_VERDICT as NO_VERDICT
from codeverdict import Gate as Gate
from codeverdict import Outcome as Outcome
from codeverdict import SandboxSettings as SandboxSettings
from codeverdict import TestResult as TestResult
from codeverdict import Verdict as Verdict
from codeverdict import clean as clean
from codeverdict import probe_tiers as probe_tiers
from codeverdict import stub_gate as stub_gate
from codeverdict.launch import INSTALL, Server
from text2grad.errors import UserError
from text2grad.signals import LOOK_SECONDS, stop_here

CURE = f"{INSTALL}; --sandbox.tier none runs programs without protection"
"""What helps where programs cannot be run safely."""


class Runner(codeverdict.Runner):
    """The runner of `codeverdict`; a machine without protection is a UserError that names the
    option.

    Waiting for a program is full of boundaries (`signals.stop_here`).

    Args:
        seconds: the processor time of one program under all its tests, beyond that of the tests.
        workers: servers, and so programs at once.
        tier: `auto` takes the best protection that works here.
        coverage: note the lines that each test runs.
        memory_mb: what each of the two processes of a program may use.
    """

    def start_server(self, preload: tuple[str, ...]) -> Server:
        """A new server.

        Raises:
            UserError: programs cannot be run safely on this machine.
        """
        try:
            return super().start_server(preload)
        except codeverdict.NotSafeError as error:
            raise UserError(error.message, CURE) from error

    def wait(self, verdict: Future[Verdict]) -> Verdict:
        """Wait for a job.

        Raises:
            Stopped: a signal came; what runs is ended by `close`.
        """
        while not verdict.done():
            wait([verdict], LOOK_SECONDS)
            stop_here()
        return verdict.result()
