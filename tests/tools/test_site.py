"""The pages of the documentation's site."""

from pathlib import Path

import pytest

from tools.site import pages


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.setattr(pages, "ROOT", tmp_path)
    monkeypatch.setattr(pages, "_ELSEWHERE", {"index.md": tmp_path / "README.md"})
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "run.md").write_text("Back to [the start](../README.md#use).\n")
    (tmp_path / "code.py").touch()
    return tmp_path


def collected(repository: Path, readme: str) -> str:
    (repository / "README.md").write_text(readme)
    pages.collect_pages(repository / "build")
    return (repository / "build" / "index.md").read_text()


def test_links_between_pages_lead_to_the_sites_pages(repository):
    assert collected(repository, "[run](docs/run.md#a)") == "[run](run.md#a)"
    assert "[the start](index.md#use)" in (repository / "build" / "run.md").read_text()


def test_links_to_other_files_become_their_paths(repository):
    assert collected(repository, "[the code](code.py)") == "the code (`code.py`)"
    assert collected(repository, "[`code.py`](code.py)") == "`code.py`"


def test_addresses_and_code_blocks_stay_as_they_are(repository):
    text = "[site](https://example.org/a.md)\n```\n[x](nothing.md)\n```\n"
    assert collected(repository, text) == text


def test_every_dead_link_is_named(repository):
    with pytest.raises(SystemExit, match=r"README.md: a.md\nREADME.md: docs/b.md"):
        collected(repository, "[a](a.md) [b](docs/b.md)")


def test_every_page_of_this_repository_has_only_live_links(tmp_path):
    pages.collect_pages(tmp_path / "pages")
    assert (tmp_path / "pages" / "index.md").exists()
