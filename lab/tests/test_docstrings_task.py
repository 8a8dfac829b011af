"""Summaries of functions: what is read from source files, what would leak, and the split by package."""

from __future__ import annotations

from pathlib import Path

import pytest

from text2grad.errors import UserError
from text2grad.tasks import library
from text2grad.tasks.base import TaskSettings, load_task
from text2grad.tasks.function_summaries import (
    MOST_SHARED,
    _shared,
    _shingles,
    sentence_bleu,
    shorten,
    split_functions,
)
from text2grad.tasks.library import (
    DocumentedFunction,
    documented_functions,
    installed_functions,
    split_docstring,
    words,
)
from text2grad_lab.tasks.docstrings import in_words

REST = "Those without one are passed over, and the rest is sorted."

SOURCE = '''
raise SystemExit("a module that is read, never imported")

class HTTPQueue(list):
    def next_item(self, key, *rest, wait=None) -> str:
        """
        Return the item under a key.

        Waits for it as long as there is hope.

        >>> queue.next_item(3)
        """
        raise RuntimeError

    def __len__(self):
        """Return how many items there are.

        It takes no time at all to find out.
        """

def leaky(path):
    """Write all items to disk.

    Does what it says: write all ITEMS, to disk, and nothing else.
    """

def short(path):
    """Write all items."""

def no_sentence(path):
    """Write all items to a path

    and go on about it for a while.
    """
'''


def package(root: Path, name: str, count: int, line: str = "Count the {0} of {1} in one pass.") -> None:
    """A package with functions whose docstrings have nothing in common but their form."""
    folder = root / name
    folder.mkdir(parents=True)
    numbers = ("apples", "birds", "cars", "doors", "eggs", "forks", "gates", "hills", "inks", "jars")
    texts = [
        f'def f{index}(x):\n    """{line.format(numbers[index], name)}\n\n'
        f'    {name} has {numbers[index]} that were left by {name}{index} alone.\n    """\n'
        for index in range(count)
    ]
    (folder / "code.py").write_text("\n".join(texts), encoding="utf-8")


def test_what_is_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "queues.py").write_text(SOURCE, encoding="utf-8")
    assert list(documented_functions([tmp_path])) == [
        DocumentedFunction(
            package="queues",
            place="queues.py:HTTPQueue.next_item",
            name="HTTPQueue.next_item",
            signature="(key, wait, *rest) -> str",
            summary="Return the item under a key.",
            rest="Waits for it as long as there is hope.",
        )
    ]


@pytest.mark.parametrize(
    "docstring",
    [
        "Sort the rows by name.",
        f"Sort the rows by name\n\n{REST}",
        f"Sort rows.\n\n{REST}",
        f"Sort the rows by name.\nSlowly.\n\n{REST}",
        f"Sort the :class:`Row` by name.\n\n{REST}",
        "Sort the rows by name.\n\n>>> sort(rows, by='name', quickly=True)",
        f"Sort the rows by {'very ' * 12}long names.\n\n{REST}",
    ],
)
def test_docstrings_that_are_no_line_and_more(docstring: str) -> None:
    assert split_docstring(docstring) is None


def test_a_docstring_is_its_first_line_and_the_rest() -> None:
    assert split_docstring(f"Sort the rows by name.\n\n    {REST}\n") == ("Sort the rows by name.", REST)


def test_files_that_are_no_python_and_tests_are_passed_over(tmp_path: Path) -> None:
    package(tmp_path, "good", 2)
    package(tmp_path / "good", "tests", 2)
    package(tmp_path / "good", "_vendor", 2)
    (tmp_path / "good" / "template.py").write_text(f'{{{{ name }}}}\n"""Sort the rows by name.\n\n{REST}"""\n')
    assert {found.place for found in documented_functions([tmp_path])} == {"good/code.py:f0", "good/code.py:f1"}


def test_no_package_gives_more_than_its_share(tmp_path: Path) -> None:
    package(tmp_path, "large", 9)
    package(tmp_path, "small", 2)
    found = [each.package for each in documented_functions([tmp_path], per_package=3)]
    assert (found.count("large"), found.count("small")) == (3, 2)


def tree(tmp_path: Path) -> TaskSettings:
    for index in range(12):
        package(tmp_path, f"pack{index}", 6)
    return TaskSettings(name="text2grad_lab.tasks.docstrings:DocstringsTask", data=str(tmp_path), heldout_share=0.4)


def test_the_splits_share_no_package_and_no_function(tmp_path: Path) -> None:
    task = load_task(tree(tmp_path))
    made = {split: task.examples(split) for split in ("sft", "train", "heldout")}  # type: ignore[arg-type]
    packages = {split: {each.meta["package"] for each in found} for split, found in made.items()}
    assert packages["sft"] and packages["heldout"] and made["train"]
    assert not packages["heldout"] & (packages["sft"] | packages["train"])
    assert not {each.id for each in made["sft"]} & {each.id for each in made["train"]}
    again = load_task(tree_settings(tmp_path))
    assert [each.id for each in again.examples("sft")] == [each.id for each in made["sft"]]


