"""`serve`: serve the critic of a run over HTTP."""

from __future__ import annotations

import sys

from text2grad.config import Config
from text2grad.critics.served import TOKEN, is_address, is_loopback, read_token
from text2grad.critics.service import CriticService, open_socket, serve
from text2grad.errors import UsageError
from text2grad.stages.critics import critic_factory

JOURNAL = "serve.journal"
"""The file in a run's folder with the paid answers of a chat model."""


def run_serve(config: Config, host: str, port: int) -> int:
    """Serve the configured critic until a signal arrives; return the exit code.

    Raises:
        UsageError: the server is reachable from other machines without a token, or the configured
            critic is itself served.
        UserError: the port is in use, or the critic cannot be created.
    """
    token = read_token()
    if not token and not is_loopback(host):
        raise UsageError(f"{host} is reachable from other machines, and no token is set", f"export {TOKEN}=SECRET")
    if is_address(config.critic.kind):
        problem = f"the critic of this run is already served at {config.critic.kind}"
        raise UsageError(problem, "set --critic.kind to another critic")
    with open_socket(host, port) as listener, critic_factory(config) as factory:
        if factory.spec.kind == "reward_model":
            from text2grad.stages.training import prepare

            prepare(config)
        folder = config.run.folder
        with factory.open(journal=folder / JOURNAL if folder.is_dir() else None) as critic:
            print(f"serving the {factory.kind} critic of {folder}", file=sys.stderr)
            return serve(CriticService(critic, token), listener)
