"""Commands that open a page in the browser: mark answers by hand, look at a run."""

from __future__ import annotations

from pathlib import Path

from text2grad.commands.base import Stage, Work, argument, command, option

PORT = ("--port NUMBER", "The port on this machine; where it is in use the next is taken. [default: 8639]")
BROWSER = ("--browser/--no-browser", "Open the page, or only print its address.")


@command("mark")
class Mark(Stage):
    """Mark answers in the browser: drag over words, press g (good) or p (poor), type why.

    SOURCE is a file of feedback records, any file of answers (.jsonl, .csv with prompt and response), or the folder
    of a run, whose samples appear as it trains. All works by keyboard alone; ? lists the keys. A critic's judgement
    is shown when you ask for it, and whether that was before or after your own marks is kept in the record.

    Every act is on disk before it is confirmed: end the server, or kill it, at any time. Several people mark on one
    page under their own names, and it shows how far they agree. What is marked trains; the loop:

    \b
      text2grad mark answers.jsonl
      text2grad train --offline answers.marked.jsonl --config mine.yaml
      text2grad sample --prompts questions.txt --config mine.yaml --with offline --out new.jsonl
      text2grad mark new.jsonl

    People's verdicts on a critic's spans (right, wrong) go to answers.marked.checks.jsonl, which feedback-report
    reads with --marks.
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
        from text2grad.page.mark import mark_page
        from text2grad.page.server import listening, serve

        page = mark_page(self.source, self.out, self.annotator, self.suggest)
        return serve(page.app(), listening(self.port), self.browser)


@command("view")
class View(Stage):
    """Look at a run in the browser, also while it trains.

    Learning curves, with what each name means; every sample with its critique, each token in the colour of a number
    of your choice; answers before and after. Samples can be searched, filtered and sorted, and the address always
    names exactly what is shown. With --export the same is written as one file, FOLDER/report.html.

    \b
    Examples:
      text2grad view runs/demo
      text2grad view runs/demo --export
    """

    folder: Path = argument("FOLDER", "The folder of the run.")
    export: bool = option("--export", "Write the page as one file that needs no server, and end.", False)
    port: int | None = option(*PORT, min=1, max=65_535)
    browser: bool = option(*BROWSER, True)

    def work(self) -> Work:
        if self.export:
            from text2grad.report.viewer import build_report

            return Work(lambda: {"out": str(build_report(self.folder))})
        return Work(self.serve)

    def serve(self) -> int:
        """Serve the page until Ctrl-C."""
        from text2grad.page.server import listening, serve
        from text2grad.page.view import ViewPage

        return serve(ViewPage(self.folder).app(), listening(self.port), self.browser)
