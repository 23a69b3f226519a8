"""The corpora hold, and so do inputs of hypothesis; `make fuzz` and `make soak` run the guided search."""

from hypothesis import given
from hypothesis import strategies as st

from tests.fuzz import corpus
from tests.fuzz.targets import TARGETS
from tests.looped import looped

EACH_TARGET = looped("target", TARGETS)


@EACH_TARGET
def test_every_input_of_the_corpus_keeps_the_promises(target: str) -> None:
    found = corpus.inputs(target)
    assert found
    for data in found:
        TARGETS[target](data)


@EACH_TARGET
@given(st.binary(max_size=300))
def test_any_input_keeps_the_promises(target: str, data: bytes) -> None:
    TARGETS[target](data)
