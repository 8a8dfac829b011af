"""Commands that open a page in the browser: mark answers by hand, look at a run."""

from __future__ import annotations

from pathlib import Path

from text2grad.commands.base import Stage, Work, argument, command, option

PORT = ("--port NUMBER", "The port on this machine; where it is in use the next is taken. [default: 8639]")
BROWSER = ("--browser/--no-browser", "Open the page, or only print its address.")


@command("mark")
class Mark(Stage):
    """Mark answers in the browser: drag over words, press g (good) or p (poor), type why.

    SOURCE is a file of feedback records, any file of answers (.jsonl, .csv with prompt and
    response), or the folder of a run. All works by keyboard alone; ? lists the keys. A critic's
    judgement is shown when you ask for it, and whether that was before or after your own marks is
    kept in the record.

    Every act is on disk before it is confirmed: end the server, or kill it, at any time. Several
    people mark on one page under their own names; feedback-report says how far they agree. What is
    marked trains; the loop:

    \b
      text2grad mark answers.jsonl
      text2grad train --offline answers.marked.jsonl --config mine.yaml
      text2grad sample --prompts questions.txt --config mine.yaml --with offline --out new.jsonl
      text2grad mark new.jsonl

    People's verdicts on a critic's spans (right, wrong) go to answers.marked.checks.jsonl, which
    feedback-report reads with --marks.
    """

    source: Path = argument("SOURCE", "A file of answers or of feedback, or the folder of a run.")
    out: Path | None = option("--out FILE", "Where the records go. [default: beside SOURCE, .marked.jsonl]")
    annotator: str = option("--annotator NAME", "Who marks; the page can change it.", "")
    suggest: bool = option("--suggest-first", "Show the critic's judgement before your own.", False)
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
    """Look at runs in the browser, also while they train.

    Learning curves, with what each name means; every sample with its critique, each token in the
    colour of a number of your choice; one prompt over the steps of training; and answers before and
    after. Samples can be searched, filtered and sorted, and the address always names exactly what
    is shown. Several runs are laid over each other, with the settings in which they differ.

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
        from text2grad.page.server import listening, serve
        from text2grad.page.view import ViewPage

        page = ViewPage(*self.folders)
        return serve(page.app(), listening(self.port), self.browser)


@command("report")
class Report(Stage):
    """Write a page about runs for the browser.

    One HTML file in the (first) folder: learning curves, answers coloured by their critiques, the
    reward of every token. Several runs are laid over each other, as in `view`.

    \b
    Example:
      text2grad report runs/demo
    """

    folders: list[Path] = argument("FOLDERS", "The folders of the runs.")

    def work(self) -> Work:
        from text2grad.page.report import build_report

        return Work(lambda: {"out": str(build_report(*self.folders))})
