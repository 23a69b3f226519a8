"""What the store's errors say, and the facts that replies are made of."""

from segstore.server.store.errors import DataDamaged, StoreFull, Unmapped, Unsupported
from tests.looped import looped


def test_an_error_about_no_segment_names_none() -> None:
    full = StoreFull(used=90, limit=100)
    assert (full.segment, full.used, full.limit) == ("", 90, 100)
    assert "90 of 100 bytes" in full.message
    assert Unsupported("the text").operation == Unsupported("the text").segment == ""


@looped(("offset", "where"), [(-1, "f is damaged: cut"), (0, "f is damaged at byte 0: cut")])
def test_damage_is_named_with_its_file_and_place(offset: int, where: str) -> None:
    error = DataDamaged("f", "cut", offset=offset)
    assert isinstance(error, Unmapped)
    assert (error.path, error.offset, error.segment) == ("f", offset, "")
    assert error.message.startswith(f"{where}; ")
