"""The sandbox for untrusted Python: the parts of `codeverdict` that text2grad uses."""

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
from text2grad.signals import POLL_SECONDS, stop_here

CURE = f"{INSTALL}; --sandbox.tier none runs programs without protection"
"""The cure when programs cannot be run safely."""


class Runner(codeverdict.Runner):
    """The runner of `codeverdict`, with errors and signals handled as in the rest of text2grad.

    A machine without protection raises a UserError that names the option. Waiting for a program
    stops at a signal (`signals.stop_here`).

    Args:
        seconds: processor time of one program under all its tests, in addition to the tests' own.
        workers: number of servers, which is the number of programs that run at once.
        tier: `auto` uses the best protection that works on this machine.
        coverage: record the lines that each test runs.
        memory_mb: memory limit of each of a program's two processes.
    """

    def start_server(self, preload: tuple[str, ...]) -> Server:
        """Start a server.

        Raises:
            UserError: programs cannot be run safely on this machine, or it cannot start a process.
        """
        try:
            return super().start_server(preload)
        except codeverdict.NotSafeError as error:
            raise UserError(error.message, CURE) from error
        except OSError as error:
            problem = f"cannot start the sandbox: {error.strerror}"
            raise UserError(problem, "end other processes, or raise the limit: ulimit -u") from error

    def wait(self, verdict: Future[Verdict]) -> Verdict:
        """Wait for a job.

        Raises:
            Stopped: a signal was received; `close` ends the running programs.
        """
        while not verdict.done():
            wait([verdict], POLL_SECONDS)
            stop_here()
        return verdict.result()
