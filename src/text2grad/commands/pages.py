"""Commands about pages in the browser: mark, view and report."""

from __future__ import annotations

from pathlib import Path

from text2grad.commands.base import Stage, Work, argument, command, option

PORT = ("--port NUMBER", "The port to listen on; if it is in use, the next free one. [default: 8639]")
BROWSER = ("--browser/--no-browser", "Open the page, or only print its address.")


@command("mark")
class Mark(Stage):
    """Mark answers in the browser: drag over words, press g (good) or p (poor), type a reason.

    SOURCE is a spreadsheet as `improve` reads it (.xlsx, .ods, .csv), a file of feedback records, a
    file of answers (.jsonl with prompt and response) or the folder of a run. Everything works with
    the keyboard; press ? for the keys. A critic's judgement is shown on request. The record says
    whether you saw it before or after your own marks.

    Every action is saved on disk before it is confirmed, so you can stop or kill the server at any
    time. Several people can mark on one page under their own names; feedback-report measures their
    agreement. The page shows the command that trains on the marks, and on the comments that the
    file already had:

    \b
      text2grad mark answers.csv
      text2grad improve answers.marked.jsonl

    Verdicts on a critic's spans (right, wrong) are saved in answers.marked.checks.jsonl, which
    feedback-report reads with --marks.
    """

    source: Path = argument("SOURCE", "A spreadsheet, a file of answers or feedback, or the folder of a run.")
    out: Path | None = option("--out FILE", "The file of records to write. [default: SOURCE as .marked.jsonl]")
    annotator: str = option("--annotator NAME", "The annotator's name, which the page can change.", "")
    suggest: bool = option("--suggest-first", "Show the critic's judgement before you mark.", False)
    port: int | None = option(*PORT, min=1, max=65_535)
    browser: bool = option(*BROWSER, True)

    def work(self) -> Work:
        return Work(self.serve)

    def serve(self) -> int:
        """Serve the page until Ctrl-C."""
        from text2grad.page.mark import MarkPage
        from text2grad.page.server import listening, serve

        page = MarkPage(self.source, self.out, self.annotator, self.suggest)
        return serve(page.app(), listening(self.port), self.browser)


@command("view")
class View(Stage):
    """View runs in the browser, also during training.

    The page opens with one sentence, better or not on held-out prompts, and the three answers that
    changed most. Below are all answers before and after training, learning curves with an
    explanation of each metric, and every sample with its critique and tokens coloured by a metric
    of your choice. Samples can be searched, filtered and sorted, and the address of the page can be
    shared. Several runs are overlaid, with the settings in which they differ.

    `text2grad report` writes the same page as one file.

    \b
    Examples:
      text2grad view runs/demo
      text2grad view runs/one runs/other
    """

    folders: list[Path] = argument("FOLDERS", "The folders of the runs.")
    port: int | None = option(*PORT, min=1, max=65_535)
    browser: bool = option(*BROWSER, True)

    def work(self) -> Work:
        return Work(self.serve)

    def serve(self) -> int:
        """Serve the page until Ctrl-C."""
        from text2grad.config import preset_settings
        from text2grad.page.server import listening, serve
        from text2grad.page.view import ViewPage

        page = ViewPage(*self.folders, presets=preset_settings())
        return serve(page.app(), listening(self.port), self.browser)


@command("report")
class Report(Stage):
    """Write a report about runs as one HTML file.

    The file is in the first folder. It shows learning curves, answers coloured by their critiques,
    and the reward of every token. Several runs are overlaid, as in `view`.

    \b
    Example:
      text2grad report runs/demo
    """

    folders: list[Path] = argument("FOLDERS", "The folders of the runs.")

    def work(self) -> Work:
        from text2grad.config import preset_settings
        from text2grad.page.report import build_report

        return Work(lambda: {"out": str(build_report(*self.folders, presets=preset_settings()))})
