"""`merge`: a trained policy or reward model as a plain Hugging Face folder, with a model card."""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from text2grad.config import TINY, Config, dump_config
from text2grad.errors import UserError
from text2grad.policy.load import load_policy
from text2grad.policy.settings import PolicySettings
from text2grad.report.pages import render_text
from text2grad.stages.folder import MODEL_NOTE, find_policy, measured_on, prepare
from text2grad.stages.summary import Summary

REWARD_MODEL = "reward_model"
PACKAGES = ("text2grad", "torch", "transformers", "peft")
SETTINGS_FILE = "text2grad.yaml"


@dataclass(frozen=True, kw_only=True)
class MergeSummary(Summary):
    """The folder of the model, and its name on the hub if it was pushed."""

    out: str
    hub: str | None = None


def run_merge(config: Config, target: str, out: Path, license_name: str, hub: str | None) -> MergeSummary:
    """Write the model of this run named `target` to `out`, adapters merged, and push it to `hub` if asked to.

    Raises:
        UserError: there is no such model, `out` is not an empty folder, or the hub refuses it.
    """
    prepare(config)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty", "give --out a new folder")
    source = find_policy(config, target)
    settings = PolicySettings(model=str(source), dtype=config.policy.dtype, device="cpu")
    policy = load_policy(settings)
    policy.model.save_pretrained(out, safe_serialization=True)
    policy.tokenizer.save_pretrained(out)
    (out / SETTINGS_FILE).write_text(dump_config(config), encoding="utf-8")
    (out / "README.md").write_text(_card(config, target, license_name), encoding="utf-8")
    if hub:
        _push(out, hub)
    return MergeSummary(out=str(out), hub=hub or None)


def _card(config: Config, target: str, license_name: str) -> str:
    """The model card; `base` is empty for a model made on the spot."""
    note = config.run.folder / MODEL_NOTE
    origin = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    return render_text(
        "card.md.j2",
        title=f"{config.task.name}: {target}",
        role="reward model" if target == REWARD_MODEL else "policy",
        base="" if config.policy.model == TINY else origin.get("hub") or config.policy.model,
        origin=origin.get("text", ""),
        license=license_name,
        data=config.task.data or f"the task {config.task.name!r}",
        command=_command(config, target),
        versions={name: version(name) for name in PACKAGES},
        metrics=_metrics(config, target),
    )


def _command(config: Config, target: str) -> str:
    stages = {REWARD_MODEL: "train-reward", "sft": "sft"}
    words = [f"text2grad {stages.get(target, 'train')} --config {SETTINGS_FILE}"]
    return " ".join([*words, *([] if target in stages else [f"--name {target}"])])


def _metrics(config: Config, target: str) -> dict[str, float]:
    """The figures of a model; those on other tasks than the run's own carry the task's name."""
    folder, own = config.run.folder / "evaluation", measured_on(config)
    found = _figures(folder / f"{target}.json") | _figures(folder / own / f"{target}.json")
    for file in sorted(folder.glob(f"*/{target}.json")):
        if file.parent.name != own:
            found |= {f"{file.parent.name}: {name}": value for name, value in _figures(file).items()}
    return found


def _figures(file: Path) -> dict[str, float]:
    if not file.is_file():
        return {}
    figures = json.loads(file.read_text(encoding="utf-8"))
    return {name: float(value) for name, value in figures.items() if isinstance(value, int | float)}


def _push(folder: Path, name: str) -> None:
    from huggingface_hub import HfApi

    api = HfApi()
    try:
        api.create_repo(name, exist_ok=True)
        api.upload_folder(repo_id=name, folder_path=folder)
    except (OSError, ValueError) as error:  # HfHubHTTPError is an OSError
        reason = str(error).strip().splitlines()[0][:200]
        raise UserError(f"{name!r} was not pushed, {folder} is complete: {reason}", "hf auth login") from error
