"""The pages of the documentation's site."""

from pathlib import Path

import pytest

from tools.site import pages


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "_ELSEWHERE", {"index.md": tmp_path / "README.md"})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "run.md").write_text("Back to [the start](../README.md#use).\n")
    (tmp_path / "code.py").touch()
    (tmp_path / "mermaid.js").write_text("draw()")
    (tmp_path / "tools" / "site").mkdir(parents=True)
    (tmp_path / "tools" / "site" / "site.css").touch()
    return tmp_path


def collected(repository: Path, readme: str) -> str:
    (repository / "README.md").write_text(readme)
    pages.collect_pages(repository / "build", repository / "mermaid.js")
    return (repository / "build" / "index.md").read_text()


def test_links_between_pages_are_links_of_the_site(repository: Path) -> None:
    assert collected(repository, "[run](docs/run.md#a)") == "[run](run.md#a)"
    assert "[the start](index.md#use)" in (repository / "build" / "run.md").read_text()


def test_links_to_other_files_become_their_paths(repository: Path) -> None:
    assert collected(repository, "[the code](code.py)") == "the code (`code.py`)"
    assert collected(repository, "[`code.py`](code.py)") == "`code.py`"


@pytest.mark.parametrize("name", ["a.png", "a.svg"])
def test_images_are_part_of_the_site(repository: Path, name: str) -> None:
    (repository / "docs" / name).write_text("an image")
    assert collected(repository, f"![it](docs/{name})") == f"![it]({name})"
    assert (repository / "build" / name).read_text() == "an image"


def test_addresses_and_code_blocks_stay_as_they_are(repository: Path) -> None:
    text = "[site](https://example.org/a.md)\n```\n[x](nothing.md)\n```\n"
    assert collected(repository, text) == text


def test_pages_with_diagrams_load_the_script_of_the_site(repository: Path) -> None:
    assert "<script" not in collected(repository, "```\nflowchart TD\n```\n")
    text = collected(repository, "```mermaid\nflowchart TD\n```\n")
    assert text.endswith('\n<script src="mermaid.min.js"></script>\n')
    assert (repository / "build" / "mermaid.min.js").read_text() == "draw()"


def test_dead_links_are_listed(repository: Path) -> None:
    with pytest.raises(SystemExit, match=r"README.md: a.md\nREADME.md: docs/b.md"):
        collected(repository, "[a](a.md) [b](docs/b.md)")


def test_this_repository_has_no_dead_links(tmp_path: Path) -> None:
    (tmp_path / "mermaid.js").touch()
    pages.collect_pages(tmp_path / "pages", tmp_path / "mermaid.js")
    assert (tmp_path / "pages" / "index.md").exists()
