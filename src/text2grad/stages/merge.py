"""`merge`: a trained policy or reward model as a plain Hugging Face folder, with a model card.

An adapter is merged in float32, layer by layer, on the CPU. A half type keeps little of a small change, and the
summary says how much.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import torch

from text2grad.config import TINY, Config, dump_config
from text2grad.errors import UserError, first_line
from text2grad.page.render import render_text
from text2grad.policy.files.save import make_readable
from text2grad.policy.files.tokenizer import load_tokenizer
from text2grad.policy.load import is_adapter, load_model, merge_layers
from text2grad.stages import Summary
from text2grad.stages.run_folder import RunFolder
from text2grad.stages.training import MODEL_NOTE, prepare

REWARD_MODEL = "reward_model"
PACKAGES = ("text2grad", "torch", "transformers", "peft")
SETTINGS_FILE = "text2grad.yaml"


@dataclass(frozen=True, kw_only=True)
class MergeSummary(Summary):
    """The folder of the model, and its name on the hub if it was pushed.

    `kept`, of an adapter that was merged into weights of a half type: the cosine between what it was trained to
    change and what is left of that after rounding; 1 would be all of it.
    """

    out: str
    kept: float | None = None
    hub: str | None = None


DType = Literal["float32", "bfloat16", "float16"]


def run_merge(
    config: Config, target: str, out: Path, license_name: str, hub: str | None, dtype: DType | None = None
) -> MergeSummary:
    """Write the model of this run named `target` to `out`, adapters merged, and push it to `hub` if asked to.

    `dtype` None: float32 where an adapter is merged, else the type in which the model was saved.

    Raises:
        UserError: there is no such model, `out` is not an empty folder, or the hub refuses it.
    """
    run = prepare(config)
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise UserError(f"{out} is not empty", "give --out a new folder")
    source = run.find_policy(target)
    tokenizer = load_tokenizer(str(source))
    model, kept = merged_model(str(source), dtype)
    model.save_pretrained(out, safe_serialization=True)
    make_readable(out)
    tokenizer.save_pretrained(out)
    (out / SETTINGS_FILE).write_text(dump_config(config), encoding="utf-8")
    (out / "README.md").write_text(_card(config, run, target, license_name), encoding="utf-8")
    if hub:
        _push(out, hub)
    return MergeSummary(out=str(out), kept=kept, hub=hub or None)


def merged_model(folder: str, dtype: DType | None) -> tuple[Any, float | None]:
    """A model with its adapter merged, and the cosine of trained and kept change (None: nothing is rounded)."""
    if not is_adapter(folder):
        return load_model(folder, dtype or "auto"), None
    model, wanted = load_model(folder, "auto"), getattr(torch, dtype or "float32")
    squares = torch.zeros(3, dtype=torch.float64)
    for _, layer, before in merge_layers(model):
        trained = layer.weight.detach() - before
        layer.to(wanted)
        kept = layer.weight.detach().float() - before.to(wanted).float()
        pairs = ((trained, kept), (trained, trained), (kept, kept))
        squares += torch.stack([(one.double() * other.double()).sum() for one, other in pairs])
    product, *norms = squares.tolist()
    cosine = product / (norms[0] * norms[1]) ** 0.5 if all(norms) else float(not any(norms))
    return model.unload().to(wanted), None if wanted == torch.float32 else cosine


def _card(config: Config, run: RunFolder, target: str, license_name: str) -> str:
    """The model card; `base` is empty for a model made on the spot."""
    note = run.path / MODEL_NOTE
    origin = json.loads(note.read_text(encoding="utf-8")) if note.is_file() else {}
    return render_text(
        "card.md.j2",
        title=f"{config.task.name}: {target}",
        role="reward model" if target == REWARD_MODEL else "policy",
        base="" if config.policy.model == TINY else origin.get("hub") or config.policy.model,
        origin=origin.get("text", ""),
        license=license_name,
        data=config.task.data or f"the task {config.task.name!r}",
        command=_command(target),
        versions={name: version(name) for name in PACKAGES},
        metrics=_metrics(run, target),
    )


def _command(target: str) -> str:
    stages = {REWARD_MODEL: "train-reward", "sft": "sft"}
    words = [f"text2grad {stages.get(target, 'train')} --config {SETTINGS_FILE}"]
    return " ".join([*words, *([] if target in stages else [f"--name {target}"])])


def _metrics(run: RunFolder, target: str) -> dict[str, float]:
    """The figures of a model; those on other tasks than the run's own carry the task's name."""
    found = _figures(run.evaluation / f"{target}.json") | _figures(run.results / f"{target}.json")
    for file in sorted(run.evaluation.glob(f"*/{target}.json")):
        if file.parent != run.results:
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
        raise UserError(
            f"{name!r} was not pushed, {folder} is complete: {first_line(error)}", "hf auth login"
        ) from error