def tree_settings(tmp_path: Path) -> TaskSettings:
    return TaskSettings(name="text2grad_lab.tasks.docstrings:DocstringsTask", data=str(tmp_path), heldout_share=0.4)


def test_the_prompt_does_not_hold_the_answer(tmp_path: Path) -> None:
    for example in load_task(tree(tmp_path)).examples("heldout"):
        prompt = " ".join(words(example.prompt[0].content))
        assert " ".join(words(example.reference)) not in prompt
        assert example.prompt[0].content.startswith("f")


def test_a_model_that_can_read_sees_the_function_as_written(tmp_path: Path) -> None:
    small = load_task(tree(tmp_path))
    whole = load_task(tree_settings(tmp_path).model_copy(update={"name": "function_summaries"}))
    assert whole.name == "function_summaries"
    for one, other in zip(whole.examples("heldout"), small.examples("heldout"), strict=True):
        asked, _, shown = one.prompt[0].content.partition("\n\n")
        assert "first line" in asked and shown.startswith("def f")
        assert (one.id, one.reference.lower()) == (other.id, other.reference)
        assert one.reference[0].isupper() and one.reference not in one.prompt[0].content
    short = whole_prompts(tmp_path, 10)
    assert all(len(text.rpartition(":\n")[2]) <= 10 for text in short) and short != whole_prompts(tmp_path, None)


def whole_prompts(tmp_path: Path, room: int | None) -> list[str]:
    settings = tree_settings(tmp_path).model_copy(update={"name": "function_summaries", "context_characters": room})
    return [each.prompt[0].content for each in load_task(settings).examples("heldout")]


def function(package: str, summary: str, rest: str) -> DocumentedFunction:
    return DocumentedFunction(package, f"{package}:{summary}", "f", "()", summary, rest)


def split_packages() -> tuple[str, str]:
    """A package that is trained on and one that is held out."""
    settings = TaskSettings(name="text2grad_lab.tasks.docstrings:DocstringsTask")
    names = [f"p{index}" for index in range(50)]
    found = split_functions([function(name, f"Sum of {name}.", f"{name} {REST}") for name in names], settings)
    assert found["sft"]
    inside = next(name for name in names if name in {each.package for each in (*found["sft"], *found["train"])})
    from text2grad.tasks.base import split_of

    return inside, next(name for name in names if split_of(name, settings) == "heldout")


def test_copies_across_the_split_are_not_held_out() -> None:
    inside, outside = split_packages()
    settings = TaskSettings(name="text2grad_lab.tasks.docstrings:DocstringsTask")
    copied = "The quick brown fox jumps over the lazy dog and into the river beyond."
    trained = [function(inside, "Sort the rows by name.", copied)]
    held = [
        function(outside, "Sort all of the rows.", copied),
        function(outside, "Open the file for good.", "Nothing of this is said anywhere else."),
        function(outside, "SORT the rows, by name.", "And nothing of this either, as far as known."),
    ]
    found = split_functions([*trained, *held], settings)
    assert [each.summary for each in found["heldout"]] == ["Open the file for good."]
    assert _shared(_shingles(held[0]), _shingles(trained[0])) >= MOST_SHARED


def test_what_is_installed_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = tmp_path / "site"
    package(roots, "pack", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "library_roots", lambda: [roots])
    first = installed_functions()
    (roots / "pack" / "code.py").write_text("", encoding="utf-8")
    assert first == installed_functions() and len(first) == 2
    package(roots, "another", 1)  # an installation changes what is there
    assert [each.package for each in installed_functions()] == ["another"]
    (kept,) = (tmp_path / "cache" / "text2grad").glob(f"*{library._installed([roots])}*")
    kept.write_text("torn", encoding="utf-8")
    assert [each.package for each in installed_functions()] == ["another"]


def test_a_folder_without_packages_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"too few packages .*set task\.data"):
        load_task(TaskSettings(name="text2grad_lab.tasks.docstrings:DocstringsTask", data=str(tmp_path)))


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("get_user_name", "get user name"),
        ("HTTPServer.parseURL2", "http server . parse url 2"),
        ("_f", "f"),
    ],
)
def test_a_name_is_said_in_words(name: str, said: str) -> None:
    assert in_words(name) == said


def test_texts_are_cut_between_words() -> None:
    assert shorten("one two three", 8) == "one two"
    assert shorten("one two three", 7) == "one two"
    assert shorten("one two three", 13) == "one two three"


def test_bleu_of_a_sentence() -> None:
    reference = "Return the name of the user."
    assert sentence_bleu(reference, "return the name of the user") == 1.0
    assert sentence_bleu(reference, "") == sentence_bleu(reference, "frob") == 0.0
    # by hand: precisions 3/3, (2+1)/(2+1), (1+1)/(1+1), (0+1)/(1+1); brevity exp(1 - 6/3)
    assert sentence_bleu(reference, "Return the name") == pytest.approx(0.5**0.25 * 0.367879, abs=1e-5)
