"""Function summaries: reading source files, leaks of the answer, the split by package."""

from __future__ import annotations

from pathlib import Path

import pytest

from text2grad.config import find_config, load_config
from text2grad.errors import UserError
from text2grad.tasks import library
from text2grad.tasks.base import TaskSettings, assign_split, load_task
from text2grad.tasks.function_summaries import (
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
from text2grad_lab.tasks.docstrings import split_identifier

NAME = "text2grad_lab.tasks.docstrings:DocstringsTask"
BODY = "Those without one are passed over, and the rest is sorted."
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


def package(root: Path, name: str, count: int) -> None:
    """Write a package with functions whose docstrings share only their form."""
    folder = root / name
    folder.mkdir(parents=True)
    nouns = ("apples", "birds", "cars", "doors", "eggs", "forks", "gates", "hills", "inks", "jars")
    texts = [
        f'def f{index}(x):\n    """Count the {noun} of {name} in one pass.\n\n'
        f'    {name} has {noun} that were left by {name}{index} alone.\n    """\n'
        for index, noun in enumerate(nouns[:count])
    ]
    (folder / "code.py").write_text("\n".join(texts), encoding="utf-8")


@pytest.fixture
def settings(tmp_path: Path) -> TaskSettings:
    for index in range(12):
        package(tmp_path, f"pack{index}", 6)
    return TaskSettings(name=NAME, data=str(tmp_path), heldout_share=0.4)


def test_documented_functions_are_read_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "queues.py").write_text(SOURCE, encoding="utf-8")
    assert list(documented_functions([tmp_path])) == [
        DocumentedFunction(
            package="queues",
            place="queues.py:HTTPQueue.next_item",
            name="HTTPQueue.next_item",
            signature="(key, wait, *rest) -> str",
            summary="Return the item under a key.",
            body="Waits for it as long as there is hope.",
        )
    ]


@pytest.mark.parametrize(
    ("docstring", "parts"),
    [
        (f"Sort the rows by name.\n\n    {BODY}\n", ("Sort the rows by name.", BODY)),
        ("Sort the rows by name.", None),
        (f"Sort the rows by name\n\n{BODY}", None),
        (f"Sort rows.\n\n{BODY}", None),
        (f"Sort the rows by name.\nSlowly.\n\n{BODY}", None),
        (f"Sort the :class:`Row` by name.\n\n{BODY}", None),
        ("Sort the rows by name.\n\n>>> sort(rows, by='name', quickly=True)", None),
        (f"Sort the rows by {'very ' * 12}long names.\n\n{BODY}", None),
    ],
)
def test_docstrings_are_split_into_summary_and_body(docstring: str, parts: tuple[str, str] | None) -> None:
    assert split_docstring(docstring) == parts


def test_tests_and_files_that_are_not_python_are_skipped(tmp_path: Path) -> None:
    package(tmp_path, "good", 2)
    package(tmp_path / "good", "tests", 2)
    package(tmp_path / "good", "_vendor", 2)
    (tmp_path / "good" / "template.py").write_text(f'{{{{ name }}}}\n"""Sort the rows by name.\n\n{BODY}"""\n')
    assert {item.place for item in documented_functions([tmp_path])} == {"good/code.py:f0", "good/code.py:f1"}


def test_functions_per_package_are_limited(tmp_path: Path) -> None:
    package(tmp_path, "large", 9)
    package(tmp_path, "small", 2)
    packages = [item.package for item in documented_functions([tmp_path], per_package=3)]
    assert (packages.count("large"), packages.count("small")) == (3, 2)


def test_splits_share_no_package_and_no_prompt_contains_its_answer(settings: TaskSettings) -> None:
    task = load_task(settings)
    sft, train, heldout = (task.examples(split) for split in ("sft", "train", "heldout"))
    packages = [{example.meta["package"] for example in split} for split in (sft, train, heldout)]
    assert packages[0] and packages[2] and train and not packages[2] & (packages[0] | packages[1])
    assert not {example.id for example in sft} & {example.id for example in train}
    assert [example.id for example in load_task(settings).examples("sft")] == [example.id for example in sft]
    for example in heldout:
        prompt = example.prompt[0].content
        assert prompt.startswith("f") and " ".join(words(example.reference)) not in " ".join(words(prompt))


