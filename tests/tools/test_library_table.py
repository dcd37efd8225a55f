"""The page of models says how each architecture of llama.cpp and each name of Ollama's runs."""

from tampu.models import architectures
from tools.library_table import BEGIN, LLAMA_CPP, NEWEST, OLLAMA, WITHOUT_IMAGES, table
from tools.models_table import END, PAGE


def test_the_page_has_the_table_of_today() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.partition(BEGIN)[2].partition(END)[0].strip() == table()


def test_each_name_is_of_one_architecture() -> None:
    names = [name for listed in OLLAMA.values() for name in listed.split()]
    assert len(names) == len(set(names)) == 209
    assert set(NEWEST) | set(WITHOUT_IMAGES) <= set(names)


def test_every_architecture_has_a_row() -> None:
    rows = [line.split("`")[1] for line in table().splitlines() if line.startswith("| `")]
    assert set(rows) == {*LLAMA_CPP, *OLLAMA, *architectures()}
    assert len(rows) == len(set(rows))
