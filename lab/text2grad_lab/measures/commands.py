"""The command `texts`: measure answers by models that read them."""

from __future__ import annotations

from functools import partial
from pathlib import Path

from text2grad.commands.base import ConfiguredAsRun, Stage, Work, argument, command, option
from text2grad.errors import UsageError


@command("texts")
class Texts(Stage, ConfiguredAsRun):
    """Measure finished answers by BERTScore and perplexity.

    FILE holds answers as for evaluate --answers. In a folder, all *.answers.json files written by
    evaluate are measured. Figures are written next to them, to <name>.texts.json.

    \b
    Example:
      python -m text2grad_lab texts runs/mine/evaluation/qa --bertscore roberta-large
    """

    source: Path = argument("FILE|FOLDER", "Answers of any system.")
    bertscore: str = option("--bertscore MODEL", "Encoder, a folder or a hub name; usual: roberta-large.", "")
    perplexity: str = option("--perplexity MODEL", "Model (sft, a run, a folder, a hub name) that reads.", "")

    def work(self) -> Work:
        if not self.bertscore and not self.perplexity:
            raise UsageError("no model to measure by", "--bertscore MODEL or --perplexity MODEL")
        config = self.configuration()
        from text2grad_lab.measures.read_texts import run_texts

        return Work(partial(run_texts, config, self.source, self.bertscore, self.perplexity))