def test_pretrained_models_see_the_function_as_written(settings: TaskSettings) -> None:
    def prompts(room: int | None) -> list[str]:
        task = load_task(settings.model_copy(update={"name": "function_summaries", "context_characters": room}))
        return [example.prompt[0].content for example in task.examples("heldout")]

    full_task = load_task(settings.model_copy(update={"name": "function_summaries"}))
    for one, other in zip(full_task.examples("heldout"), load_task(settings).examples("heldout"), strict=True):
        instruction, _, function = one.prompt[0].content.partition("\n\n")
        assert "first line" in instruction and function.startswith("def f")
        assert (one.id, one.reference.lower()) == (other.id, other.reference)
        assert one.reference[0].isupper() and one.reference not in one.prompt[0].content
    assert all(len(text.rpartition(":\n")[2]) <= 10 for text in prompts(10)) and prompts(10) != prompts(None)


def test_copies_across_the_split_are_not_held_out() -> None:
    def function(package: str, summary: str, body: str) -> DocumentedFunction:
        return DocumentedFunction(package, f"{package}:{summary}", "f", "()", summary, body)

    settings, names = TaskSettings(name=NAME), [f"p{index}" for index in range(50)]
    split = split_functions([function(name, f"Sum of {name}.", f"{name} {BODY}") for name in names], settings)
    assert split["sft"]
    trained_on = {item.package for item in (*split["sft"], *split["train"])}
    inside = next(name for name in names if name in trained_on)
    outside = next(name for name in names if assign_split(name, settings) == "heldout")
    copied = "The quick brown fox jumps over the lazy dog and into the river beyond."
    trained = function(inside, "Sort the rows by name.", copied)
    held = [
        function(outside, "Sort all of the rows.", copied),
        function(outside, "Open the file for good.", "Nothing of this is said anywhere else."),
        function(outside, "SORT the rows, by name.", "And nothing of this either, as far as known."),
    ]
    heldout = split_functions([trained, *held], settings)["heldout"]
    assert [item.summary for item in heldout] == ["Open the file for good."]


def test_installed_packages_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    roots = tmp_path / "site"
    package(roots, "pack", 2)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(library, "library_roots", lambda: [roots])
    first = installed_functions()
    (roots / "pack" / "code.py").write_text("", encoding="utf-8")
    assert first == installed_functions() and len(first) == 2
    package(roots, "another", 1)  # a new installation invalidates the cache
    assert [item.package for item in installed_functions()] == ["another"]
    for cache in (tmp_path / "cache" / "text2grad").iterdir():
        cache.write_text("torn", encoding="utf-8")
    assert [item.package for item in installed_functions()] == ["another"]


def test_the_preset_names_the_task() -> None:
    assert load_config(find_config("text2grad_lab:docstrings")).task.name == NAME


def test_a_folder_without_packages_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.data"):
        load_task(TaskSettings(name=NAME, data=str(tmp_path)))


def test_names_become_words_and_texts_are_truncated_between_words() -> None:
    spelled = {"get_user_name": "get user name", "HTTPServer.parseURL2": "http server . parse url 2", "_f": "f"}
    assert {name: split_identifier(name) for name in spelled} == spelled
    assert [shorten("one two three", room) for room in (7, 8, 13)] == ["one two", "one two", "one two three"]


def test_bleu_of_a_sentence() -> None:
    reference = "Return the name of the user."
    assert sentence_bleu(reference, "return the name of the user") == 1.0
    assert sentence_bleu(reference, "") == sentence_bleu(reference, "frob") == 0.0
    # by hand: precisions 3/3, (2+1)/(2+1), (1+1)/(1+1), (0+1)/(1+1); brevity exp(1 - 6/3)
    assert sentence_bleu(reference, "Return the name") == pytest.approx(0.5**0.25 * 0.367879, abs=1e-5)
