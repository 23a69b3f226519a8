"""The corpus of the extension holds; `make fuzz-native` and `make soak` run the guided search."""

import random

import pytest

from tests.fuzz import corpus


@pytest.mark.needs("the extension segstore._speed")
def test_every_input_of_the_corpus_is_read_as_python_reads_it() -> None:
    from tests.fuzz.native_target import ASK, run_input

    found = corpus.inputs("native")
    assert sum(map(len, found)) <= corpus.MAX_CORPUS_BYTES
    assert sum(ASK.decode(data) is not None for data in found) > 20
    for data in (b"", *found):
        run_input(data, random.Random(data))
