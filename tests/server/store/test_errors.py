"""What the store's errors say, and the facts that replies are made of."""

from segstore.server.store.errors import DataDamaged, Unmapped
from tests.looped import looped


@looped(("offset", "where"), [(-1, "f is damaged: cut"), (0, "f is damaged at byte 0: cut")])
def test_damage_is_named_with_its_file_and_place(offset: int, where: str) -> None:
    error = DataDamaged("f", "cut", offset=offset)
    assert isinstance(error, Unmapped)
    assert (error.path, error.offset, error.segment) == ("f", offset, "")
    assert error.message.startswith(f"{where}; ")
