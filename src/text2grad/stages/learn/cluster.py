"""`train --launcher ray`: the same stage in several processes that Ray Train starts, and starts again if one dies.

Ray knows nothing of text2grad's checkpoints: a worker that is started again finds the newest one in the run folder,
as after any other stop. So the folder must be on a disk that all machines of the cluster share.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

from text2grad.config import Config
from text2grad.durable.checkpoint import remove_checkpoints
from text2grad.durable.guard import only_run_in
from text2grad.durable.processes import PeerLost
from text2grad.durable.run import CHECKPOINTS, ResumeMode
from text2grad.errors import UserError
from text2grad.stages.learn.ppo import TrainSummary, run_train

RESTARTS = 3
OBJECT_STORE = 100 * 2**20
"""Bytes; nothing large goes through it."""
OUTCOME = "outcome.json"


def run_train_on_ray(config: Config, name: str, resume: ResumeMode, workers: int) -> TrainSummary:
    """`run_train` in `workers` processes of the cluster at RAY_ADDRESS, or of this machine without one.

    A process that dies ends the others; all are started again, up to `RESTARTS` times.

    Raises:
        UserError: Ray is not installed, the training failed for a reason of its own, or died too often.
    """
    config = config.model_copy(
        update={"run": config.run.model_copy(update={"folder": config.run.folder.absolute()})}
    )
    place = config.run.folder / "ppo" / name
    storage = config.run.folder / "ray"
    outcome = storage / name / OUTCOME
    outcome.unlink(missing_ok=True)
    job = {"config": config, "name": name, "resume": resume, "outcome": outcome, "path": sys.path}
    ray = _started_ray(workers)
    try:
        if resume == "restart":  # here, not in the workers: not again after one of them died
            with only_run_in(place):
                remove_checkpoints(place / CHECKPOINTS)
            job["resume"] = "auto"
        _fit(job, workers, storage)
    finally:
        ray.shutdown()
    found: dict[str, Any] = json.loads(outcome.read_text(encoding="utf-8"))
    if error := found.get("error"):
        raise UserError(error, exit_code=found["exit_code"])
    return TrainSummary(**found, workers=workers)


def _started_ray(workers: int) -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    try:
        import ray
        import ray.train
    except ImportError as error:
        raise UserError(f"--launcher ray needs Ray Train ({error})", "pip install 'text2grad[ray]'") from error
    if os.environ.get("RAY_ADDRESS"):
        ray.init()
        return ray
    os.environ.setdefault("RAY_worker_niceness", "0")  # they are the work; Ray would put them behind everybody's
    cores = max(workers, os.cpu_count() or 1)
    ray.init(address="local", num_cpus=cores, include_dashboard=False, object_store_memory=OBJECT_STORE)
    return ray


def _fit(job: dict[str, Any], workers: int, storage: Path) -> None:
    import ray
    from ray.train import FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchConfig, TorchTrainer

    gpu = job["config"].policy.device != "cpu" and ray.cluster_resources().get("GPU", 0) > 0
    trainer = TorchTrainer(
        train_worker,
        train_loop_config=job,
        torch_config=TorchConfig(backend="cpu:gloo,cuda:nccl" if gpu else "gloo", timeout_s=7200),
        scaling_config=ScalingConfig(num_workers=workers, use_gpu=gpu),
        run_config=RunConfig(
            name=job["name"], storage_path=str(storage), failure_config=FailureConfig(max_failures=RESTARTS)
        ),
    )
    try:
        trainer.fit()
    except Exception as error:
        if type(error).__module__.partition(".")[0] != "ray":
            raise
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise UserError(
            f"the training died, {RESTARTS} times after it was started again: {reason}",
            "the workers' words stand above; the same command resumes from the last checkpoint",
        ) from error


def train_worker(job: dict[str, Any]) -> None:
    """What each worker does; the first leaves the summary, or a failure that a restart would not cure."""
    sys.path += [entry for entry in job["path"] if entry not in sys.path]
    outcome: Path = job["outcome"]
    try:
        found = run_train(job["config"], job["name"], job["resume"]).as_dict()
    except PeerLost:
        raise
    except UserError as error:
        found = {"error": str(error), "exit_code": error.exit_code}
    if os.environ.get("RANK", "0") == "0":
        outcome.parent.mkdir(parents=True, exist_ok=True)
        outcome.write_text(json.dumps(found), encoding="utf-8")
